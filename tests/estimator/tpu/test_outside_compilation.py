"""`outside_compilation` in the model, on emulated cores: it runs in place, in every mode."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.estimator import linear_model
from tests.estimator._engine.event_files import read_values
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1

pytestmark = pytest.mark.matrix

CORES = 2


def _with_host_python(calls: list[int]):
    """The linear model whose loss and prediction pass through Python on the host."""
    lock = threading.Lock()

    def seen(values: np.ndarray) -> np.ndarray:
        with lock:
            calls.append(len(values))
        return values

    def on_host(values: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(seen, [values], values.dtype), values.shape)

    def model_fn(features, labels, mode, params):
        outputs = linear_model.outputs_of(features)
        outputs = outputs + 0.0 * tf.stop_gradient(v1.tpu.outside_compilation(on_host, outputs))
        if mode == "infer":
            return tpu.TPUEstimatorSpec(mode, predictions={"y": outputs})
        loss = tf.reduce_mean(tf.square(outputs - labels))
        if mode == "eval":
            metrics = (lambda y: {"mean": v1.metrics.mean(y)}, [outputs])
            return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)
        optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        step = v1.train.get_global_step()
        return tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=optimizer.minimize(loss, global_step=step)
        )

    return model_fn


@pytest.mark.parametrize("mode", on_cores.MODES)
def test_it_sees_the_rows_of_every_core(tmp_path, mode):
    calls: list[int] = []
    estimator = on_cores.make(tmp_path, _with_host_python(calls), cores=CORES)
    on_cores.run(estimator, mode)
    share = on_cores.BATCH // CORES
    full, rest = divmod(linear_model.ROWS, on_cores.BATCH)
    expected = {
        "train": [share] * 2 * CORES,
        # A short batch is evaluated on the host, unpadded.
        "eval": [share] * full * CORES + [rest],
        # A short batch is padded, and the end of the input is found by a step that is all padding.
        "infer": [share] * (full + 2) * CORES,
    }
    assert rest
    assert sorted(calls) == sorted(expected[mode])


def _halving(half):
    """Trains the linear model, half of whose output passes through Python."""

    def model_fn(features, labels, mode, params):
        outputs = linear_model.outputs_of(features)
        outputs = half(outputs) + outputs / 2
        loss = tf.reduce_mean(tf.square(outputs - labels))
        optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(linear_model.RATE))
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def _half_by_py_function(values: tf.Tensor) -> tf.Tensor:
    def on_host(values: tf.Tensor) -> tf.Tensor:
        halves = tf.py_function(lambda value: value / 2, [values], values.dtype)
        return tf.ensure_shape(halves, values.shape)

    return v1.tpu.outside_compilation(on_host, values)


@tf.custom_gradient
def _half_by_numpy_function(values: tf.Tensor):
    def on_host(values: tf.Tensor) -> tf.Tensor:
        halves = tf.numpy_function(lambda value: value / 2, [values], values.dtype)
        return tf.ensure_shape(halves, values.shape)

    def gradient(of_halves: tf.Tensor) -> tf.Tensor:
        return v1.tpu.outside_compilation(on_host, of_halves)

    return v1.tpu.outside_compilation(on_host, values), gradient


@pytest.mark.parametrize(
    ("number", "half"),
    [(1, _half_by_py_function), (1, _half_by_numpy_function), (CORES, _half_by_numpy_function)],
)
def test_gradients_pass_through_python(tmp_path, number, half):
    estimator = on_cores.make(tmp_path, _halving(half), cores=number)
    estimator.train(on_cores.train_input_fn, steps=4)
    on_cores.assert_descended(estimator, 4)


@row(
    "estimator",
    "the gradient of a `tf.py_function` on several cores",
    "The gradient of tf.py_function 'EagerPyFunc' can't be computed on 2 cores",
    "tf.custom_gradient",
    "test_outside_compilation.py:",
)
def test_the_gradient_of_a_py_function_is_one_cores(refused, tmp_path):
    with refused():
        on_cores.make(tmp_path, _halving(_half_by_py_function), cores=CORES).train(
            on_cores.train_input_fn, steps=1
        )


def _reporting(report):
    """The linear model with a call outside of it that nothing waits for."""

    def model_fn(features, labels, mode, params):
        outputs = linear_model.outputs_of(features)
        v1.tpu.outside_compilation(report, tf.reduce_mean(outputs))
        if mode == "infer":
            return tpu.TPUEstimatorSpec(mode, predictions={"y": outputs})
        loss = tf.reduce_mean(tf.square(outputs - labels))
        if mode == "eval":
            return tpu.TPUEstimatorSpec(mode, loss=loss)
        optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


@pytest.mark.parametrize("mode", on_cores.MODES)
def test_what_nothing_waits_for_runs_on_every_core_in_every_step(tmp_path, mode):
    means: list[float] = []
    lock = threading.Lock()

    def keep(mean: np.ndarray) -> None:
        with lock:
            means.append(float(mean))

    report = _reporting(lambda mean: tf.numpy_function(keep, [mean], []))
    on_cores.run(on_cores.make(tmp_path, report, cores=CORES), mode)
    full, _ = divmod(linear_model.ROWS, on_cores.BATCH)
    steps = {"train": 2 * CORES, "eval": full * CORES + 1, "infer": (full + 2) * CORES}
    assert len(means) == steps[mode]
    assert len(set(means)) > 1


def test_summaries_are_written_without_host_call(tmp_path):
    def report(mean: tf.Tensor) -> None:
        with tf.summary.create_file_writer(str(tmp_path / "from_cores")).as_default():
            tf.summary.scalar("mean", mean, step=v1.train.get_global_step())

    estimator = on_cores.make(tmp_path / "model", _reporting(report), cores=CORES)
    estimator.train(on_cores.train_input_fn, steps=3)
    (file,) = (tmp_path / "from_cores").iterdir()
    values = [
        value for event in v1.train.summary_iterator(str(file)) for value in event.summary.value
    ]
    assert [value.tag for value in values] == ["mean"] * 3 * CORES


def _model_fn(host_call):
    """The linear model with a host_call made from its features and its spec."""

    def model_fn(features, labels, mode, params):
        step = v1.train.get_global_step().read_value()
        with tf.control_dependencies([step]):
            spec = linear_model.model_fn_for(tpu)(features, labels, mode, params)
        return spec._replace(host_call=host_call(features, spec, step))

    return model_fn


def _trains(folder, host_call, *, steps=1, **options):
    on_cores.make(folder, _model_fn(host_call), **options).train(
        on_cores.train_input_fn, steps=steps
    )


@mostly_swept("form", ["list", "dict"], kept=["dict"])
@pytest.mark.behaviour(240, 241, 242, 243)
def test_tensors_are_gathered_in_order_once_a_step(tmp_path, form):
    seen = []

    def host_call(features, spec, step):
        keep = on_cores.recorder(seen, 0)
        x, losses = features["x"], tf.reshape(spec.loss, [1])
        if form == "list":
            return (lambda x, losses: keep(x, losses)), [x, losses]
        return (lambda x, losses: keep(x, losses)), {"losses": losses, "x": x}

    _trains(tmp_path, host_call, steps=2, cores=4)
    assert len(seen) == 2
    for (x, losses), (features, _) in zip(seen, linear_model.batches(on_cores.BATCH)):
        np.testing.assert_array_equal(x, features)
        assert losses.shape == (4,)
    features, labels = linear_model.batches(on_cores.BATCH)[0]
    expected = [linear_model.loss((features[i : i + 2], labels[i : i + 2])) for i in (0, 2, 4, 6)]
    assert list(seen[0][1]) == pytest.approx(expected, rel=1e-5)


@mostly_swept(
    ("every", "loop", "steps", "called"),
    [
        (1, 4, 6, [0, 1, 2, 3, 4, 5]),
        (2, 4, 10, [0, 2, 4, 6, 8]),
        (3, 4, 10, [0, 3, 4, 7, 8]),
        (100, 4, 10, [0, 4, 8]),
    ],
    kept=[(3, 4, 10, [0, 3, 4, 7, 8])],
)
@pytest.mark.behaviour(244)
def test_every_n_steps_of_a_loop(tmp_path, every, loop, steps, called):
    seen = []

    def host_call(features, spec, step):
        return on_cores.recorder(seen, 0), [tf.reshape(step, [1])]

    options = {"experimental_host_call_every_n_steps": every}
    _trains(tmp_path, host_call, steps=steps, loop=loop, tpu_options=options)
    assert [list(step) for (step,) in seen] == [[step] * 2 for step in called]


@pytest.mark.parametrize(("place", "number", "loop"), [("host", 1, 1), ("cores", 2, 3)])
@pytest.mark.behaviour(248)
def test_a_step_read_after_minimize_is_the_one_before_it_everywhere(tmp_path, place, number, loop):
    seen = []

    def model_fn(features, labels, mode, params):
        spec = linear_model.model_fn_for(tpu)(features, labels, mode, params)
        step = v1.train.get_global_step()
        with tf.control_dependencies([spec.train_op]):
            after = tf.reshape(step.read_value(), [1])
        bias = next(v for v in v1.trainable_variables() if "bias" in v.name)
        tensors = [tf.reshape(step, [1]), after, tf.reshape(bias, [1])]
        return spec._replace(host_call=(on_cores.recorder(seen, 0), tensors))

    on_cores.make(tmp_path, model_fn, cores=number, loop=loop, use_tpu=place == "cores").train(
        on_cores.train_input_fn, steps=4
    )
    gathered = number if place == "cores" else 1
    assert [list(step) for step, *_ in seen] == [[step] * gathered for step in range(4)]
    assert [list(after) for _, after, _ in seen] == [[step] * gathered for step in range(1, 5)]
    biases = [float(linear_model.BIAS), *(on_cores.descended(steps)[2] for steps in (1, 2, 3))]
    for (*_, bias), expected in zip(seen, biases):
        assert list(bias) == pytest.approx([expected] * gathered, rel=1e-5)


@pytest.mark.behaviour(247, 248)
def test_v2_summaries_are_written_each_step(tmp_path):
    folder = str(tmp_path / "host")

    def write(step, losses):
        with tf.summary.create_file_writer(folder).as_default(step[0]):
            tf.summary.scalar("loss", tf.reduce_mean(losses))
            return v1.summary.all_v2_summary_ops()

    def host_call(features, spec, step):
        return write, [tf.reshape(step, [1]), tf.reshape(spec.loss, [1])]

    _trains(tmp_path, host_call, steps=5, loop=2, cores=4)
    losses, *_ = on_cores.descended(5)
    written = read_values(folder)["loss"]
    assert sorted(written) == [0, 1, 2, 3, 4]
    assert [written[step] for step in range(5)] == pytest.approx(losses, rel=1e-5)


@pytest.mark.behaviour(249)
def test_in_evaluation_the_step_is_the_checkpoints(tmp_path):
    seen = []

    def host_call(features, spec, step):
        return on_cores.recorder(seen, 0), [tf.reshape(step, [1])]

    estimator = on_cores.make(tmp_path, _model_fn(host_call))
    estimator.train(on_cores.train_input_fn, steps=3)
    seen.clear()
    estimator.evaluate(linear_model.input_fn)
    assert [list(step) for (step,) in seen] == [[3, 3], [3, 3], [3]]


@mostly_swept("mode", on_cores.MODES, kept=["infer"])
@pytest.mark.behaviour(245, 250, 252)
def test_it_runs_in_every_mode_but_never_without_tensors(tmp_path, mode):
    seen = []

    def host_call(features, spec, step):
        return on_cores.recorder(seen, 0), [features["x"]]

    # Every third step of training only.
    options = {"tpu_options": {"experimental_host_call_every_n_steps": 3}}
    on_cores.run(on_cores.make(tmp_path, _model_fn(host_call), **options), mode)
    assert len(seen) == {"train": 1, "eval": 3, "infer": 4}[mode]

    def empty(features, spec, step):
        return (lambda: pytest.fail("called")), []

    on_cores.run(on_cores.make(tmp_path, _model_fn(empty)), mode)


def _a_list(x):
    return [tf.identity(x), tf.no_op()]


@mostly_swept("mode", ["train", "eval"], kept=["train"])
@mostly_swept("result", [lambda x: x + 1, _a_list, lambda x: []], kept=[_a_list])
@pytest.mark.behaviour(253)
def test_a_lone_tensor_a_list_or_nothing_may_be_returned(tmp_path, mode, result):
    def host_call(features, spec, step):
        return (lambda x: result(x)), [features["x"]]

    on_cores.run(on_cores.make(tmp_path, _model_fn(host_call)), mode)
