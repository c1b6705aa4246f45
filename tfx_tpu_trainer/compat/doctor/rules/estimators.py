"""The names of tf.estimator: gone from TensorFlow 2.16, put back by tfx_tpu_trainer.compat."""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.compat._original_names import NAMES, SUBMODULES, TPU_NAMES
from tfx_tpu_trainer.compat.doctor._findings import Verdict
from tfx_tpu_trainer.compat.doctor.rules.advice import Advice

THEME: Final = "estimators"
_WORKS: Final = "TensorFlow 2.16 removed tf.estimator; tfx_tpu_trainer.compat restores it. "

# Where programs find the API. Each stands for the next, name for name.
MODULES: Final = (
    "tensorflow.compat.v1.estimator.tpu",
    "tensorflow.estimator.tpu",
    "tensorflow.compat.v1.estimator",
    "tensorflow.compat.v2.estimator",
    "tensorflow.estimator",
    "tensorflow_estimator.estimator",
    "tensorflow_estimator._api.v1.estimator",
    "tensorflow_estimator._api.v2.estimator",
    "tensorflow_estimator.python.estimator.api._v1.estimator",
    "tensorflow_estimator.python.estimator.api._v2.estimator",
)
_MISSING: Final = {
    "experimental.KMeans": (
        "KMeans exists as a name only; creating one is an error.",
        (
            "sklearn.cluster.MiniBatchKMeans; or tft.bucketize and embeddings in Transform, to "
            "use clusters as features of a model"
        ),
    ),
    "experimental.LinearSDCA": (
        "LinearSDCA exists as a name only; creating one is an error.",
        (
            "LinearClassifier(optimizer=tf.keras.optimizers.legacy.Ftrl(0.2, l1_regularization_strength=..., "
            "l2_regularization_strength=...)), which regularizes alike"
        ),
    ),
    "experimental.RNNClassifier": (
        "RNNClassifier exists as a name only; creating one is an error.",
        "a model_fn with tf.keras.layers.GRU or LSTM, whose logits go to a head's create_estimator_spec",
    ),
    "experimental.RNNEstimator": (
        "RNNEstimator exists as a name only; creating one is an error.",
        "a model_fn with tf.keras.layers.GRU or LSTM, whose logits go to a head's create_estimator_spec",
    ),
}
_SPOKEN_OF: Final = {
    "inputs.numpy_input_fn": (
        "It returns the original's batches, without queues. It takes no params: for a "
        "TPUEstimator, write an input_fn with tf.data."
    ),
    "inputs.pandas_input_fn": (
        "It returns the original's batches, without queues. It takes no params: for a "
        "TPUEstimator, write an input_fn with tf.data."
    ),
    "tpu.experimental.EmbeddingConfigSpec": (
        "Its tables train on emulated cores and, with use_tpu=False, as ordinary columns. With TPU hardware it is "
        "refused: the tables of a TPU's embedding cores can't be reached from a session."
    ),
    "LatestExporter": "Exporters run after each evaluation, into model_dir/export/<name>.",
    "FinalExporter": "It exports once, when max_steps is reached.",
    "BestExporter": (
        "After a restart it exports only a result better than the best one in the events; the "
        "original exported the first one it saw."
    ),
}
_CANNED: Final = frozenset(
    f"{model}{kind}"
    for model in ("Baseline", "DNN", "DNNLinearCombined", "Linear")
    for kind in ("Classifier", "Estimator", "Regressor")
)


def advice_on(module: str, name: str) -> Advice:
    """Returns what becomes of a name of tf.estimator."""
    if module.endswith(".tpu"):
        module, name = module[: -len(".tpu")], f"tpu.{name}".rstrip(".")
    is_v1 = "v1" in module or module == "tensorflow_estimator.estimator"
    first = name.partition(".")[0]
    in_v2 = first in ("inputs", "tpu") and not is_v1
    for prefix in () if in_v2 else (name, ".".join(name.split(".")[:2]), name.partition(".")[0]):
        if prefix in _MISSING:
            says, edit = _MISSING[prefix]
            return Advice(THEME, Verdict.EDIT, says, edit)
        if prefix in _SPOKEN_OF:
            return Advice(THEME, Verdict.WORKS, _WORKS + _SPOKEN_OF[prefix])
    rest = name[len(first) + 1 :]
    if in_v2:
        return Advice(
            THEME,
            Verdict.EDIT,
            f"tf.estimator of TensorFlow 2 never had {first}; tf.compat.v1.estimator has it.",
            becomes=f"tensorflow.compat.v1.estimator.{name}",
        )
    known = not first or first in NAMES or first in SUBMODULES
    if first == "tpu" and rest:
        known = rest.partition(".")[0] in (*TPU_NAMES, "experimental")
    if not known:
        return Advice(
            THEME,
            Verdict.EDIT,
            f"tf.estimator has no {name}.",
            "look for it in docs/heads.md and docs/canned.md, or in tfx_tpu_trainer.estimator",
        )
    if first in _CANNED:
        optimizers = "tf.compat.v1.train" if is_v1 else "Keras 2, or of tf.compat.v1.train"
        losses = "the sum" if is_v1 else "the mean"
        return Advice(
            THEME,
            Verdict.WORKS,
            f"{_WORKS}It trains to the original's numbers; its optimizers are those of {optimizers}, its loss is "
            f"{losses} over the rows by default. On cores: tpu.from_estimator(...).",
        )
    return Advice(THEME, Verdict.WORKS, _WORKS.strip())
