"""tf.contrib.estimator and tf.contrib.learn, and the estimators that moved."""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.doctor.rules.advice import Advice, by_hand, moved

_THEME: Final = "contrib"
_ESTIMATOR: Final = "tensorflow.contrib.estimator"
_LEARN: Final = "tensorflow.contrib.learn"
_IN_ESTIMATOR: Final = "TensorFlow 2 has no tf.contrib; tf.estimator has this name."
_HEAD: Final = "TensorFlow 2 has no tf.contrib; heads are classes of tf.estimator."

RULES: Final[dict[str, Advice]] = {
    **moved(
        _THEME,
        _IN_ESTIMATOR,
        _ESTIMATOR,
        "tensorflow.compat.v1.estimator",
        "BaselineEstimator DNNEstimator DNNLinearCombinedEstimator LinearEstimator add_metrics",
    ),
    **moved(
        _THEME,
        _IN_ESTIMATOR,
        _ESTIMATOR,
        "tensorflow.compat.v1.estimator.experimental",
        "InMemoryEvaluatorHook build_raw_supervised_input_receiver_fn call_logit_fn make_early_stopping_hook "
        "make_stop_at_checkpoint_step_hook stop_if_higher_hook stop_if_lower_hook stop_if_no_decrease_hook "
        "stop_if_no_increase_hook",
    ),
    **by_hand(
        _THEME,
        _ESTIMATOR,
        {
            "": ("TensorFlow 2 has no tf.contrib.", "look for the name in tf.estimator"),
            "binary_classification_head": (_HEAD, "tf.estimator.BinaryClassHead(...)"),
            "logistic_regression_head": (_HEAD, "tf.estimator.LogisticRegressionHead(...)"),
            "multi_class_head": (_HEAD, "tf.estimator.MultiClassHead(n_classes, ...)"),
            "multi_head": (_HEAD, "tf.estimator.MultiHead([...])"),
            "multi_label_head": (_HEAD, "tf.estimator.MultiLabelHead(n_classes, ...)"),
            "poisson_regression_head": (_HEAD, "tf.estimator.PoissonRegressionHead(...)"),
            "regression_head": (_HEAD, "tf.estimator.RegressionHead(...)"),
            "RNNClassifier": (
                "There are no canned estimators with recurrent layers.",
                "a model_fn with tf.keras.layers.GRU or LSTM, whose logits go to a head's create_estimator_spec",
            ),
            "RNNEstimator": (
                "There are no canned estimators with recurrent layers.",
                "a model_fn with tf.keras.layers.GRU or LSTM, whose logits go to a head's create_estimator_spec",
            ),
            "clip_gradients_by_norm": (
                "It wrapped an optimizer.",
                (
                    "clip in model_fn: gradients from compute_gradients(loss) through tf.clip_by_norm, then "
                    "apply_gradients"
                ),
            ),
            "forward_features": (
                "It added keys to the predictions.",
                'a model_fn that calls estimator.model_fn and puts features["key"] into the spec\'s predictions',
            ),
            "replicate_model_fn": (
                "It made one copy of a model for each GPU.",
                "RunConfig(train_distribute=tf.distribute.MirroredStrategy()) with the plain model_fn",
            ),
            "TowerOptimizer": (
                "It summed the gradients of replicate_model_fn's copies.",
                "the plain optimizer, under RunConfig(train_distribute=tf.distribute.MirroredStrategy())",
            ),
        },
    ),
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tf.estimator has this name.",
        _LEARN,
        "tensorflow.compat.v1.estimator",
        "ModeKeys",
    ),
    **by_hand(
        _THEME,
        _LEARN,
        {
            "": (
                (
                    "tf.contrib.learn was the estimators' first home; its classes take other arguments than "
                    "tf.estimator's."
                ),
                (
                    "write the model for tf.estimator: model_fn(features, labels, mode, params) that returns an "
                    "EstimatorSpec"
                ),
            ),
            "Estimator": (
                "Its model_fn returns a tuple or ModelFnOps, and fit() trains it.",
                (
                    "tf.estimator.Estimator(model_fn, model_dir, config, params), whose model_fn "
                    "returns a tf.estimator.EstimatorSpec; train(input_fn, max_steps=...) instead "
                    "of fit()"
                ),
            ),
            "Experiment": (
                "It combined training and evaluation.",
                (
                    "tf.estimator.train_and_evaluate(estimator, tf.estimator.TrainSpec(...), "
                    "tf.estimator.EvalSpec(...))"
                ),
            ),
            "learn_runner": (
                "It ran an Experiment.",
                "tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)",
            ),
            "RunConfig": (
                "Some of its arguments are gone.",
                "tf.estimator.RunConfig(model_dir=..., save_checkpoints_steps=..., session_config=...)",
            ),
            "DNNClassifier": (
                "It had a fit() and other feature columns.",
                "tf.estimator.DNNClassifier(hidden_units, feature_columns=[tf.feature_column...])",
            ),
            "LinearClassifier": (
                "It had a fit() and other feature columns.",
                "tf.estimator.LinearClassifier(feature_columns=[tf.feature_column...])",
            ),
            "DNNLinearCombinedClassifier": (
                "It had a fit() and other feature columns.",
                "tf.estimator.DNNLinearCombinedClassifier(linear_feature_columns=..., dnn_feature_columns=...)",
            ),
            "ModelFnOps": (
                "The result of a model_fn.",
                "tf.estimator.EstimatorSpec(mode, loss=..., ...)",
            ),
            "MetricSpec": (
                "It passed metrics to a contrib Estimator.",
                "eval_metric_ops of the EstimatorSpec, or tf.estimator.add_metrics(estimator, metric_fn)",
            ),
            "InputFnOps": (
                "The result of a serving input function.",
                "tf.estimator.export.ServingInputReceiver",
            ),
            "make_export_strategy": (
                "It passed exports to an Experiment.",
                'tf.estimator.LatestExporter("name", serving_input_receiver_fn) in EvalSpec(exporters=...)',
            ),
            "read_batch_examples": (
                "A queue-based reader.",
                "tf.data.TFRecordDataset(files).batch(batch_size)",
            ),
            "read_batch_features": (
                "A queue-based reader.",
                "tf.data.experimental.make_batched_features_dataset(files, batch_size, features)",
            ),
            "read_batch_record_features": (
                "A queue-based reader.",
                "tf.data.experimental.make_batched_features_dataset(files, batch_size, features)",
            ),
        },
    ),
}

MODULES: Final[dict[str, str]] = {}
