"""Rules for the names of tf.estimator, of `tensorflow_estimator`, and of Keras's model_to_estimator.

`tfx_tpu_trainer.compat` restores them; those of private modules are in `_original_names.MODULES`.
"""

from typing import Final

from tfx_tpu_trainer.compat._original_names import MODULES, NAMES, SUBMODULES, TPU_NAMES
from tfx_tpu_trainer.compat.doctor._findings import Advice, Verdict, by_hand, joined, moved

THEME: Final = "estimators"
_WORKS: Final = "TensorFlow 2.16 removed tf.estimator; tfx_tpu_trainer.compat restores it. "

# Import paths of the API; all are equivalent.
API_MODULES: Final = (
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
# Classes that can't be made, with their replacements.
_MISSING: Final = {
    "experimental.KMeans": (
        "sklearn.cluster.MiniBatchKMeans; or tft.bucketize and embeddings in Transform, to "
        "use clusters as features of a model"
    ),
    "experimental.LinearSDCA": (
        "LinearClassifier(optimizer=tf.keras.optimizers.legacy.Ftrl(0.2, l1_regularization_strength=..., "
        "l2_regularization_strength=...)), which regularizes in the same way"
    ),
    **dict.fromkeys(
        ("experimental.RNNClassifier", "experimental.RNNEstimator"),
        "a model_fn with tf.keras.layers.GRU or LSTM, whose logits go to a head's create_estimator_spec",
    ),
}
_SPOKEN_OF: Final = {
    **dict.fromkeys(
        ("inputs.numpy_input_fn", "inputs.pandas_input_fn"),
        "It returns the original's batches, without queues. It takes no params: for a "
        "TPUEstimator, write an input_fn with tf.data.",
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
    """Returns the advice on a name of tf.estimator."""
    if module.endswith(".tpu"):
        module, name = module[: -len(".tpu")], f"tpu.{name}".rstrip(".")
    is_v1 = "v1" in module or module == "tensorflow_estimator.estimator"
    first = name.partition(".")[0]
    in_v2 = first in ("inputs", "tpu") and not is_v1
    for prefix in () if in_v2 else (name, ".".join(name.split(".")[:2]), name.partition(".")[0]):
        if prefix in _MISSING:
            says = f"{prefix.rpartition('.')[2]} exists as a name only; creating one is an error."
            return Advice(THEME, Verdict.EDIT, says, _MISSING[prefix])
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
            f"{_WORKS}It reproduces the original's numbers; its optimizers are those of {optimizers}, its loss is "
            f"{losses} over the rows by default. On cores: tpu.from_estimator(...).",
        )
    return Advice(THEME, Verdict.WORKS, _WORKS.strip())


# Import paths of the modules below, in programs of different ages.
ROOTS: Final = {
    "tensorflow_estimator.python.estimator": "",
    "tensorflow.python.estimator": "",
    "tensorflow.python.tpu": "tpu.",
}


def advice_on_original(name: str) -> Advice | None:
    """Returns the advice on a name of the original's package."""
    root = next((each for each in ROOTS if name == each or name.startswith(f"{each}.")), None)
    if root is None:
        return None
    below = ROOTS[root] + name[len(root) + 1 :]
    answered = _is_answered(below)
    if root == "tensorflow.python.tpu" and not answered:
        # Most of that folder is TensorFlow's own, and still exists.
        return None
    if answered:
        return Advice(
            THEME,
            Verdict.WORKS,
            "A private path of the original's package, which can't be imported with TensorFlow >= 2.16; "
            "tfx_tpu_trainer.compat provides it.",
        )
    return Advice(
        THEME,
        Verdict.EDIT,
        "A private name of the original's package, which can't be imported with TensorFlow >= 2.16.",
        "look for a public name in tfx_tpu_trainer.estimator",
    )


def _is_answered(below: str) -> bool:
    for module, names in MODULES.items():
        if below == "" or module == below or module.startswith(f"{below}."):
            return True
        if below.startswith(f"{module}."):
            return below[len(module) + 1 :].partition(".")[0] in names
    return False


_KERAS_THEME: Final = "keras"
_MODEL_TO_ESTIMATOR: Final = Advice(
    _KERAS_THEME,
    Verdict.WORKS,
    "tfx_tpu_trainer.compat restores it; it returns an Estimator on the host, like the original. "
    "For TPU cores: tfx_tpu_trainer.estimator.keras_to_estimator(model, ...), a TPUEstimator with "
    "its batch sizes.",
)
_OPTIMIZER: Final = Advice(
    _KERAS_THEME,
    Verdict.EDIT,
    "It wrapped an optimizer of tf.compat.v1.train for Keras.",
    "tf.keras.optimizers.legacy.Adam(...), or whichever of Keras 2 it is",
)

# Import paths of the private functions that made an estimator from a Keras model.
_PRIVATE_MODULES: Final = (
    "tensorflow.python.keras._impl.keras.estimator",
    "tensorflow.python.keras.estimator",
    "tensorflow.python.estimator.keras",
    "tensorflow_estimator.python.estimator.keras",
    "tensorflow_estimator.python.estimator.keras_lib",
)
PRIVATE_FUNCTIONS: Final = frozenset(
    {
        "tensorflow.python.keras.models.clone_and_build_model",
        *(
            f"{module}.{name}"
            for module in _PRIVATE_MODULES
            for name in (
                "_clone_and_build_model",
                "_convert_estimator_io_to_keras",
                "_create_keras_model_fn",
                "_create_ordered_io",
                "_in_place_subclassed_model_state_restoration",
                "_save_first_checkpoint",
            )
        ),
    }
)
"""Functions that model_to_estimator consisted of; a program that calls them has its own version."""
_CLONED: Final = Advice(
    _KERAS_THEME,
    Verdict.EDIT,
    "A private function that TensorFlow made estimators of Keras models with; TensorFlow 2.16 no longer has it.",
    "leave it out with the function that uses it; tfx_tpu_trainer.estimator.keras_to_estimator(model, ...) replaces "
    "both",
)

KERAS_RULES: Final[dict[str, Advice]] = joined(
    {
        f"tensorflow{version}.keras.estimator{name}": _MODEL_TO_ESTIMATOR
        for version in ("", ".compat.v1", ".compat.v2", ".python")
        for name in ("", ".model_to_estimator")
    },
    dict.fromkeys(sorted(PRIVATE_FUNCTIONS), _CLONED),
    {
        f"{module}.model_to_estimator": Advice(
            _KERAS_THEME,
            Verdict.EDIT,
            "A private path of TensorFlow 1; tf.keras.estimator has this name.",
            becomes="tensorflow.keras.estimator.model_to_estimator",
        )
        for module in (_PRIVATE_MODULES[0], *_PRIVATE_MODULES[2:4])
    },
    {
        "tensorflow.keras.optimizers.TFOptimizer": _OPTIMIZER,
        "tensorflow.compat.v1.keras.optimizers.TFOptimizer": _OPTIMIZER,
    },
    moved(
        "tensorflow.keras.backend",
        "tensorflow.compat.v1.keras.backend",
        "get_session set_session",
        says="TensorFlow 2's Keras has no sessions; tf.compat.v1.keras has them if Keras is Keras 2.",
        theme=_KERAS_THEME,
    ),
    by_hand(
        "tensorflow.keras.layers",
        {
            f"CuDNN{kind}": (
                f"tf.keras.layers.{kind}; tf.compat.v1.keras.layers.CuDNN{kind} of Keras 2 has the old variables"
            )
            for kind in ("GRU", "LSTM")
        },
        says="TensorFlow 2's layers use cuDNN by themselves.",
        theme=_KERAS_THEME,
    ),
    {
        f"tensorflow.compat.v1.keras.layers.{name}": Advice(
            _KERAS_THEME, Verdict.WORKS, "A layer of Keras 2, with its old variables."
        )
        for name in ("CuDNNGRU", "CuDNNLSTM")
    },
    {
        "tensorflow.python.keras": Advice(
            _KERAS_THEME,
            Verdict.EDIT,
            "TensorFlow's private copy of Keras, frozen since 2.6: its layers and models are not those of tf.keras.",
            "tf.keras, with TF_USE_LEGACY_KERAS=1 for Keras 2",
        ),
    },
)


_TFX_THEME: Final = "tfx"
_EXECUTOR: Final = "tfx.components.trainer.executor"
_TFMA: Final = "tensorflow_model_analysis"
_GONE: Final = "TFX 1.16 removed the executor of estimators."
_TRAINER: Final = (
    "tfx_tpu_trainer.components.TpuTrainer(module_file=...) instead of Trainer: it runs "
    "trainer_fn(fn_args, schema) unchanged"
)
_EXPORT: Final = Advice(
    _TFX_THEME,
    Verdict.WORKS,
    "TFMA 0.47 removed tfma.export; tfx_tpu_trainer.compat restores this name, and today's TFMA "
    "can read the export.",
)

TFX_RULES: Final[dict[str, Advice]] = joined(
    by_hand(
        _EXECUTOR,
        {
            "Executor": (_GONE, _TRAINER),
            "TrainerFnArgs": (
                "TFX 1.16 has no TrainerFnArgs.",
                "tfx.components.FnArgs, or no annotation",
            ),
        },
        theme=_TFX_THEME,
    ),
    {
        f"{_TFMA}.export.EvalInputReceiver": _EXPORT,
        f"{_TFMA}.export.export_eval_savedmodel": _EXPORT,
    },
    by_hand(
        f"{_TFMA}.eval_saved_model.export",
        {
            name: f"tfma.export.{name}, which tfx_tpu_trainer.compat restores"
            for name in ("EvalInputReceiver", "export_eval_savedmodel")
        },
        says="A private path of TFMA that no longer exists.",
        theme=_TFX_THEME,
    ),
    by_hand(
        _TFMA,
        {
            "post_export_metrics": (
                "Metrics that were added to an eval export.",
                "tfma.MetricConfig(class_name=...) in the Evaluator's EvalConfig",
            ),
            "export.build_parsing_eval_input_receiver_fn": (
                "TFMA 0.47 removed it.",
                (
                    "a function that parses the examples and returns tfma.export.EvalInputReceiver(features, "
                    "receiver_tensors, labels)"
                ),
            ),
            "exporter": (
                "TFMA's exporters of eval SavedModels are gone.",
                "return eval_input_receiver_fn from trainer_fn: TpuTrainer makes the export",
            ),
        },
        theme=_TFX_THEME,
    ),
    by_hand(
        "tensorflow_transform.saved",
        {
            "": (
                "A private path of Transform.",
                "tft.TFTransformOutput(folder).transform_raw_features(features)",
            )
        },
        theme=_TFX_THEME,
    ),
)
