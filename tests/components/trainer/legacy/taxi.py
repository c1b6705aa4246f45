"""A taxi module as written for TFX's Estimator executor, which knows nothing of this package."""

import tensorflow as tf
import tensorflow_model_analysis as tfma
import tensorflow_transform as tft
from tensorflow_transform.tf_metadata import schema_utils

_NUMBERS = ("trip_miles", "fare", "trip_seconds")
_VOCABULARIES = ("payment_type", "company")
_BUCKETED = ("pickup_latitude", "pickup_longitude", "dropoff_latitude", "dropoff_longitude")
_CATEGORIES = {"trip_start_hour": 24, "trip_start_day": 31, "trip_start_month": 13}
_LABEL_KEY = "tips"

_VOCABULARY_SIZE = 1000
_OOV_SIZE = 10
_BUCKETS = 10
_BATCH_SIZE = 40


def _transformed_name(key):
    return key + "_xf"


def _get_raw_feature_spec(schema):
    return schema_utils.schema_as_feature_spec(schema).feature_spec


def _gzip_reader_fn(filenames):
    return tf.data.TFRecordDataset(filenames, compression_type="GZIP")


def _identity_column(key, buckets):
    return tf.feature_column.categorical_column_with_identity(
        _transformed_name(key), num_buckets=buckets, default_value=0
    )


def _build_estimator(config, hidden_units=None, warm_start_from=None):
    deep = [tf.feature_column.numeric_column(_transformed_name(key), shape=()) for key in _NUMBERS]
    wide = [_identity_column(key, _VOCABULARY_SIZE + _OOV_SIZE) for key in _VOCABULARIES]
    wide += [_identity_column(key, _BUCKETS) for key in _BUCKETED]
    wide += [_identity_column(key, size) for key, size in _CATEGORIES.items()]
    return tf.estimator.DNNLinearCombinedClassifier(
        config=config,
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_hidden_units=hidden_units or [100, 70, 50, 25],
        warm_start_from=warm_start_from,
    )


def _example_serving_receiver_fn(transform_output, schema):
    raw_feature_spec = _get_raw_feature_spec(schema)
    raw_feature_spec.pop(_LABEL_KEY)
    raw_input_fn = tf.estimator.export.build_parsing_serving_input_receiver_fn(
        raw_feature_spec, default_batch_size=None
    )
    serving_input_receiver = raw_input_fn()
    transformed = transform_output.transform_raw_features(serving_input_receiver.features)
    return tf.estimator.export.ServingInputReceiver(
        transformed, serving_input_receiver.receiver_tensors
    )


def _eval_input_receiver_fn(transform_output, schema):
    serialized = tf.compat.v1.placeholder(
        dtype=tf.string, shape=[None], name="input_example_tensor"
    )
    features = tf.io.parse_example(serialized, _get_raw_feature_spec(schema))
    transformed = transform_output.transform_raw_features(features)
    features.update(transformed)
    return tfma.export.EvalInputReceiver(
        features=features,
        receiver_tensors={"examples": serialized},
        labels=transformed[_transformed_name(_LABEL_KEY)],
    )


def _input_fn(file_pattern, transform_output, batch_size):
    return tf.data.experimental.make_batched_features_dataset(
        file_pattern=file_pattern,
        batch_size=batch_size,
        features=transform_output.transformed_feature_spec().copy(),
        reader=_gzip_reader_fn,
        label_key=_transformed_name(_LABEL_KEY),
    )


def trainer_fn(trainer_fn_args, schema):
    transform_output = tft.TFTransformOutput(trainer_fn_args.transform_output)
    train_spec = tf.estimator.TrainSpec(
        lambda: _input_fn(trainer_fn_args.train_files, transform_output, _BATCH_SIZE),
        max_steps=trainer_fn_args.train_steps,
    )
    exporter = tf.estimator.FinalExporter(
        "chicago-taxi", lambda: _example_serving_receiver_fn(transform_output, schema)
    )
    eval_spec = tf.estimator.EvalSpec(
        lambda: _input_fn(trainer_fn_args.eval_files, transform_output, _BATCH_SIZE),
        steps=trainer_fn_args.eval_steps,
        exporters=[exporter],
        name="chicago-taxi-eval",
    )
    run_config = tf.estimator.RunConfig(save_checkpoints_steps=999, keep_checkpoint_max=1)
    estimator = _build_estimator(
        hidden_units=[max(2, int(100 * 0.7**layer)) for layer in range(4)],
        config=run_config.replace(model_dir=trainer_fn_args.serving_model_dir),
        warm_start_from=trainer_fn_args.base_model,
    )
    return {
        "estimator": estimator,
        "train_spec": train_spec,
        "eval_spec": eval_spec,
        "eval_input_receiver_fn": lambda: _eval_input_receiver_fn(transform_output, schema),
    }
