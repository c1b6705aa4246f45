"""Public names of TensorFlow 1.15 that `tf.compat.v1` has no more, and what to write.

Found by comparing all public names of TensorFlow 1.15.5 with those of 2.16, tf.contrib aside; 2.15 lost but one. A
test holds the table against the installed TensorFlow.
"""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Verdict
from tfx_tpu_trainer.compat.doctor.rules.advice import Advice

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
