"""Lists the names of `tf.estimator`: those of its public API, and of its package's modules.

Plain data for `doctor`, which finds the names in programs, and `compat`, which restores them.
"""

from typing import Final

_LISTED: Final = {
    "canned.baseline": (
        "BaselineClassifier BaselineClassifierV2 BaselineEstimator BaselineEstimatorV2 BaselineRegressor "
        "BaselineRegressorV2"
    ),
    "canned.dnn": (
        "DNNClassifier DNNClassifierV2 DNNEstimator DNNEstimatorV2 DNNRegressor DNNRegressorV2 dnn_logit_fn_builder"
    ),
    "canned.dnn_linear_combined": (
        "DNNLinearCombinedClassifier DNNLinearCombinedClassifierV2 DNNLinearCombinedEstimator "
        "DNNLinearCombinedEstimatorV2 DNNLinearCombinedRegressor DNNLinearCombinedRegressorV2"
    ),
    "canned.kmeans": "KMeansClustering",
    "canned.linear": (
        "LinearClassifier LinearClassifierV2 LinearEstimator LinearEstimatorV2 LinearRegressor LinearRegressorV2 "
        "LinearSDCA linear_logit_fn_builder"
    ),
    "canned.metric_keys": "MetricKeys",
    "canned.parsing_utils": (
        "classifier_parse_example_spec classifier_parse_example_spec_v2 regressor_parse_example_spec "
        "regressor_parse_example_spec_v2"
    ),
    "canned.prediction_keys": "PredictionKeys",
    "canned.rnn": "RNNClassifier RNNEstimator",
    "early_stopping": (
        "make_early_stopping_hook read_eval_metrics stop_if_higher_hook stop_if_lower_hook stop_if_no_decrease_hook "
        "stop_if_no_increase_hook"
    ),
    "estimator": "Estimator EstimatorV2 VocabInfo WarmStartSettings",
    "estimator_lib": (
        "BaselineClassifier BaselineEstimator BaselineRegressor BestExporter BinaryClassHead CheckpointSaverHook "
        "CheckpointSaverListener DNNClassifier DNNEstimator DNNLinearCombinedClassifier DNNLinearCombinedEstimator "
        "DNNLinearCombinedRegressor DNNRegressor Estimator EstimatorSpec EvalSpec Exporter FeedFnHook FinalExporter "
        "FinalOpsHook GlobalStepWaiterHook Head InMemoryEvaluatorHook KMeansClustering LatestExporter "
        "LinearClassifier LinearEstimator LinearRegressor LinearSDCA LoggingTensorHook LogisticRegressionHead "
        "ModeKeys MultiClassHead MultiHead MultiLabelHead NanLossDuringTrainingError NanTensorHook "
        "PoissonRegressionHead ProfilerHook RNNClassifier RNNEstimator RegressionHead RunConfig SecondOrStepTimer "
        "SessionRunArgs SessionRunContext SessionRunHook SessionRunValues StepCounterHook StopAtStepHook "
        "SummarySaverHook TPUEstimator TaskType TrainSpec VocabInfo WarmStartSettings add_metrics call_logit_fn "
        "classifier_parse_example_spec dnn_logit_fn_builder linear_logit_fn_builder make_early_stopping_hook "
        "make_stop_at_checkpoint_step_hook model_to_estimator read_eval_metrics regressor_parse_example_spec "
        "stop_if_higher_hook stop_if_lower_hook stop_if_no_decrease_hook stop_if_no_increase_hook train_and_evaluate"
    ),
    "export.export": (
        "ServingInputReceiver SupervisedInputReceiver TensorServingInputReceiver UnsupervisedInputReceiver "
        "build_parsing_serving_input_receiver_fn build_raw_serving_input_receiver_fn "
        "build_raw_supervised_input_receiver_fn build_supervised_input_receiver_fn_from_input_fn"
    ),
    "export.export_lib": (
        "ClassificationOutput EvalOutput ExportOutput PredictOutput RegressionOutput ServingInputReceiver "
        "SupervisedInputReceiver TensorServingInputReceiver TrainOutput UnsupervisedInputReceiver "
        "build_parsing_serving_input_receiver_fn build_raw_serving_input_receiver_fn "
        "build_raw_supervised_input_receiver_fn build_supervised_input_receiver_fn_from_input_fn"
    ),
    "export.export_output": (
        "ClassificationOutput EvalOutput ExportOutput PredictOutput RegressionOutput TrainOutput"
    ),
    "exporter": "BestExporter Exporter FinalExporter LatestExporter",
    "extenders": "add_metrics",
    "head.base_head": "Head",
    "head.binary_class_head": "BinaryClassHead",
    "head.multi_class_head": "MultiClassHead",
    "head.multi_head": "MultiHead",
    "head.multi_label_head": "MultiLabelHead",
    "head.regression_head": "LogisticRegressionHead PoissonRegressionHead RegressionHead",
    "hooks.basic_session_run_hooks": (
        "CheckpointSaverHook CheckpointSaverListener FeedFnHook FinalOpsHook GlobalStepWaiterHook LoggingTensorHook "
        "NanLossDuringTrainingError NanTensorHook ProfilerHook SecondOrStepTimer StepCounterHook StopAtStepHook "
        "SummarySaverHook"
    ),
    "hooks.hooks": "InMemoryEvaluatorHook make_stop_at_checkpoint_step_hook",
    "hooks.session_run_hook": ("SessionRunArgs SessionRunContext SessionRunHook SessionRunValues"),
    "inputs.inputs": "numpy_input_fn pandas_input_fn",
    "inputs.numpy_io": "numpy_input_fn",
    "inputs.pandas_io": "pandas_input_fn",
    "keras_lib": "model_to_estimator",
    "mode_keys": "ModeKeys",
    "model_fn": "EstimatorSpec ModeKeys call_logit_fn",
    "run_config": "RunConfig TaskType",
    "tpu._tpu_estimator_embedding": "EmbeddingConfigSpec",
    "tpu.tpu_config": "InputPipelineConfig RunConfig TPUConfig",
    "tpu.tpu_context": "TPUContext",
    "tpu.tpu_estimator": (
        "BatchConfig ExportSavedModelApiVersion TPUEstimator TPUEstimatorSpec call_computation "
        "export_estimator_savedmodel inference_on_tpu model_fn_inference_on_tpu"
    ),
    "training": "EvalSpec TrainSpec train_and_evaluate",
    # Private, but used by AdaNet and OpenNMT-tf.
    "util": "fn_args parse_input_fn_result",
}
MODULES: Final = {module: tuple(names.split()) for module, names in _LISTED.items()}
"""Module below `tensorflow_estimator.python.estimator` -> its public names, in either API's form."""

SUBMODULES: Final = ("experimental", "export", "inputs", "tpu")
"""Modules of the API; TensorFlow 2's has only the first two."""

# Names that `estimator_lib` had in addition to the API's root.
_NOT_AT_THE_ROOT: Final = (
    "InMemoryEvaluatorHook KMeansClustering LinearSDCA RNNClassifier RNNEstimator TPUEstimator TaskType "
    "call_logit_fn dnn_logit_fn_builder linear_logit_fn_builder make_early_stopping_hook "
    "make_stop_at_checkpoint_step_hook model_to_estimator read_eval_metrics stop_if_higher_hook "
    "stop_if_lower_hook stop_if_no_decrease_hook stop_if_no_increase_hook"
)
NAMES: Final = frozenset(MODULES["estimator_lib"]).difference(_NOT_AT_THE_ROOT.split())
"""Classes and functions of both `tf.estimator` and `tf.compat.v1.estimator`."""

TPU_NAMES: Final = (
    "InputPipelineConfig",
    "RunConfig",
    "TPUConfig",
    "TPUEstimator",
    "TPUEstimatorSpec",
)
"""Classes of `tf.compat.v1.estimator.tpu`."""

EXPORT_NAMES: Final = (
    "ClassificationOutput",
    "EvalOutput",
    "ExportOutput",
    "PredictOutput",
    "RegressionOutput",
    "ServingInputReceiver",
    "TensorServingInputReceiver",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
)
"""Classes and functions of `tf.estimator.export`."""
