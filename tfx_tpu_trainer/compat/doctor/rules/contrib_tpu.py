"""Rules for tf.contrib.tpu with its private modules, tf.contrib.cluster_resolver and tf.contrib.distribute."""

from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Verdict
from tfx_tpu_trainer.compat.doctor.rules.advice import Advice, by_hand, joined, moved

_THEME: Final = "contrib"
_TPU: Final = "tensorflow.contrib.tpu"
_DISTRIBUTE: Final = "tensorflow.contrib.distribute"

RULES: Final[dict[str, Advice]] = joined(
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
OUR_NAMES: Final = frozenset(
    {
        "BatchConfig",
        "CrossShardOptimizer",
        "EmbeddingConfigSpec",
        "ExportSavedModelApiVersion",
        "InputPipelineConfig",
        "RunConfig",
        "TPUClusterResolver",
        "TPUConfig",
        "TPUEstimator",
        "TPUEstimatorSpec",
        "call_computation",
        "experimental",
        "export_estimator_savedmodel",
        "from_estimator",
        "inference_on_tpu",
        "model_fn_inference_on_tpu",
    }
)
"""The public names of our own module, which imports of the old module are changed to, name by name."""

# Modules that TensorFlow now has outside tf.contrib.
_MOVED: Final = {
    **{
        f"{_PRIVATE}.tpu.{module}": f"tensorflow.python.tpu.{module}"
        for module in (
            "bfloat16",
            "device_assignment",
            "feature_column",
            "functional",
            "tensor_tracer",
            "topology",
            "tpu_feed",
            "tpu_function",
            "tpu_sharding",
            "tpu_system_metadata",
            "training_loop",
        )
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
    {
        f"{_PRIVATE}.tpu.{module}": Advice(
            _THEME,
            Verdict.EDIT,
            "A private module of tf.contrib.tpu; it has no replacement.",
            edit,
        )
        for module, edit in _GONE.items()
    },
)


_EMBEDDINGS_THEME: Final = "embeddings"
_V1: Final = "tensorflow.compat.v1.tpu.experimental"
_PARAMETERS: Final = (
    "AdagradParameters AdamParameters FtrlParameters StochasticGradientDescentParameters"
)

EMBEDDINGS_RULES: Final[dict[str, Advice]] = joined(
    {
        f"{_V1}.{name}": Advice(
            _EMBEDDINGS_THEME,
            Verdict.WORKS,
            "TensorFlow 2.16 removed it; tfx_tpu_trainer.compat restores it. Without compat: "
            f"tfx_tpu_trainer.estimator.tpu.experimental.{name}.",
        )
        for name in _PARAMETERS.split()
    },
    moved(
        "tensorflow.tpu.experimental",
        _V1,
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
