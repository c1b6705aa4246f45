"""tf.contrib.estimator, and the estimators that moved."""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.compat.doctor.rules.advice import Advice, by_hand, moved

_THEME: Final = "contrib"
_ESTIMATOR: Final = "tensorflow.contrib.estimator"
_V1: Final = "tensorflow.compat.v1.estimator"
_IN_ESTIMATOR: Final = "TensorFlow 2 has no tf.contrib; tf.estimator has this name."
_OURS: Final = "TensorFlow 2 has no tf.contrib; tfx_tpu_trainer.estimator has this name with the same arguments."
_HEAD: Final = (
    "TensorFlow 2 has no tf.contrib; heads are classes of tf.estimator. Give arguments by keyword, as their order is "
    'another one, and loss_reduction as "sum" or "sum_over_batch_size".'
)
_RECURRENT: Final = (
    "There are no canned estimators with recurrent layers.",
    "a model_fn with tf.keras.layers.GRU or LSTM, whose logits go to a head's create_estimator_spec",
)
_TREES: Final = (
    "TensorFlow 2.16 has no boosted trees.",
    "sklearn.ensemble.HistGradientBoostingClassifier or HistGradientBoostingRegressor",
)

RULES: Final[dict[str, Advice]] = {
    **moved(
        _THEME,
        _IN_ESTIMATOR,
        _ESTIMATOR,
        _V1,
        "BaselineEstimator DNNClassifierWithLayerAnnotations:DNNClassifier DNNEstimator DNNLinearCombinedEstimator "
        "DNNRegressorWithLayerAnnotations:DNNRegressor LinearEstimator add_metrics",
    ),
    **moved(
        _THEME,
        _IN_ESTIMATOR,
        _ESTIMATOR,
        f"{_V1}.experimental",
        "InMemoryEvaluatorHook build_raw_supervised_input_receiver_fn call_logit_fn dnn_logit_fn_builder "
        "linear_logit_fn_builder make_early_stopping_hook make_stop_at_checkpoint_step_hook stop_if_higher_hook "
        "stop_if_lower_hook stop_if_no_decrease_hook stop_if_no_increase_hook",
    ),
    **moved(
        _THEME,
        _OURS,
        _ESTIMATOR,
        "tfx_tpu_trainer.estimator",
        "build_supervised_input_receiver_fn_from_input_fn:export.build_supervised_input_receiver_fn_from_input_fn "
        "forward_features read_eval_metrics:hooks.read_eval_metrics",
    ),
    **by_hand(
        _THEME,
        _ESTIMATOR,
        {
            "": (
                "TensorFlow 2 has no tf.contrib.",
                "look for the name in tf.estimator, then in tfx_tpu_trainer.estimator",
            ),
            "SavedModelEstimator": (
                "It trained on from the graph of an export.",
                "tf.estimator.Estimator(model_fn, warm_start_from=export_dir) with the model_fn that was exported",
            ),
            "TowerOptimizer": (
                "It summed the gradients of replicate_model_fn's copies.",
                "the plain optimizer, under tf.estimator.RunConfig(train_distribute=tf.distribute.MirroredStrategy())",
            ),
            "binary_classification_head": (
                _HEAD,
                "tf.estimator.BinaryClassHead(weight_column=..., thresholds=...)",
            ),
            "boosted_trees_classifier_train_in_memory": _TREES,
            "boosted_trees_regressor_train_in_memory": _TREES,
            "clip_gradients_by_norm": (
                "It wrapped an optimizer, and clipped all gradients by their global norm.",
                (
                    "a subclass of the optimizer whose apply_gradients passes the gradients through "
                    "tf.clip_by_global_norm(gradients, clip_norm) first"
                ),
            ),
            "export_all_saved_models": (
                "It was a method of the estimator.",
                "estimator.experimental_export_all_saved_models(export_dir_base, input_receiver_fn_map)",
            ),
            "export_saved_model_for_mode": (
                "It was a method of the estimator.",
                "estimator.export_saved_model(export_dir_base, input_receiver_fn, experimental_mode=mode)",
            ),
            "logistic_regression_head": (
                _HEAD,
                "tf.estimator.LogisticRegressionHead(weight_column=...)",
            ),
            "multi_class_head": (
                _HEAD,
                "tf.estimator.MultiClassHead(n_classes, weight_column=...)",
            ),
            "multi_head": (_HEAD, "tf.estimator.MultiHead([...], head_weights=...)"),
            "multi_label_head": (
                _HEAD,
                "tf.estimator.MultiLabelHead(n_classes, weight_column=...)",
            ),
            "poisson_regression_head": (
                _HEAD,
                "tf.estimator.PoissonRegressionHead(label_dimension=..., weight_column=...)",
            ),
            "regression_head": (
                _HEAD,
                "tf.estimator.RegressionHead(label_dimension=..., weight_column=...)",
            ),
            "replicate_model_fn": (
                "It made one copy of a model for each GPU.",
                (
                    "the plain model_fn, under "
                    "tf.estimator.RunConfig(train_distribute=tf.distribute.MirroredStrategy())"
                ),
            ),
            "RNNClassifier": _RECURRENT,
            "RNNEstimator": _RECURRENT,
        },
    ),
}

MODULES: Final[dict[str, str]] = {}
