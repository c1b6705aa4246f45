"""The rest of tf.contrib, with its datasets and summaries."""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Verdict
from tfx_tpu_trainer.compat.doctor.rules.advice import Advice, by_hand, moved

_THEME: Final = "contrib"
_CONTRIB: Final = "tensorflow.contrib"
_TRAINING: Final = f"{_CONTRIB}.training"
_GONE: Final = "TensorFlow 2 has no tf.contrib."

RULES: Final[dict[str, Advice]] = {
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tf.compat.v1.train has this hook.",
        f"{_CONTRIB}.hooks",
        "tensorflow.compat.v1.train",
        "ProfilerHook",
    ),
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; TensorFlow 2 has this name.",
        f"{_CONTRIB}.eager",
        "tensorflow",
        "Variable executing_eagerly in_eager_mode:executing_eagerly py_func:py_function GradientTape "
        "defun:function function",
    ),
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tf.signal has this name.",
        f"{_CONTRIB}.signal",
        "tensorflow.signal",
        "frame hamming_window hann_window inverse_stft inverse_stft_window_fn linear_to_mel_weight_matrix "
        "mfccs_from_log_mel_spectrograms overlap_and_add stft",
    ),
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tf.xla.experimental has this name.",
        f"{_CONTRIB}.compiler.jit",
        "tensorflow.xla.experimental",
        "experimental_jit_scope:jit_scope",
    ),
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tf.xla.experimental has this name.",
        f"{_CONTRIB}.compiler.xla",
        "tensorflow.xla.experimental",
        "compile",
    ),
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tf.autograph has this name.",
        f"{_CONTRIB}.autograph",
        "tensorflow.autograph",
        "to_graph to_code set_verbosity trace do_not_convert:experimental.do_not_convert",
    ),
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tf.train has this name.",
        _TRAINING,
        "tensorflow.train",
        "checkpoints_iterator",
    ),
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tf.lookup has this name.",
        f"{_CONTRIB}.lookup",
        "tensorflow.lookup",
        "KeyValueTensorInitializer TextFileIndex TextFileInitializer",
    ),
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tf.lookup.experimental has this table.",
        f"{_CONTRIB}.lookup",
        "tensorflow.lookup.experimental",
        "MutableHashTable MutableDenseHashTable:DenseHashTable",
    ),
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tf.compat.v1.distributions has this name.",
        f"{_CONTRIB}.distributions",
        "tensorflow.compat.v1.distributions",
        "Bernoulli Beta Categorical Dirichlet DirichletMultinomial Distribution Exponential "
        "FULLY_REPARAMETERIZED Gamma Laplace Multinomial NOT_REPARAMETERIZED Normal RegisterKL "
        "ReparameterizationType StudentT Uniform kl_divergence",
    ),
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; TensorFlow 2 has this name.",
        f"{_CONTRIB}.util",
        "tensorflow",
        "constant_value:get_static_value make_ndarray make_tensor_proto",
    ),
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tf.summary and tf.compat.v1.profiler have the same.",
        f"{_CONTRIB}.tfprof",
        "tensorflow.compat.v1.profiler",
        "ProfileOptionBuilder Profiler",
    ),
    **by_hand(
        _THEME,
        _TRAINING,
        {
            "": (_GONE, "look for the name in tf.compat.v1.train"),
            "stratified_sample": (_GONE, "tf.data.experimental.rejection_resample"),
            "bucket_by_sequence_length": (_GONE, "dataset.bucket_by_sequence_length(...)"),
        },
    ),
    **by_hand(
        _THEME,
        _CONTRIB,
        {
            "": (
                "TensorFlow 2 has no tf.contrib, and the doctor has no rule for this part of it.",
                (
                    "look for it in TensorFlow 2, in tf_slim or in TensorFlow's sister packages; "
                    "otherwise rewrite it"
                ),
            ),
            "crf": (
                _GONE,
                "tfx_tpu_trainer.compat.contrib.crf has the likelihood and the decoding",
            ),
            "cudnn_rnn": (
                _GONE,
                (
                    "tf.keras.layers.LSTM and GRU; tfx_tpu_trainer.compat.contrib.cudnn_rnn has the cells that take "
                    "cuDNN's variables"
                ),
            ),
            "eager": (_GONE, "look for the name in tf"),
            "graph_editor": (
                _GONE,
                "tfx_tpu_trainer.compat.contrib.graph_editor has the walks, selections and rerouting, no copies",
            ),
            "image": (
                _GONE,
                (
                    "look for it in tf.image, tf.keras.layers (RandomRotation, ...) or "
                    "tfx_tpu_trainer.compat.contrib.image"
                ),
            ),
            "distributions": (_GONE, "look for the name in the tensorflow_probability package"),
            "lookup": (_GONE, "look for the name in tf.lookup"),
            "opt": (
                _GONE,
                "an optimizer of tf.compat.v1.train; tfx_tpu_trainer.compat.contrib.opt has those with weight decay",
            ),
            "predictor": (
                _GONE,
                (
                    'tf.saved_model.load(path, tags=["serve"]).signatures["serving_default"]; '
                    "`tfx-tpu-trainer inspect PATH` lists the signatures"
                ),
            ),
            "seq2seq": (
                _GONE,
                "look for the name in tfx_tpu_trainer.compat.contrib.seq2seq",
            ),
            "session_bundle": (_GONE, "tf.saved_model.load"),
            "tfprof": (_GONE, "tf.compat.v1.profiler"),
            "quantize": (_GONE, "the tensorflow_model_optimization package"),
            "tensorrt": (_GONE, "tf.experimental.tensorrt"),
        },
    ),
}


_DATA: Final = "tensorflow.contrib.data"

_NOW: Final = "tensorflow.data.experimental"
_IN_V1: Final = "tensorflow.compat.v1.data.experimental"
_DROPPED: Final = (
    ".batch(n, drop_remainder=True) instead of .apply(tf.contrib.data.batch_and_drop_remainder(n))"
)
_GONE_DATA: Final = {
    "assert_element_shape": ("Gone.", "set the shape in a map: tensor.set_shape(...)"),
    "read_batch_features": (
        "Gone.",
        "tf.data.experimental.make_batched_features_dataset(files, batch_size, features)",
    ),
    "sliding_window_batch": ("Gone.", "dataset.window(size, shift=..., stride=...)"),
    "StatsAggregator": ("Gone.", "leave it out; TensorFlow's profiler shows the input pipeline"),
}

DATA_RULES: Final[dict[str, Advice]] = {
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tf.data.experimental has this name.",
        _DATA,
        _NOW,
        "AUTOTUNE Counter CsvDataset Optional RandomDataset Reducer SqlDataset TFRecordWriter "
        "bucket_by_sequence_length choose_from_datasets copy_to_device dense_to_sparse_batch enumerate_dataset "
        "get_single_element group_by_reducer group_by_window ignore_errors make_batched_features_dataset "
        "make_csv_dataset make_saveable_from_iterator map_and_batch parallel_interleave prefetch_to_device "
        "rejection_resample sample_from_datasets scan shuffle_and_repeat take_while unbatch unique",
    ),
    **moved(
        _THEME,
        "It was tf.contrib.data's dataset before TensorFlow 1.4; tf.data has it.",
        _DATA,
        "tensorflow.compat.v1.data",
        "Dataset FixedLengthRecordDataset Iterator TFRecordDataset TextLineDataset",
    ),
    f"{_DATA}.batch_and_drop_remainder": Advice(
        _THEME,
        Verdict.EDIT,
        "TensorFlow 2 has no tf.contrib; a dataset's batch() does the same.",
        edit=_DROPPED,
        becomes="batch",
        calls_only=True,
    ),
    **{
        f"{module}.batch_and_drop_remainder": Advice(
            _THEME, Verdict.EDIT, "A dataset's batch() does the same.", _DROPPED
        )
        for module in (_NOW, _IN_V1)
    },
    # An import of the old module becomes one of the new, which lacks these.
    **{
        name: told
        for module in (_DATA, _NOW, _IN_V1)
        for name, told in by_hand(_THEME, module, _GONE_DATA).items()
    },
    **by_hand(
        _THEME,
        _DATA,
        {"": ("TensorFlow 2 has no tf.contrib.", "look for the name in tf.data.experimental")},
    ),
}

MODULES: Final = {_DATA: _NOW}


_SUMMARIES_THEME: Final = "summaries"
_SUMMARY: Final = "tensorflow.contrib.summary"
_SAYS: Final = (
    "TensorFlow 2 has no tf.contrib; its summaries are TensorFlow 2's, in tf.compat.v2.summary."
)


def _call(becomes: str, edit: str) -> Advice:
    return Advice(
        _SUMMARIES_THEME, Verdict.EDIT, _SAYS, edit=edit, becomes=becomes, calls_only=True
    )


SUMMARY_RULES: Final[dict[str, Advice]] = {
    # create_file_writer(logdir, max_queue, flush_millis, filename_suffix, name) as before.
    f"{_SUMMARY}.create_file_writer": Advice(
        _SUMMARIES_THEME,
        Verdict.EDIT,
        _SAYS,
        becomes="tensorflow.compat.v2.summary.create_file_writer",
    ),
    **moved(
        _SUMMARIES_THEME,
        _SAYS,
        _SUMMARY,
        "tensorflow.compat.v2.summary",
        "create_summary_file_writer:create_file_writer flush should_record_summaries",
    ),
    f"{_SUMMARY}.initialize": Advice(
        _SUMMARIES_THEME, Verdict.EDIT, _SAYS, becomes="tensorflow.compat.v1.summary.initialize"
    ),
    f"{_SUMMARY}.all_summary_ops": Advice(
        _SUMMARIES_THEME,
        Verdict.EDIT,
        _SAYS,
        becomes="tensorflow.compat.v1.summary.all_v2_summary_ops",
    ),
    f"{_SUMMARY}.always_record_summaries": _call(
        "tensorflow.compat.v2.summary.record_if", "tf.compat.v2.summary.record_if(True)"
    ),
    f"{_SUMMARY}.never_record_summaries": _call(
        "tensorflow.compat.v2.summary.record_if", "tf.compat.v2.summary.record_if(False)"
    ),
    **{
        f"{_SUMMARY}.{kind}": _call(
            f"tensorflow.compat.v2.summary.{kind}",
            f"tf.compat.v2.summary.{kind}(name, data, step=step)",
        )
        for kind in ("scalar", "histogram", "image", "audio")
    },
    **by_hand(
        _SUMMARIES_THEME,
        _SUMMARY,
        {
            "": (_SAYS, "look for the name in tf.compat.v2.summary"),
            "generic": (_SAYS, "tf.compat.v2.summary.write(name, tensor, step=step)"),
            "create_tf_process_summary_writer": (
                _SAYS,
                "tf.compat.v2.summary.create_file_writer(folder)",
            ),
        },
    ),
}
