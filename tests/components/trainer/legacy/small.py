"""A small legacy module with a linear model_fn, which tests can change."""

import tensorflow as tf
import tensorflow_model_analysis as tfma
import tensorflow_transform as tft

from tests.components.trainer.legacy.conftest import CHANGES

v1 = tf.compat.v1

LABEL = "tips_xf"
NUMBERS = ("trip_miles_xf", "fare_xf", "trip_seconds_xf")
BATCH_SIZE = 100


def _model_fn(features, labels, mode):
    inputs = tf.concat([tf.reshape(features[name], [-1, 1]) for name in NUMBERS], axis=1)
    kernel = v1.get_variable("kernel", [len(NUMBERS), 1], initializer=v1.zeros_initializer())
    bias = v1.get_variable("bias", [1], initializer=v1.zeros_initializer())
    logits = tf.matmul(inputs, kernel) + bias
    predictions = {"probabilities": tf.sigmoid(logits)}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions=predictions)
    labels = tf.cast(tf.reshape(labels, [-1, 1]), tf.float32)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    return tf.estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, global_step=v1.train.get_global_step()),
        eval_metric_ops={
            "accuracy": v1.metrics.accuracy(labels, tf.round(predictions["probabilities"])),
            "label_mean": v1.metrics.mean(labels),
        },
    )


def _estimator(model_dir):
    if "tpu" not in CHANGES:
        config = tf.estimator.RunConfig(
            model_dir=model_dir, save_checkpoints_steps=10, keep_checkpoint_max=1
        )
        return tf.estimator.Estimator(_model_fn, config=config)
    tpu = tf.compat.v1.estimator.tpu
    config = tpu.RunConfig(
        model_dir=model_dir,
        save_checkpoints_steps=10,
        tpu_config=tpu.TPUConfig(iterations_per_loop=10, num_shards=2),
    )
    return tpu.TPUEstimator(
        _tpu_model_fn,
        config=config,
        use_tpu=True,
        train_batch_size=BATCH_SIZE,
        eval_batch_size=BATCH_SIZE,
        predict_batch_size=BATCH_SIZE,
    )


def _tpu_model_fn(features, labels, mode, params):
    spec = _model_fn(features, labels, mode)
    make = tf.compat.v1.estimator.tpu.TPUEstimatorSpec
    if mode == tf.estimator.ModeKeys.PREDICT:
        return make(mode, predictions=spec.predictions)
    if mode == tf.estimator.ModeKeys.EVAL:
        return make(mode, loss=spec.loss)
    optimizer = v1.tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
    train_op = optimizer.minimize(spec.loss, global_step=v1.train.get_global_step())
    return make(mode, loss=spec.loss, train_op=train_op)


def trainer_fn(fn_args, schema):
    assert {feature.name for feature in schema.feature} >= {"tips", "fare"}
    transform = tft.TFTransformOutput(fn_args.transform_output)

    def input_fn(files, repeat, params):
        rows = params.get("batch_size", BATCH_SIZE)
        data = tf.data.experimental.make_batched_features_dataset(
            files,
            rows,
            transform.transformed_feature_spec(),
            reader=lambda names: tf.data.TFRecordDataset(names, compression_type="GZIP"),
            label_key=LABEL,
            num_epochs=None if repeat else 1,
            shuffle=False,
            drop_final_batch=repeat,
        )
        return (
            data.take(CHANGES["train_batches"]) if repeat and "train_batches" in CHANGES else data
        )

    def receiver_fn():
        serialized = v1.placeholder(tf.string, [None])
        spec = transform.raw_feature_spec()
        del spec["tips"]
        raw = tf.io.parse_example(serialized, spec)
        if CHANGES.get("export_fails"):
            raise OSError("no space left on the device")
        return tf.estimator.export.ServingInputReceiver(
            transform.transform_raw_features(raw), {"examples": serialized}
        )

    def eval_receiver_fn():
        serialized = v1.placeholder(tf.string, [None])
        features = tf.io.parse_example(serialized, transform.raw_feature_spec())
        features.update(transform.transform_raw_features(features))
        return tfma.export.EvalInputReceiver(
            features=features, labels=features[LABEL], receiver_tensors={"examples": serialized}
        )

    exporter = CHANGES.get("exporter", tf.estimator.FinalExporter)
    returned = {
        "estimator": _estimator(CHANGES.get("model_dir", fn_args.serving_model_dir)),
        "train_spec": tf.estimator.TrainSpec(
            lambda params: input_fn(fn_args.train_files, True, params),
            max_steps=fn_args.train_steps,
        ),
        "eval_spec": tf.estimator.EvalSpec(
            lambda params: input_fn(fn_args.eval_files, CHANGES.get("eval_repeats", False), params),
            steps=fn_args.eval_steps,
            exporters=exporter("small", receiver_fn),
            throttle_secs=0,
        ),
        "eval_input_receiver_fn": eval_receiver_fn,
    }
    return CHANGES.get("returned", lambda value: value)(returned)
