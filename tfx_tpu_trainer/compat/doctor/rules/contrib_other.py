"""The rest of tf.contrib."""

from __future__ import annotations

from typing import Final

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

MODULES: Final[dict[str, str]] = {}
