"""tf.contrib.learn, the estimators' first home."""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.compat.doctor.rules.advice import Advice, by_hand, moved

_THEME: Final = "contrib"
_LEARN: Final = "tensorflow.contrib.learn"
_V1: Final = "tensorflow.compat.v1"
_FITTED: Final = (
    "It had a fit(), other feature columns, and as its loss the mean over the rows; tf.compat.v1.estimator's is the "
    'sum by default, and tf.losses.Reduction.SUM_OVER_BATCH_SIZE for "loss_reduction" there is the mean.'
)
_DNN: Final = "(hidden_units, feature_columns=[tf.feature_column.numeric_column(...)])"
_LINEAR: Final = "(feature_columns=[tf.feature_column.numeric_column(...)])"
_COMBINED: Final = (
    "(linear_feature_columns=[...], dnn_feature_columns=[...], dnn_hidden_units=[...])"
)
_EXAMPLES: Final = (
    "A queue-based reader.",
    "tf.data.TFRecordDataset(files).shuffle(1000).repeat().batch(batch_size)",
)
_FEATURES: Final = (
    "A queue-based reader.",
    "tf.data.experimental.make_batched_features_dataset(files, batch_size, features)",
)
_EXPORT_STRATEGY: Final = (
    "It passed exports to an Experiment.",
    (
        'tf.estimator.LatestExporter("name", serving_input_receiver_fn) in '
        "tf.estimator.EvalSpec(input_fn, exporters=...)"
    ),
)
_SERVING_INPUT: Final = (
    "It returned InputFnOps.",
    "tf.estimator.export.build_parsing_serving_input_receiver_fn(feature_spec)",
)
_VOCABULARY: Final = (
    "It made sequences of word ids.",
    "tf.compat.v2.keras.layers.TextVectorization(output_sequence_length=...), whose adapt(strings) learns the words",
)
# Names that are in a module of contrib.learn too.
_READERS: Final = {
    "read_batch_examples": _EXAMPLES,
    "read_batch_features": _FEATURES,
    "read_batch_record_features": _FEATURES,
}

RULES: Final[dict[str, Advice]] = {
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tf.estimator has this name.",
        _LEARN,
        f"{_V1}.estimator",
        "ModeKeys ModeKeys.INFER:ModeKeys.PREDICT",
    ),
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tf.compat.v1.train has this name.",
        _LEARN,
        f"{_V1}.train",
        "NanLossDuringTrainingError",
    ),
    **by_hand(
        _THEME,
        _LEARN,
        {
            "": (
                "It was the estimators' first home; its classes take other arguments than tf.estimator's.",
                (
                    "write the model for tf.estimator: model_fn(features, labels, mode, params) that returns a "
                    "tf.estimator.EstimatorSpec"
                ),
            ),
            "Estimator": (
                "Its model_fn returns a tuple or ModelFnOps, and fit() trains it.",
                (
                    "tf.estimator.Estimator(model_fn, model_dir, config, params), whose model_fn returns a "
                    "tf.estimator.EstimatorSpec; train(input_fn, max_steps=...) instead of fit()"
                ),
            ),
            "Experiment": (
                "It combined training and evaluation.",
                (
                    "tf.estimator.train_and_evaluate(estimator, tf.estimator.TrainSpec(input_fn, max_steps), "
                    "tf.estimator.EvalSpec(input_fn))"
                ),
            ),
            "learn_runner": (
                "It ran an Experiment.",
                "tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)",
            ),
            "RunConfig": (
                "Some of its arguments are gone.",
                (
                    "tf.estimator.RunConfig(model_dir=..., save_checkpoints_steps=..., session_config=...), with "
                    "num_cores and gpu_memory_fraction in the session_config"
                ),
            ),
            "DNNClassifier": (_FITTED, f"tf.estimator.DNNClassifier{_DNN}"),
            "DNNRegressor": (_FITTED, f"tf.estimator.DNNRegressor{_DNN}"),
            "LinearClassifier": (_FITTED, f"tf.estimator.LinearClassifier{_LINEAR}"),
            "LinearRegressor": (_FITTED, f"tf.estimator.LinearRegressor{_LINEAR}"),
            "DNNLinearCombinedClassifier": (
                _FITTED,
                f"tf.estimator.DNNLinearCombinedClassifier{_COMBINED}",
            ),
            "DNNLinearCombinedRegressor": (
                _FITTED,
                f"tf.estimator.DNNLinearCombinedRegressor{_COMBINED}",
            ),
            "ModelFnOps": (
                "The result of a model_fn.",
                "tf.estimator.EstimatorSpec(mode, predictions=..., loss=..., train_op=...)",
            ),
            "MetricSpec": (
                "It passed metrics to a contrib Estimator.",
                (
                    "eval_metric_ops of the tf.estimator.EstimatorSpec, or "
                    "tf.estimator.add_metrics(estimator, metric_fn)"
                ),
            ),
            "InputFnOps": (
                "The result of a serving input function.",
                "tf.estimator.export.ServingInputReceiver(features, receiver_tensors)",
            ),
            "build_parsing_serving_input_fn": _SERVING_INPUT,
            "utils.build_parsing_serving_input_fn": _SERVING_INPUT,
            "utils.input_fn_utils.build_parsing_serving_input_fn": _SERVING_INPUT,
            "make_export_strategy": _EXPORT_STRATEGY,
            "utils.make_export_strategy": _EXPORT_STRATEGY,
            "utils.saved_model_export_utils.make_export_strategy": _EXPORT_STRATEGY,
            "preprocessing.VocabularyProcessor": _VOCABULARY,
            "VocabularyProcessor": _VOCABULARY,
            "preprocessing": (
                "It prepared strings and categories.",
                "the preprocessing layers of tf.compat.v2.keras.layers",
            ),
            **_READERS,
            **{f"io.{name}": told for name, told in _READERS.items()},
        },
    ),
}

MODULES: Final[dict[str, str]] = {}
