"""evaluate() on emulated TPU cores: exact over all cores and rows."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.estimator import linear_model
from tests.estimator._engine.log_lines import log_lines
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator._engine.evaluating.data_slices import (
    Slice,
    slice_eval_metrics,
    slice_membership,
)

v1 = tf.compat.v1

pytestmark = pytest.mark.matrix


def _rows(count: int = linear_model.ROWS):
    return functools.partial(linear_model.input_fn, count=count)


def _reshaping_model_fn(features, labels, mode, params):
    """The linear model, told the batch size of its core."""
    x = tf.reshape(features["x"], [params["batch_size"], -1])
    outputs = linear_model.outputs_of({"x": x})
    loss = tf.reduce_mean(tf.square(outputs - labels))
    return tpu.TPUEstimatorSpec(
        mode, loss=loss, eval_metrics=(linear_model.metric_fn, [labels, outputs])
    )


def _expected(count: int) -> dict[str, float]:
    features, labels = linear_model.rows(count)
    outputs = linear_model.output(features)
    return {
        "loss": np.mean((outputs - labels) ** 2),
        "mae": np.mean(np.abs(outputs - labels)),
        "mean_output": np.mean(outputs),
    }


@mostly_swept("number", [1, 2, 8], kept=[8])
@mostly_swept("batch", [8, 16, 24], kept=[16])
@mostly_swept("mode", [on_cores.PER_HOST_V1, on_cores.PER_HOST_V2], kept=[on_cores.PER_HOST_V1])
@pytest.mark.behaviour(198, 204, 206)
def test_metrics_and_loss_are_exact_whatever_the_cores(tmp_path, number, batch, mode):
    # Decision 6: lifts of B134, B135, B140, B204, B206.
    count = 50
    estimator = on_cores.linear(tmp_path, cores=number, eval_batch_size=batch, fed=mode)
    result = estimator.evaluate_result(_rows(count))
    expected = _expected(count)
    assert result.num_examples == count
    assert result.loss_by_rows == pytest.approx(expected["loss"], rel=1e-5)
    assert result.global_step == result.metrics["global_step"] == 0
    for name, value in expected.items():
        assert result.metrics[name] == pytest.approx(value, rel=1e-5)


@mostly_swept(
    ("number", "batch", "count"), [(1, 5, 20), (2, 10, 20), (8, 8, 16)], kept=[(2, 10, 20)]
)
def test_a_model_may_reshape_to_its_batch_size_on_full_batches(tmp_path, number, batch, count):
    estimator = on_cores.make(tmp_path, _reshaping_model_fn, cores=number, eval_batch_size=batch)
    metrics = estimator.evaluate(_rows(count))
    for name, value in _expected(count).items():
        assert metrics[name] == pytest.approx(value, rel=1e-5)


def _mean_by_shape(outputs, labels):
    return tf.reduce_sum(tf.square(outputs - labels)) / tf.cast(tf.shape(labels)[0], tf.float32)


@mostly_swept("loss", [_mean_by_shape, v1.losses.mean_squared_error], kept=[_mean_by_shape])
@mostly_swept("mode", [on_cores.PER_HOST_V1, on_cores.PER_HOST_V2], kept=[on_cores.PER_HOST_V2])
@mostly_swept("counts", [(17, 3), (20, 28)], kept=[(17, 3)])
def test_a_loss_that_divides_by_the_number_of_rows_is_exact_on_short_batches(
    tmp_path, loss, mode, counts
):
    def model_fn(features, labels, mode, params):
        return tpu.TPUEstimatorSpec(mode, loss=loss(linear_model.outputs_of(features), labels))

    estimator = on_cores.make(tmp_path, model_fn, cores=4, fed=mode)
    for count in counts:
        assert estimator.evaluate(_rows(count))["loss"] == pytest.approx(
            _expected(count)["loss"], rel=1e-5
        )


@mostly_swept("count", [16, 20, 22, 44], kept=[22])
@pytest.mark.behaviour(76, 129)
def test_batches_for_some_cores_only_do_not_count(tmp_path, caplog, count):
    # 22: the dataset drops what does not fill a core's batch.
    estimator = on_cores.make(
        tmp_path, _reshaping_model_fn, cores=4, eval_batch_size=16, fed=on_cores.PER_HOST_V2
    )
    with log_lines(caplog) as lines:
        result = estimator.evaluate_result(_full_rows(count))
    used = count - count % 16
    assert result.num_examples == used
    for name, value in _expected_of(*_first(used, of=count)).items():
        assert result.metrics[name] == pytest.approx(value, rel=1e-5)
    left = count // 4 * 4 - used
    says = [line for line in lines if line.startswith(f"The last {left} rows of the input are not")]
    assert len(says) == bool(left)
    assert all("drop_remainder=False" in line for line in says)


def test_a_model_with_a_loop_and_gradients_evaluates_short_batches(tmp_path):
    def model_fn(features, labels, mode, params):
        outputs = linear_model.outputs_of(features)
        doubled = tf.while_loop(lambda i, o: i < 2, lambda i, o: (i + 1, tf.tanh(o)), (0, outputs))
        loss = tf.reduce_mean(tf.square(doubled[1] - labels))
        optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    features, labels = linear_model.rows(20)
    outputs = np.tanh(np.tanh(linear_model.output(features)))
    metrics = on_cores.make(tmp_path, model_fn).evaluate(_rows(20))
    assert metrics["loss"] == pytest.approx(np.mean((outputs - labels) ** 2), rel=1e-5)


def _first(count, *, of=linear_model.ROWS):
    return tuple(part[:count] for part in linear_model.rows(of))


def _expected_of(features, labels):
    error = linear_model.output(features) - labels
    return {"loss": np.mean(error**2), "mae": np.mean(np.abs(error))}


@mostly_swept("number", [1, 2, 4], kept=[2])
@pytest.mark.behaviour(208, 259)
def test_n_steps_are_one_session_call(tmp_path, number):
    hook = on_cores.Steps()
    counted = v1.train.SessionRunHook()
    counted.begin = lambda: setattr(
        counted, "step", v1.get_collection(v1.GraphKeys.EVAL_STEP)[0].read_value()
    )
    counted.end = lambda session: setattr(counted, "steps", int(session.run(counted.step)))
    estimator = on_cores.linear(tmp_path, cores=number, loop=1)
    result = estimator.evaluate_result(_rows(), steps=2, hooks=[hook, counted])
    assert hook.seen == [0]
    assert counted.steps == 2
    assert result.num_examples == 16
    for name, value in _expected_of(*_first(16)).items():
        assert result.metrics[name] == pytest.approx(value, rel=1e-5)


def _full_rows(count):
    def input_fn(params):
        dataset = linear_model.input_fn(params, count=count).unbatch()
        return dataset.batch(params["batch_size"], drop_remainder=True)

    return input_fn


def _same_input(params):
    features, labels = linear_model.rows(params["batch_size"])
    return {"x": tf.constant(features)}, tf.constant(labels)


def _counted(labels):
    """A mean over labels, with variables of get_variable."""
    counters = [
        v1.get_variable(
            name, (), initializer=v1.zeros_initializer(), collections=["local_variables"]
        )
        for name in ("total", "count")
    ]
    added = (tf.reduce_sum(labels), tf.cast(labels.shape[0], tf.float32))
    updates = [counter.assign_add(value) for counter, value in zip(counters, added)]
    return counters[0] / counters[1], tf.group(*updates)


def _shape_metrics(labels, outputs):
    keras = tf_keras.metrics.Mean()
    keras.update_state(tf.square(labels - outputs))
    return {
        "mae": v1.metrics.mean_absolute_error(labels, outputs),
        "keras": keras,
        "counted": _counted(labels),
        "unstacked": v1.metrics.mean(tf.stack(tf.unstack(labels))),
    }


def _each_row(labels, outputs):
    rows = v1.metrics.mean_tensor(tf.abs(labels - outputs))
    return {"rows": rows, **_shape_metrics(labels, outputs)}


def _shapes_model_fn(metric_fn):
    def model_fn(features, labels, mode, params):
        assert labels.shape == [params["batch_size"]]
        outputs = linear_model.outputs_of(features)
        loss = tf.reduce_mean(tf.square(outputs - labels))
        return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=(metric_fn, [labels, outputs]))

    return model_fn


def _assert_exact(metrics, features, labels):
    error = linear_model.output(features) - labels
    expected = {"loss": error**2, "keras": error**2, "mae": np.abs(error)}
    expected |= {"counted": labels, "unstacked": labels}
    for name, values in expected.items():
        assert metrics[name] == pytest.approx(np.mean(values), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "input_fn", "steps"),
    [
        ({"per_host_input_for_training": on_cores.PER_HOST_V1}, _same_input, 2),
        ({"per_host_input_for_training": on_cores.PER_HOST_V2}, _full_rows(16), None),
        *(
            pytest.param(options, _full_rows(20), None, marks=pytest.mark.sweep)
            for options in (
                {"per_host_input_for_training": on_cores.PER_HOST_V1},
                {"eval_training_input_configuration": on_cores.SLICED},
            )
        ),
    ],
    ids=["tensors", "PER_HOST_V2", "PER_HOST_V1", "SLICED"],
)
@pytest.mark.behaviour(198)
def test_full_batches_have_a_static_shape_in_metric_fn(tmp_path, options, input_fn, steps):
    estimator = on_cores.make(tmp_path, _shapes_model_fn(_each_row), tpu_options=options)
    metrics = estimator.evaluate(input_fn, steps=steps)
    features, labels = linear_model.rows(8) if steps else _first(16)
    _assert_exact(metrics, features, labels)
    rows = np.abs(linear_model.output(features) - labels).reshape(-1, 8)
    np.testing.assert_allclose(metrics["rows"], np.mean(rows, axis=0), rtol=1e-4)


# As the original calls them: metric_fn with the whole batch on its host too, and the function of a
# host_call with one row for each replica of what has one (with all of the batch in BROADCAST).
@mostly_swept(
    "mode",
    [on_cores.PER_SHARD_V1, on_cores.PER_HOST_V1, on_cores.PER_HOST_V2, on_cores.BROADCAST],
    kept=[on_cores.PER_HOST_V2, on_cores.BROADCAST],
)
@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.behaviour(198, 200, 242)
def test_each_function_is_called_once_with_the_whole_batch(tmp_path, mode, sliced):
    calls = []

    def noted(name, function):
        def call(*tensors):
            calls.append((name, [tensor.shape.as_list() for tensor in tensors]))
            return function(*tensors)

        return call

    def model_fn(features, labels, mode, params):
        outputs = linear_model.outputs_of(features)
        loss = tf.reduce_mean(tf.square(outputs - labels))
        metrics = noted("metric_fn", linear_model.metric_fn), [labels, outputs]
        if sliced:
            signs = slice_membership(
                {"sign": tf.sign(labels)}, [Slice(name="up", conditions=(("sign", 1.0),))]
            )
            metrics = slice_eval_metrics(*metrics, signs, ["up"])
        host_call = (
            noted("host_call", lambda losses, x: tf.identity(x)),
            [loss[tf.newaxis], features["x"]],
        )
        return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics, host_call=host_call)

    on_cores.make(tmp_path, model_fn, cores=4, eval_batch_size=16, fed=mode).evaluate(
        _full_rows(40)
    )
    # Slices are measured on collected rows, by metrics in their own graph.
    apart = [("metric_fn", [[None], [None]])] if sliced else []
    each = 1 if mode == on_cores.BROADCAST else 4
    assert calls == [
        ("metric_fn", [[16], [16]]),
        *apart,
        ("host_call", [[each], [16, 3]]),
    ]


@mostly_swept("form", ["list", "dict", "nested"], kept=["dict", "nested"])
@pytest.mark.behaviour(195, 196)
def test_metric_fn_by_position_by_keyword_and_nested(tmp_path, form):
    def by_name(labels, outputs):
        return linear_model.metric_fn(labels, outputs)

    def by_pair(pair, weights):
        assert set(pair) == {"labels", "outputs"}
        return linear_model.metric_fn(pair["labels"], pair["outputs"] * weights[0])

    def model_fn(features, labels, mode, params):
        outputs = linear_model.outputs_of(features)
        loss = tf.reduce_mean(tf.square(outputs - labels))
        eval_metrics = {
            "list": (by_name, [labels, outputs]),
            "dict": (by_name, {"outputs": outputs, "labels": labels}),
            "nested": (
                by_pair,
                [{"labels": labels, "outputs": outputs}, (tf.ones_like(outputs),)],
            ),
        }[form]
        return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=eval_metrics)

    metrics = on_cores.make(tmp_path, model_fn).evaluate(_rows())
    assert metrics["mae"] == pytest.approx(_expected(20)["mae"], rel=1e-5)


def _evaluates(folder, *, eval_metrics=None, spec=tpu.TPUEstimatorSpec, **options):
    def model_fn(features, labels, mode, params):
        fields = {} if eval_metrics is None else {"eval_metrics": eval_metrics(labels)}
        return spec(mode, loss=tf.reduce_mean(labels), **fields)

    return on_cores.make(folder, model_fn, **options).evaluate(_rows())


@pytest.mark.behaviour(200, 77)
def test_broadcast_takes_the_first_cores_tensors_scalars_too(tmp_path):
    def scalar(labels):
        return (lambda value: {"m": v1.metrics.mean(value)}), [tf.reduce_sum(labels)]

    metrics = _evaluates(
        tmp_path, eval_metrics=scalar, cores=4, eval_batch_size=10, fed=on_cores.BROADCAST
    )
    assert metrics["m"] == pytest.approx(np.sum(linear_model.rows()[1]) / 2, rel=1e-5)


@pytest.mark.behaviour(155, 217, 90, 146)
def test_eval_on_tpu_false_evaluates_on_the_host(tmp_path):
    seen = []

    def model_fn(features, labels, mode, params):
        seen.append((mode, params["use_tpu"], params["batch_size"], "context" in params))
        spec = linear_model.model_fn_for(tpu)(features, labels, mode, params)
        return spec if mode == "train" else spec.as_estimator_spec()

    estimator = on_cores.make(tmp_path, model_fn, eval_on_tpu=False, eval_batch_size=5)
    estimator.train(on_cores.train_input_fn, steps=2)
    hook = on_cores.Steps()
    metrics = estimator.evaluate(_rows(), hooks=[hook])
    assert metrics["global_step"] == 2
    assert hook.seen == [2] * 4
    assert seen == [("train", True, 4, True), ("eval", False, 5, False)]


@pytest.mark.behaviour(207)
def test_steps_that_do_not_hold(tmp_path):
    estimator = on_cores.linear(tmp_path)
    for steps, error, says in [
        (0, ValueError, "Eval steps must be positive; got 0"),
        (-2, ValueError, "must be positive"),
        (1.5, TypeError, "Eval steps must be int, got .*1.5"),
    ]:
        with pytest.raises(error, match=says):
            estimator.evaluate(_rows(), steps=steps)


@pytest.mark.behaviour(174)
def test_variables_that_are_nan_are_not_evaluated(tmp_path):
    def model_fn(features, labels, mode, params):
        weight = v1.get_variable("weight", initializer=np.float32(np.nan))
        return tpu.TPUEstimatorSpec(mode, loss=tf.reduce_mean(labels) * weight)

    with pytest.raises(tf.errors.InvalidArgumentError, match="Gradient for weight is NaN"):
        on_cores.make(tmp_path, model_fn).evaluate(_rows())


@pytest.mark.behaviour(268)
def test_a_scaffolds_saver_loads_moving_averages_on_cores(tmp_path):
    def model_fn(features, labels, mode, params):
        weight = v1.get_variable("weight", initializer=1.0)
        averages = tf.train.ExponentialMovingAverage(0.5)
        loss = weight.read_value() + 0 * tf.reduce_mean(labels)
        if mode == "eval":
            names = averages.variables_to_restore([weight])
            return tpu.TPUEstimatorSpec(
                mode,
                loss=loss,
                scaffold_fn=lambda: v1.train.Scaffold(saver=v1.train.Saver(names)),
            )
        optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(1.0))
        step = optimizer.minimize(loss, v1.train.get_global_step())
        with tf.control_dependencies([step]):
            train_op = averages.apply([weight])
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = on_cores.make(tmp_path, model_fn)
    estimator.train(on_cores.train_input_fn, steps=1)
    assert estimator.get_variable_value("weight") == 0
    assert estimator.evaluate(_rows())["loss"] == 0.5


def test_sums_over_cores_in_evaluation(tmp_path):
    def model_fn(features, labels, mode, params):
        total = v1.tpu.cross_replica_sum(tf.reduce_sum(labels))
        metrics = (lambda t: {"total": v1.metrics.mean(t)}, [tf.reshape(total, [1])])
        return tpu.TPUEstimatorSpec(mode, loss=tf.reduce_mean(labels), eval_metrics=metrics)

    metrics = on_cores.make(tmp_path, model_fn, cores=4).evaluate(_rows(), steps=1)
    assert metrics["total"] == pytest.approx(np.sum(_first(8)[1]), rel=1e-5)
