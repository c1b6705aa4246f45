"""The rest of tf.contrib."""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.doctor.rules.advice import Advice, by_hand, moved

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
        "Variable executing_eagerly py_func:py_function GradientTape defun:function",
    ),
    **by_hand(
        _THEME,
        _TRAINING,
        {
            "": (_GONE, "look for the name in tf.compat.v1.train"),
            "HParams": (
                (
                    "TensorFlow 2 has no tf.contrib, and nothing has the place of HParams. Estimators take a dict "
                    "as params."
                ),
                (
                    'params = {...}, read as params["name"]; where attributes are wanted '
                    "types.SimpleNamespace(**params)"
                ),
            ),
            "parse_values": (_GONE, "json.loads(text), or a config file"),
            "stratified_sample": (_GONE, "tf.data.experimental.rejection_resample"),
            "bucket_by_sequence_length": (_GONE, "dataset.bucket_by_sequence_length(...)"),
            "create_train_op": (
                _GONE,
                (
                    "optimizer.minimize(loss, tf.compat.v1.train.get_global_step()), after "
                    "tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)"
                ),
            ),
            "evaluate_repeatedly": (
                _GONE,
                "tf.estimator.train_and_evaluate, or estimator.evaluate in a loop",
            ),
        },
    ),
    **by_hand(
        _THEME,
        _CONTRIB,
        {
            "": (
                "TensorFlow 2 has no tf.contrib, and this part of it has no rule here.",
                "look for it in TensorFlow 2, in tf_slim or in TensorFlow's sister packages; else write it anew",
            ),
            "crf": (_GONE, "the crf of a package with TensorFlow 2's layers, or your own"),
            "eager": (_GONE, "look for the name in tf"),
            "image": (_GONE, "look for it in tf.image, or tf.keras.layers (RandomRotation, ...)"),
            "lookup": (
                _GONE,
                (
                    "tf.lookup.StaticVocabularyTable(tf.lookup.TextFileInitializer(...), num_oov_buckets) for "
                    "index_table_from_file; tf.lookup.StaticHashTable for HashTable"
                ),
            ),
            "opt": (
                _GONE,
                "an optimizer of tf.compat.v1.train; for AdamW the decay stands in model_fn, after the update",
            ),
            "predictor": (
                _GONE,
                (
                    'tf.saved_model.load(path, tags=["serve"]).signatures["serving_default"]; '
                    "`tfx-tpu-trainer inspect PATH` lists the signatures"
                ),
            ),
            "seq2seq": (_GONE, "Keras's layers, or the loops that you need with tf.while_loop"),
            "session_bundle": (_GONE, "tf.saved_model.load"),
            "tfprof": (_GONE, "tf.compat.v1.profiler"),
            "quantize": (_GONE, "the tensorflow_model_optimization package"),
            "tensorrt": (_GONE, "tf.experimental.tensorrt"),
        },
    ),
}

MODULES: Final[dict[str, str]] = {}
