"""What goes wrong on cores in another way than on the host."""

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tests.estimator import linear_model
from tests.estimator.each_place import estimator
from tests.estimator.places.strategy.strategy_runs import mirrored
from tests.estimator.test_bad_input import reckons_with_full_batches
from tests.estimator.tpu import on_cores
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator._engine.evaluating.data_slices import (
    Slice,
    slice_eval_metrics,
    slice_membership,
)

v1 = tf.compat.v1


def test_input_fn_calls_that_differ_are_refused_by_key(tmp_path):
    def input_fn(params):
        features = {"x": tf.zeros([4, 3])}
        if params["context"].current_input_fn_deployment()[1]:
            features["only_here"] = tf.zeros([4])
        return features, tf.zeros([4])

    with pytest.raises(ValueError, match=r"features\['only_here'\] is in only one of them"):
        on_cores.run(on_cores.linear(tmp_path, fed=on_cores.PER_SHARD_V1), "train", input_fn)

    def other_shape(params):
        width = 3 + params["context"].current_input_fn_deployment()[1]
        return {"x": tf.zeros([4, width])}, tf.zeros([4])

    says = r"features\['x'\] is float32 \(4, 3\) in one and float32 \(4, 4\) in another"
    with pytest.raises(ValueError, match=says):
        on_cores.run(on_cores.linear(tmp_path, fed=on_cores.PER_SHARD_V1), "train", other_shape)


def test_a_batch_size_built_into_the_model_fails_on_a_short_batch_of_cores(tmp_path):
    built_in = estimator(tmp_path, "cores", reckons_with_full_batches)
    says = (
        r"^The last batch has fewer rows than eval_batch_size and runs as one short last batch, but "
        r"model_fn assumes another number of rows, at 'Reshape' \(.* 18 values.*12\): use "
        r".*params\['batch_size'\], or .*drop_remainder=True"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=says):
        built_in.evaluate(lambda params: linear_model.input_fn(params, count=22))


def test_a_short_batch_that_fits_by_chance_counts_its_own_rows(tmp_path):
    results = [
        estimator(tmp_path / name, "cores", model_fn).evaluate(linear_model.input_fn)
        for name, model_fn in (("built_in", reckons_with_full_batches), ("plain", None))
    ]
    assert results[0] == pytest.approx(results[1])


def _poisoned(params):
    rows, labels = linear_model.rows(6 * on_cores.BATCH)
    labels[4 * on_cores.BATCH] = np.nan
    dataset = tf.data.Dataset.from_tensor_slices(({"x": rows}, labels))
    return dataset.batch(params["batch_size"], drop_remainder=True)


NAN_ON_HOST = "^NaN loss during training, at global step 5; "
NAN_ON_CORES = (
    r"^Gradient for linear/\w+ is NaN: training stopped in the steps that ended at global step 6; "
)


@pytest.mark.parametrize(("place", "says"), [("host", NAN_ON_HOST), ("cores", NAN_ON_CORES)])
@pytest.mark.behaviour(174, 175)
def test_a_nan_names_the_step_and_the_checkpoint_that_is_kept(tmp_path, place, says):
    poisoned = estimator(tmp_path, place, save_checkpoints_steps=2)
    error = (
        v1.train.NanLossDuringTrainingError if place == "host" else tf.errors.InvalidArgumentError
    )
    with pytest.raises(error, match=f"{says}the last checkpoint is {tmp_path}/model.ckpt-4\\. "):
        poisoned.train(_poisoned, steps=6)
    assert all(
        np.isfinite(value).all()
        for value in poisoned.get_variable_value(poisoned.get_variable_names())
    )
    poisoned.train(on_cores.train_input_fn, max_steps=6)
    assert poisoned.get_variable_value("global_step") == 6


def _capturing(captured, *, function="metric_fn", sliced=False):
    """The linear model with a function of the host that closes over `captured(features, loss)`."""

    def model_fn(features, labels, mode, params):
        spec = linear_model.model_fn_for(tpu)(features, labels, mode, params)
        value = captured(features, spec.loss)
        if function == "host_call":
            rows = [features["x"]]
            return spec._replace(host_call=(lambda x: [tf.reduce_sum(x) * value], rows))
        eval_metrics = (lambda labels: {"m": v1.metrics.mean(labels * value)}, [labels])
        if sliced and mode == "eval":
            slices = [Slice(name=str(sign), conditions=(("sign", sign),)) for sign in (-1, 1)]
            membership = slice_membership({"sign": tf.cast(tf.sign(labels), tf.int32)}, slices)
            names = [one.name for one in slices]
            eval_metrics = slice_eval_metrics(*eval_metrics, membership, names)
        return spec._replace(eval_metrics=eval_metrics)

    return model_fn


def _capturing_runs(folder, mode, captured, *, under_strategy=False, **options):
    where = {"master": None, f"{mode}_distribute": mirrored()} if under_strategy else {}
    config = tpu.RunConfig(
        model_dir=str(folder),
        tpu_config=tpu.TPUConfig(num_shards=2, iterations_per_loop=2),
        **{"master": "emulated", **where},
    )
    capturing = tpu.TPUEstimator(
        _capturing(captured, **options), config=config, **on_cores.BATCH_SIZES
    )
    return on_cores.run(capturing, mode)


def _loss(features, loss):
    return loss


def _feature(features, loss):
    return tf.reduce_mean(features["x"])


@pytest.mark.parametrize(
    ("mode", "captured", "options"),
    [
        case(
            "estimator",
            "a metric_fn that captures the loss of model_fn, on TPU cores",
            "Cannot use 'Mean' as input to",
            "TPU cores: the function of eval_metrics",
            "must not capture tensors of model_fn. 'Mean' was made at ",
            "linear_model.py:",
            "eval_metrics=(function, [..., tensor])",
            values=("eval", _loss, {}),
        ),
        case(
            "estimator",
            "a metric_fn that captures a feature, measured by slices, on TPU cores",
            "TPU cores: the function of eval_metrics",
            "eval_metrics=(function, [..., tensor])",
            values=("eval", _feature, {"sliced": True}),
        ),
        case(
            "estimator",
            "a metric_fn that captures the loss, under a tf.distribute strategy",
            "the replicas of MirroredStrategy (2 replicas): the function of eval_metrics",
            values=("eval", _loss, {"under_strategy": True}),
        ),
        case(
            "estimator",
            "a host_call that captures the loss of model_fn, on TPU cores",
            "Cannot use 'Mean' as input to",
            "TPU cores: the function of host_call",
            "must not capture tensors of model_fn. 'Mean' was made at ",
            "host_call=(function, [..., tensor])",
            values=("train", _loss, {"function": "host_call"}),
        ),
        case(
            "estimator",
            "a host_call that captures the loss, under a tf.distribute strategy",
            "the replicas of MirroredStrategy (2 replicas): the function of host_call",
            values=("train", _loss, {"function": "host_call", "under_strategy": True}),
        ),
        case(
            "estimator",
            "a host_call that captures a feature, in prediction on TPU cores",
            "TPU cores: the function of host_call",
            values=("infer", _feature, {"function": "host_call"}),
        ),
    ],
)
def test_a_captured_tensor_of_model_fn_is_named(tmp_path, mode, captured, options, refused):
    with refused():
        _capturing_runs(tmp_path, mode, captured, **options)
    assert not list(tmp_path.glob("model.ckpt*"))


def _weight(features, loss):
    return v1.trainable_variables()[-1]


def _step(features, loss):
    return tf.cast(v1.train.get_global_step(), tf.float32) + 2


@pytest.mark.parametrize(("captured", "value"), [(_weight, linear_model.BIAS), (_step, 2.0)])
def test_variables_and_the_global_step_may_be_captured(tmp_path, captured, value):
    metrics = _capturing_runs(tmp_path, "eval", captured)
    _, labels = linear_model.rows()
    assert metrics["m"] == pytest.approx(np.mean(labels) * value, rel=1e-5)


@pytest.mark.parametrize("function", ["metric_fn", "host_call"])
def test_on_the_host_any_tensor_may_be_captured(tmp_path, function):
    on_host = on_cores.make(tmp_path, _capturing(_loss, function=function), use_tpu=False)
    metrics = on_host.evaluate(linear_model.full_batches_input_fn, steps=1)
    batch = linear_model.batches(on_cores.BATCH)[0]
    if function == "metric_fn":
        expected = np.mean(batch[1]) * linear_model.loss(batch)
        assert metrics["m"] == pytest.approx(expected, rel=1e-5)


def _counted_rows(features, labels, mode, params):
    optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
    weight = v1.get_variable("weight", [])
    train_op = optimizer.minimize(weight * 2.0, v1.train.get_global_step())
    rows = tf.shape(features["x"], name="rows")[0]
    return tpu.TPUEstimatorSpec(mode, loss=rows, train_op=train_op, predictions={"rows": labels})


@pytest.mark.parametrize("mode", ["train", "eval"])
@row(
    "estimator",
    "a loss of integers on cores",
    "Mismatch between input types and output types for training loop body: loss must be of a "
    "floating-point type on TPU cores, given: ",
    "dtype=int32",
    "Cast it: tf.cast(loss, tf.float32).",
)
def test_a_loss_of_integers_is_refused_on_cores(tmp_path, mode, refused):
    with refused(TypeError):
        on_cores.run(on_cores.make(tmp_path, _counted_rows), mode, on_cores.train_input_fn)


@pytest.mark.parametrize("place", ["host", "strategy"])
def test_a_loss_of_integers_trains_elsewhere(tmp_path, place):
    strategy = mirrored(2) if place == "strategy" else None
    config = tpu.RunConfig(
        model_dir=str(tmp_path), train_distribute=strategy, eval_distribute=strategy
    )
    use_tpu = place == "strategy"
    counted = tpu.TPUEstimator(
        _counted_rows, config=config, use_tpu=use_tpu, **on_cores.BATCH_SIZES
    )
    counted.train(on_cores.train_input_fn, steps=2)
    assert counted.get_variable_value("global_step") == 2
    rows_of_a_replica = on_cores.BATCH // (2 if strategy else 1)
    assert counted.evaluate(on_cores.train_input_fn, steps=1)["loss"] == rows_of_a_replica
