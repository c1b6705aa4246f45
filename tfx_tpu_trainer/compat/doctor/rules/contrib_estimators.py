"""Rules for the estimators of tf.contrib: learn, estimator, tpu with its private modules, clusters, distribute."""

from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Advice, Verdict, by_hand, joined, moved

_THEME: Final = "contrib"
_LEARN: Final = "tensorflow.contrib.learn"
_V1: Final = "tensorflow.compat.v1"
_FITTED: Final = (
    "It had a fit(), other feature columns, and as its loss the mean over the rows; tf.compat.v1.estimator's is the "
    'sum by default, and tf.losses.Reduction.SUM_OVER_BATCH_SIZE for "loss_reduction" there is the mean.'
)
_CANNED: Final = {
    "DNN": "(hidden_units, feature_columns=[tf.feature_column.numeric_column(...)])",
    "Linear": "(feature_columns=[tf.feature_column.numeric_column(...)])",
    "DNNLinearCombined": "(linear_feature_columns=[...], dnn_feature_columns=[...], dnn_hidden_units=[...])",
}
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
# Names that are also in a module of contrib.learn.
_READERS: Final = {
    "read_batch_examples": _EXAMPLES,
    "read_batch_features": _FEATURES,
    "read_batch_record_features": _FEATURES,
}

RULES: Final[dict[str, Advice]] = joined(
    moved(
        _LEARN,
        f"{_V1}.estimator",
        "ModeKeys ModeKeys.INFER:ModeKeys.PREDICT",
        says="TensorFlow 2 has no tf.contrib; tf.estimator has this name.",
    ),
    moved(_LEARN, f"{_V1}.train", "NanLossDuringTrainingError"),
    by_hand(
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
            **{
                f"{model}{kind}": (_FITTED, f"tf.estimator.{model}{kind}{arguments}")
                for model, arguments in _CANNED.items()
                for kind in ("Classifier", "Regressor")
            },
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
)

_ESTIMATOR: Final = "tensorflow.contrib.estimator"
_V1_ESTIMATOR: Final = "tensorflow.compat.v1.estimator"
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

ESTIMATOR_RULES: Final[dict[str, Advice]] = joined(
    moved(
        _ESTIMATOR,
        _V1_ESTIMATOR,
        (
            "BaselineEstimator DNNClassifierWithLayerAnnotations:DNNClassifier DNNEstimator DNNLinearCombinedEstimator "
            "DNNRegressorWithLayerAnnotations:DNNRegressor LinearEstimator add_metrics"
        ),
        says=_IN_ESTIMATOR,
    ),
    moved(
        _ESTIMATOR,
        f"{_V1_ESTIMATOR}.experimental",
        (
            "InMemoryEvaluatorHook build_raw_supervised_input_receiver_fn call_logit_fn dnn_logit_fn_builder "
            "linear_logit_fn_builder make_early_stopping_hook make_stop_at_checkpoint_step_hook stop_if_higher_hook "
            "stop_if_lower_hook stop_if_no_decrease_hook stop_if_no_increase_hook"
        ),
        says=_IN_ESTIMATOR,
    ),
    moved(
        _ESTIMATOR,
        "tfx_tpu_trainer.estimator",
        (
            "build_supervised_input_receiver_fn_from_input_fn:export.build_supervised_input_receiver_fn_from_input_fn "
            "forward_features read_eval_metrics:hooks.read_eval_metrics"
        ),
        says=_OURS,
    ),
    by_hand(
        _ESTIMATOR,
        {
            "": "look for the name in tf.estimator, then in tfx_tpu_trainer.estimator",
            "SavedModelEstimator": (
                "It continued a training from the graph of an export.",
                "tf.estimator.Estimator(model_fn, warm_start_from=export_dir) with the model_fn that was exported",
            ),
            "TowerOptimizer": (
                "It summed the gradients of replicate_model_fn's copies.",
                "the plain optimizer, under tf.estimator.RunConfig(train_distribute=tf.distribute.MirroredStrategy())",
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
    by_hand(
        _ESTIMATOR,
        {
            "binary_classification_head": "tf.estimator.BinaryClassHead(weight_column=..., thresholds=...)",
            "logistic_regression_head": "tf.estimator.LogisticRegressionHead(weight_column=...)",
            "multi_class_head": "tf.estimator.MultiClassHead(n_classes, weight_column=...)",
            "multi_head": "tf.estimator.MultiHead([...], head_weights=...)",
            "multi_label_head": "tf.estimator.MultiLabelHead(n_classes, weight_column=...)",
            "poisson_regression_head": "tf.estimator.PoissonRegressionHead(label_dimension=..., weight_column=...)",
            "regression_head": "tf.estimator.RegressionHead(label_dimension=..., weight_column=...)",
        },
        says=_HEAD,
    ),
)

_TPU: Final = "tensorflow.contrib.tpu"
_DISTRIBUTE: Final = "tensorflow.contrib.distribute"

TPU_RULES: Final[dict[str, Advice]] = joined(
    moved(
        _TPU,
        "tfx_tpu_trainer.estimator.tpu",
        (
            "BatchConfig CrossShardOptimizer ExportSavedModelApiVersion InputPipelineConfig RunConfig TPUConfig "
            "TPUEstimator TPUEstimatorSpec export_estimator_savedmodel"
        ),
        says="TensorFlow 2 has no tf.contrib; tfx_tpu_trainer.estimator.tpu has this name with the same arguments.",
    ),
    moved(
        _TPU,
        "tensorflow.compat.v1.tpu",
        (
            "batch_parallel bfloat16_scope core cross_replica_sum initialize_system outside_compilation "
            "replicate rewrite shard shutdown_system"
        ),
        says="TensorFlow 2 has no tf.contrib; this name is in tf.compat.v1.tpu.",
    ),
    moved(
        _TPU,
        "tensorflow.tpu.experimental",
        "DeviceAssignment Topology",
        says="TensorFlow 2 has no tf.contrib; this name is in tf.tpu.experimental.",
    ),
    moved(
        "tensorflow.contrib.cluster_resolver",
        "tensorflow.distribute.cluster_resolver",
        (
            "ClusterResolver GceClusterResolver:GCEClusterResolver KubernetesClusterResolver "
            "SimpleClusterResolver SlurmClusterResolver TFConfigClusterResolver UnionResolver "
            "UnionClusterResolver:UnionResolver"
        ),
        says="TensorFlow 2 has no tf.contrib; the resolvers are in tf.distribute.cluster_resolver.",
    ),
    moved(
        "tensorflow.contrib.cluster_resolver",
        "tfx_tpu_trainer.estimator.tpu",
        "TPUClusterResolver",
        says=(
            "TensorFlow 2 has no tf.contrib; tfx_tpu_trainer.estimator.tpu has this resolver, which also finds "
            "emulated cores."
        ),
    ),
    moved(
        _DISTRIBUTE,
        "tensorflow.distribute",
        "CrossDeviceOps DistributionStrategy:Strategy OneDeviceStrategy Strategy has_strategy",
        says="TensorFlow 2 has no tf.contrib; this name is in tf.distribute.",
    ),
    by_hand(
        _TPU,
        {
            "": "look for the name in tfx_tpu_trainer.estimator.tpu, tf.compat.v1.tpu or tf.tpu.experimental",
            "keras_to_tpu_model": (
                "Gone since TensorFlow 2.0.",
                (
                    "estimator = tfx_tpu_trainer.estimator.keras_to_estimator(model, ...) runs a compiled Keras model "
                    "on cores; or build and fit the model under tf.distribute.TPUStrategy(...).scope()"
                ),
            ),
            "TPUDistributionStrategy": (
                "Gone since TensorFlow 2.0.",
                "tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver(...))",
            ),
            "AsyncCheckpointSaverHook": (
                "It wrote checkpoints in a thread; it has no replacement.",
                "RunConfig(save_checkpoints_steps=...): checkpoints are written between loops",
            ),
            "TPUInfeedOutfeedSessionHook": (
                "No infeed needs a thread: batches are plain inputs of the loop.",
                "leave the hook out",
            ),
        },
    ),
    by_hand(
        _DISTRIBUTE,
        {
            "": "look for the name in tf.distribute",
            "MirroredStrategy": (
                "TensorFlow 2 has no tf.contrib; num_gpus became devices.",
                "tf.distribute.MirroredStrategy(devices=[...]), or without arguments for all GPUs",
            ),
            "CollectiveAllReduceStrategy": "tf.distribute.MultiWorkerMirroredStrategy()",
            "ParameterServerStrategy": "tf.compat.v1.distribute.experimental.ParameterServerStrategy()",
            "TPUStrategy": "tf.distribute.TPUStrategy(resolver), given as RunConfig(train_distribute=...)",
            "DistributeConfig": (
                "Gone since TensorFlow 2.0.",
                "RunConfig(train_distribute=..., eval_distribute=...)",
            ),
        },
    ),
    by_hand(
        "tensorflow.contrib",
        {"cluster_resolver": "look for the name in tf.distribute.cluster_resolver"},
    ),
)

# Modules that a module of today replaces, name by name.
MODULES: Final = {
    _TPU: "tfx_tpu_trainer.estimator.tpu",
    "tensorflow.contrib.cluster_resolver": "tensorflow.distribute.cluster_resolver",
}

_PRIVATE: Final = "tensorflow.contrib.tpu.python"
OURS: Final = "tfx_tpu_trainer.estimator.tpu"
_OUR_NAMES: Final = (
    "BatchConfig CrossShardOptimizer EmbeddingConfigSpec ExportSavedModelApiVersion InputPipelineConfig RunConfig "
    "TPUClusterResolver TPUConfig TPUEstimator TPUEstimatorSpec call_computation experimental "
    "export_estimator_savedmodel from_estimator inference_on_tpu model_fn_inference_on_tpu"
)
OUR_NAMES: Final = frozenset(_OUR_NAMES.split())
"""The public names of our own module, which imports of the old module are changed to, name by name."""

# Modules that TensorFlow now has outside tf.contrib.
_SAME_MODULES: Final = (
    "bfloat16 device_assignment feature_column functional tensor_tracer topology tpu_feed tpu_function tpu_sharding "
    "tpu_system_metadata training_loop"
)
_MOVED: Final = {
    **{
        f"{_PRIVATE}.tpu.{module}": f"tensorflow.python.tpu.{module}"
        for module in _SAME_MODULES.split()
    },
    f"{_PRIVATE}.ops.tpu_ops": "tensorflow.python.tpu.ops.tpu_ops",
    f"{_PRIVATE}.tpu.tpu": "tensorflow.compat.v1.tpu",
}
_GONE: Final = {
    "async_checkpoint": "RunConfig(save_checkpoints_steps=...): checkpoints are written between loops",
    "error_handling": "leave it out: an error in a step ends the session that ran it, and is raised",
    "keras_support": (
        "tfx_tpu_trainer.estimator.keras_to_estimator(model, ...), or tf.distribute.TPUStrategy for a Keras model"
    ),
    "session_support": "leave it out: a lost TPU is an error of the session",
    "tpu_embedding": "tpu.EmbeddingConfigSpec, or a table in model_fn",
    "tpu_infeed": "leave it out: batches are plain inputs of the loop",
    "util": "leave it out: they were internal helpers of the estimator",
}

PRIVATE_TPU_RULES: Final[dict[str, Advice]] = joined(
    {
        old: Advice(
            _THEME,
            Verdict.EDIT,
            "TensorFlow 2 has no tf.contrib; this module moved.",
            edit="from {0} import {2}".format(*new.rpartition(".")),
            becomes=new,
        )
        for old, new in _MOVED.items()
    },
    by_hand(
        f"{_PRIVATE}.tpu",
        _GONE,
        says="A private module of tf.contrib.tpu; it has no replacement.",
    ),
)

_EMBEDDINGS_THEME: Final = "embeddings"

_V1_PARAMETERS: Final = "tensorflow.compat.v1.tpu.experimental"

_PARAMETERS: Final = (
    "AdagradParameters AdamParameters FtrlParameters StochasticGradientDescentParameters"
)

EMBEDDINGS_RULES: Final[dict[str, Advice]] = joined(
    {
        f"{_V1_PARAMETERS}.{name}": Advice(
            _EMBEDDINGS_THEME,
            Verdict.WORKS,
            "TensorFlow 2.16 removed it; tfx_tpu_trainer.compat restores it. Without compat: "
            f"tfx_tpu_trainer.estimator.tpu.experimental.{name}.",
        )
        for name in _PARAMETERS.split()
    },
    moved(
        "tensorflow.tpu.experimental",
        _V1_PARAMETERS,
        _PARAMETERS,
        says="TensorFlow 2 had it only in tf.compat.v1, where tfx_tpu_trainer.compat restores it.",
        theme=_EMBEDDINGS_THEME,
    ),
    moved(
        "tensorflow.contrib.tpu",
        "tfx_tpu_trainer.estimator.tpu.experimental",
        "AdagradParameters AdamParameters FeatureConfig StochasticGradientDescentParameters TableConfig",
        says="TensorFlow 2 has no tf.contrib; tfx_tpu_trainer.estimator.tpu.experimental has this name.",
        theme=_EMBEDDINGS_THEME,
    ),
)
