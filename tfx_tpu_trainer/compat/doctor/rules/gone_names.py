"""Lists names of TensorFlow 1.15 and of Keras that TensorFlow 2.16 no longer has, public and private.

The public ones come from a comparison of TensorFlow 1.15.5 with 2.16, without tf.contrib; 2.15 lacked only one of
them. A test compares the tables with the installed TensorFlow. Queue-based input still exists; tf.data replaces it.
"""

from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Advice, Verdict, by_hand, joined, moved

_LEAVE_OUT: Final = "leave it out; TensorFlow's profiler shows the input pipeline"
_SCIKIT: Final = "the package scikeras"
_POLICY: Final = 'tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")'

GONE: Final = {
    "config.experimental_list_devices": "tf.config.list_logical_devices()",
    "data.experimental.CheckpointInputPipelineHook": (
        "tfx_tpu_trainer.estimator.hooks.CheckpointInputPipelineHook; better "
        "RunConfig(save_input_position=True)"
    ),
    "data.experimental.MapVectorizationOptions": "leave it out: TensorFlow chooses by itself",
    "data.experimental.StatsAggregator": _LEAVE_OUT,
    "data.experimental.StatsOptions": _LEAVE_OUT,
    "data.experimental.bytes_produced_stats": _LEAVE_OUT,
    "data.experimental.latency_stats": _LEAVE_OUT,
    "keras.experimental.LinearCosineDecay": "tf.compat.v1.train.linear_cosine_decay",
    "keras.experimental.NoisyLinearCosineDecay": "tf.compat.v1.train.noisy_linear_cosine_decay",
    "keras.experimental.PeepholeLSTMCell": "tf.compat.v1.nn.rnn_cell.LSTMCell(..., use_peepholes=True)",
    "keras.experimental.export_saved_model": "model.save(path), or model.export(path)",
    "keras.experimental.load_from_saved_model": "tf.keras.models.load_model(path)",
    "keras.mixed_precision.experimental": _POLICY,
    "keras.utils.HDF5Matrix": "a tf.data.Dataset.from_generator that reads the file with h5py",
    "keras.utils.convert_all_kernels_in_model": "leave it out: it converted weights of Theano",
    "keras.utils.multi_gpu_model": "tf.distribute.MirroredStrategy",
    "keras.wrappers": _SCIKIT,
    "lite.experimental.nn": "tf.keras.layers.LSTM, which TensorFlow Lite converts unchanged",
    "lite.experimental.get_potentially_supported_ops": "tf.lite.experimental.Analyzer",
    "pywrap_tensorflow": "tf.compat.v1.train.NewCheckpointReader(path) for its reader",
}

RULES: Final[dict[str, Advice]] = {
    f"tensorflow{version}.{name}": Advice(
        "names",
        Verdict.EDIT,
        "TensorFlow 2.16 no longer has this name, not even in tf.compat.v1.",
        edit,
    )
    for name, edit in GONE.items()
    for version in ("", ".compat.v1", ".compat.v2")
}


_THEME: Final = "private names"
_PYTHON: Final = "tensorflow.python"
_V1: Final = "tensorflow.compat.v1"
_SAYS: Final = "A private {0} of {1} that TensorFlow 2.16 no longer has."
_CHECKPOINTS: Final = (
    "tf.train.Checkpoint, tf.Module, or tf.keras.layers.Layer, whichever it is for"
)
_LAYERS: Final = "Layer, Input, InputSpec are in tf.keras.layers, Model in tf.keras"
_ESTIMATORS_OWN: Final = "leave it out: it was an internal helper of the estimator"

# Modules whose names another module has.
MOVED_MODULES: Final = {
    **{
        f"{_PYTHON}.{old}": new
        for old, new in {
            "distribute.distribution_strategy_context": f"{_PYTHON}.distribute.distribute_lib",
            "feature_column.dense_features": f"{_V1}.keras.layers",
            "feature_column.dense_features_v2": "tensorflow.keras.layers",
            "platform.logging": f"{_V1}.logging",
            "summary.event_accumulator": ("tensorboard.backend.event_processing.event_accumulator"),
            "training.device_util": f"{_PYTHON}.distribute.device_util",
            "training.distribution_strategy_context": f"{_PYTHON}.distribute.distribute_lib",
            "training.tracking.base": f"{_PYTHON}.trackable.base",
            "training.tracking.data_structures": f"{_PYTHON}.trackable.data_structures",
            "training.tracking.graph_view": f"{_PYTHON}.checkpoint.graph_view",
            "training.tracking.util": f"{_PYTHON}.checkpoint.checkpoint",
            "training.training_ops": f"{_PYTHON}.ops.gen_training_ops",
        }.items()
    },
    **{
        f"keras.{package}.{module}": f"keras.{package}"
        for package, modules in {
            "layers": (
                "advanced_activations convolutional core embeddings merge noise normalization pooling recurrent "
                "wrappers"
            ),
            "utils": "data_utils generic_utils np_utils vis_utils",
        }.items()
        for module in modules.split()
    },
    "keras.backend.tensorflow_backend": "keras.backend",
    "keras.callbacks.callbacks": "keras.callbacks",
    "keras.objectives": "keras.losses",
}

# Names of modules that still exist: the names by their module and its replacement, `old:new` if they differ.
_MOVED_NAMES: Final = {
    ("feature_column.feature_column_lib", f"{_V1}.keras.layers"): "DenseFeatures",
    ("feature_column.feature_column_lib", f"{_V1}.keras.experimental"): "SequenceFeatures",
    ("feature_column.feature_column_v2", f"{_V1}.keras.layers"): "DenseFeatures",
    ("framework.graph_util", f"{_V1}.graph_util"): "convert_variables_to_constants",
    ("framework.ops", "tensorflow"): "IndexedSlices Tensor register_tensor_conversion_function",
    ("framework.ops", _V1): "Session convert_to_tensor_or_indexed_slices",
    ("ops.array_ops", "tensorflow"): "stack unstack",
    ("ops.control_flow_ops", "tensorflow"): "Assert:debugging.Assert switch_case",
    ("ops.control_flow_ops", _V1): "case cond while_loop",
    ("ops.summary_ops_v2", f"{_V1}.summary"): "all_summary_ops:all_v2_summary_ops",
    ("ops.variable_scope", _V1): (
        "disable_resource_variables enable_resource_variables resource_variables_enabled variable:Variable"
    ),
    ("ops.variables", _V1): "VariableV1:Variable",
    ("pywrap_tensorflow", f"{_V1}.train"): "NewCheckpointReader",
    ("tpu.tpu", f"{_V1}.tpu"): "outside_compilation",
    ("training.basic_session_run_hooks", f"{_V1}.train"): "SessionRunHook",
    ("util.nest", "tensorflow.nest"): "is_sequence:is_nested",
}

# Names without a replacement.
PRIVATE_GONE: Final = {
    **{
        f"{_PYTHON}.{old}": edit
        for old, edit in {
            "distribute.estimator_training": _ESTIMATORS_OWN,
            "eager.function.defun": "tf.function",
            "framework.ops.register_dense_tensor_like_type": "leave it out: nothing uses it",
            "framework.tensor_like": "tf.Tensor, or your own type",
            "ops.control_flow_ops.smart_cond": (
                "from tensorflow.python.framework.smart_cond import smart_cond; or tf.cond"
            ),
            "ops.rnn_cell_impl._linear": (
                "your own kernel, tf.compat.v1.get_variable, and tf.matmul"
            ),
            "ops.seq2seq": "the loops that you need, with tf.while_loop",
            "ops.spectral_ops": "tf.signal",
            "ops.variables.RefVariable": "tf.compat.v1.Variable(..., use_resource=False)",
            "tpu.async_checkpoint": "RunConfig(save_checkpoints_steps=...)",
            "tpu.error_handling": _ESTIMATORS_OWN,
            "tpu.keras_support": "tfx_tpu_trainer.estimator.keras_to_estimator(model, ...)",
            "tpu.session_support": _ESTIMATORS_OWN,
            "tpu.tpu_embedding": "tpu.EmbeddingConfigSpec, or a table in model_fn",
            "tpu.util": _ESTIMATORS_OWN,
            "training.checkpointable": _CHECKPOINTS,
            "training.distribute": "tf.distribute",
            "training.learning_rate_decay_v2": "the schedules of tf.compat.v1.train",
            "training.tracking": "tensorflow.python.trackable; or " + _CHECKPOINTS,
            "util.tf_export.estimator_export": "leave it out: it put names into TensorFlow's API",
        }.items()
    },
    **{
        f"keras.{old}": edit
        for old, edit in {
            "engine": _LAYERS,
            "estimator": "tf.keras.estimator.model_to_estimator, under tfx_tpu_trainer.compat",
            "layers.cudnn_recurrent": "tf.keras.layers.LSTM and GRU, which use cuDNN by themselves",
            "layers.local": "tf_keras.layers.LocallyConnected1D, of Keras 2",
            "preprocessing.text": "tf_keras.preprocessing.text, of Keras 2",
            "utils.multi_gpu_utils": "tf.distribute.MirroredStrategy",
            "wrappers.scikit_learn": "the package scikeras",
        }.items()
    },
    "tensorflow.examples": (
        "tf.keras.datasets.mnist.load_data() for tutorials.mnist; the rest was never part of the API"
    ),
    "tensorflow.models": "the package tf-models-official",
    "tensorflow.tools.graph_transforms": (
        "tf.compat.v1.graph_util.extract_sub_graph, or tf.lite for small models"
    ),
}


def _whose(name: str) -> str:
    return "TensorFlow" if name.startswith("tensorflow.") else "Keras"


MOVED_NAMES: Final[dict[str, Advice]] = joined(
    *(
        moved(f"{_PYTHON}.{old}", new, names, says=_SAYS.format("name", "TensorFlow"), theme=_THEME)
        for (old, new), names in _MOVED_NAMES.items()
    )
)
PRIVATE_RULES: Final[dict[str, Advice]] = joined(
    {
        old: Advice(
            _THEME,
            Verdict.EDIT,
            _SAYS.format("module", _whose(old)),
            edit=f"from {new.rpartition('.')[0]} import {new.rpartition('.')[2]}",
            becomes=new,
        )
        for old, new in MOVED_MODULES.items()
    },
    MOVED_NAMES,
    {
        old: Advice(_THEME, Verdict.EDIT, _SAYS.format("name", _whose(old)), edit)
        for old, edit in PRIVATE_GONE.items()
    },
)


_QUEUES: Final = (
    "Input by queues. The host still runs it, from Python threads next to the session; on cores it "
    "causes a warning and is slow. tf.data has replaced it since TensorFlow 1.4."
)
_WITHOUT: Final = (
    "leave it out: a dataset has no threads to start, and its iterator is initialized for you"
)

QUEUE_RULES: Final[dict[str, Advice]] = joined(
    by_hand(
        "tensorflow.compat.v1.train",
        {
            "batch": "dataset.batch(batch_size, drop_remainder=True)",
            "batch_join": "dataset.interleave(...).batch(batch_size, drop_remainder=True)",
            "maybe_batch": "dataset.filter(keep).batch(batch_size, drop_remainder=True)",
            "maybe_batch_join": "dataset.filter(keep).batch(batch_size, drop_remainder=True)",
            "shuffle_batch": "dataset.shuffle(capacity).batch(batch_size, drop_remainder=True)",
            "shuffle_batch_join": "dataset.interleave(...).shuffle(capacity).batch(batch_size, drop_remainder=True)",
            "maybe_shuffle_batch": "dataset.filter(keep).shuffle(capacity).batch(batch_size, drop_remainder=True)",
            "maybe_shuffle_batch_join": "dataset.filter(keep).shuffle(capacity).batch(batch_size, drop_remainder=True)",
            "string_input_producer": "tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).repeat(num_epochs)",
            "slice_input_producer": "tf.data.Dataset.from_tensor_slices(tensors).shuffle(rows).repeat(num_epochs)",
            "input_producer": "tf.data.Dataset.from_tensor_slices(tensor).repeat(num_epochs)",
            "range_input_producer": "tf.data.Dataset.range(limit).repeat(num_epochs)",
            "limit_epochs": "dataset.repeat(num_epochs)",
            "start_queue_runners": _WITHOUT,
            "add_queue_runner": _WITHOUT,
            "QueueRunner": _WITHOUT,
            "queue_runner": _WITHOUT,
            "Coordinator": _WITHOUT,
        },
        says=_QUEUES,
        theme="queues",
    ),
    by_hand(
        "tensorflow.compat.v1",
        {
            "TFRecordReader": "tf.data.TFRecordDataset(files)",
            "TextLineReader": "tf.data.TextLineDataset(files).skip(header_lines)",
            "WholeFileReader": "tf.data.Dataset.from_tensor_slices(files).map(tf.io.read_file)",
            "FixedLengthRecordReader": "tf.data.FixedLengthRecordDataset(files, record_bytes)",
            "IdentityReader": "tf.data.Dataset.from_tensor_slices(values)",
        },
        says=_QUEUES,
        theme="queues",
    ),
)
