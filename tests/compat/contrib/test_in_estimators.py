"""Contrib's parts in model functions: trained, evaluated, predicted and exported, on the host and on cores."""

import glob
import os

import numpy as np
import tensorflow as tf

from tests.sweeps import mostly_swept
from tfx_tpu_trainer.compat import contrib
from tfx_tpu_trainer.compat.contrib import slim
from tfx_tpu_trainer.estimator import ModeKeys, export, tpu

v1 = tf.compat.v1


def _rows(params):
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(32, 6)).astype(np.float32)
    labels = numbers[:, :1] * 2.0 + 1.0
    rows = tf.data.Dataset.from_tensor_slices((numbers, labels)).repeat()
    return rows.batch(params["batch_size"], drop_remainder=True)


def _few_rows(params):
    return _rows(params).take(32 // params["batch_size"])


def _summaries(folder):
    def host_call(step, loss):
        summary = contrib.summary
        writer = summary.create_file_writer(folder)
        with writer.as_default(), summary.record_summaries_every_n_global_steps(2, step[0]):
            summary.scalar("loss", tf.reduce_mean(loss), step=step[0])
        return summary.all_summary_ops()

    return host_call


def _model_fn(features, labels, mode, params):
    training = mode == ModeKeys.TRAIN
    hparams = contrib.training.HParams(units=8, rate=0.05).parse("units=6")
    with slim.arg_scope(
        [slim.fully_connected], weights_regularizer=slim.l2_regularizer(1e-4), normalizer_fn=None
    ):
        net = slim.fully_connected(features, hparams.units, scope="first")
        net = slim.batch_norm(net, is_training=training, decay=0.5, scope="norm")
        net = contrib.layers.layer_norm(net)
        net = slim.dropout(net, 0.9, is_training=False)
        outputs = contrib.layers.linear(net, 1, scope="last")
    if mode == ModeKeys.PREDICT:
        return tpu.TPUEstimatorSpec(mode, predictions={"y": outputs})
    loss = tf.reduce_mean(tf.square(outputs - labels))
    loss += tf.add_n(v1.losses.get_regularization_losses())
    if mode == ModeKeys.EVAL:

        def metric_fn(outputs, labels):
            metrics = contrib.metrics
            return {
                "pearson": metrics.streaming_pearson_correlation(outputs, labels),
                "error": metrics.streaming_mean_squared_error(outputs, labels),
            }

        return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=(metric_fn, [outputs, labels]))
    step = v1.train.get_global_step()
    optimizer = contrib.opt.AdamWOptimizer(1e-4, hparams.rate)
    train_op = contrib.layers.optimize_loss(
        loss, step, None, tpu.CrossShardOptimizer(optimizer), clip_gradients=5.0, summaries=[]
    )
    host_call = (_summaries(params["folder"]), [tf.reshape(step, [1]), tf.reshape(loss, [1])])
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, host_call=host_call)


@mostly_swept("cores", [0, 2], kept=[2])
def test_a_model_of_contrib_trains_evaluates_predicts_and_exports(tmp_path, cores):
    config = tpu.RunConfig(
        model_dir=str(tmp_path / "model"),
        master="emulated" if cores else "",
        tf_random_seed=1,
        tpu_config=tpu.TPUConfig(num_shards=cores or None, iterations_per_loop=10),
    )
    estimator = tpu.TPUEstimator(
        _model_fn,
        config=config,
        use_tpu=bool(cores),
        train_batch_size=16,
        eval_batch_size=16,
        predict_batch_size=16,
        params={"folder": str(tmp_path / "summaries")},
    )
    estimator.train(_rows, max_steps=80)
    found = estimator.evaluate(_few_rows, steps=2)
    assert found["pearson"] > 0.9
    assert found["error"] < 0.6
    assert {"first/weights", "norm/moving_mean", "LayerNorm/gamma", "last/biases"} <= set(
        estimator.get_variable_names()
    )
    # The averages moved: optimize_loss runs the updates.
    assert np.abs(estimator.get_variable_value("norm/moving_mean")).max() > 0.01
    predicted = [
        each["y"][0] for each in estimator.predict(lambda params: _few_rows(params).map(_first))
    ]
    assert len(predicted) == 32
    if cores:
        # On the host a host_call does not run.
        (file,) = glob.glob(f"{tmp_path}/summaries/*")
        steps = {
            event.step
            for event in v1.train.summary_iterator(file)
            for value in event.summary.value
            if value.tag == "loss"
        }
        assert steps
        assert not any(step % 2 for step in steps)
    path = estimator.export_saved_model(str(tmp_path / "export"), _receiver)
    served = tf.saved_model.load(os.fsdecode(path), tags=["serve"]).signatures["serving_default"]
    numbers = np.random.default_rng(0).normal(size=(32, 6)).astype(np.float32)
    answer = served(tf.constant(numbers))["y"].numpy()[:, 0]
    np.testing.assert_allclose(answer, predicted, rtol=1e-4, atol=1e-5)


def _first(features, labels):
    del labels
    return features


def _receiver():
    x = v1.placeholder(tf.float32, [None, 6])
    return export.TensorServingInputReceiver(x, {"x": x})
