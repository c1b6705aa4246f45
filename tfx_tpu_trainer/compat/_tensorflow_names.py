"""Makes all changes of an installation, after checking that the old names are free.

`tf.contrib` is made name by name, as a program uses it. A name comes from `tfx_tpu_trainer.compat.contrib` if it is
there, else from the place that the doctor's tables give for the same arguments. For all others the error is the
doctor's advice.
"""

import functools
import importlib
import importlib.util
import pkgutil
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer import estimator
from tfx_tpu_trainer.compat import tfma_export
from tfx_tpu_trainer.compat._estimator_modules import (
    estimator_modules,
    keras_estimator_module,
    original_modules,
)
from tfx_tpu_trainer.compat._installation import (
    Change,
    ImportWatcher,
    MovedModulesFinder,
    UndoLog,
    attribute,
    is_alias,
    is_module,
    make_module,
)
from tfx_tpu_trainer.estimator.extending import (
    EMULATE_VARIABLE,
    CheckpointInputPipelineHook,
    EmulatedTPUClusterResolver,
    environment_emulates,
)

# Each module of TensorFlow's API exists under several names: tf.compat.v1 is tensorflow._api.v2.compat.v1, and `import
# tensorflow.compat.v1` executes it again.
_ROOT = re.compile(r"tensorflow(?:(?:\.\w+)*\.compat\.(v[12]))?")
_TPU_EXPERIMENTAL = re.compile(r"tensorflow(\.\w+)*\.compat\.v1\.tpu\.experimental")
_DATA_EXPERIMENTAL = re.compile(r"tensorflow(?!\.python\b)(\.\w+)*\.data\.experimental")
_RESOLVERS = re.compile(r"tensorflow(?!\.python\b)(\.\w+)*\.distribute\.cluster_resolver")
# Keras 3 under both of its names. Keras 2 has its own `estimator`, which calls the original's keras_lib.
_KERAS = re.compile(r"tensorflow\.keras|keras\._tf_keras\.keras")
# Modules that only this package provides, and names that could be below them.
_ESTIMATOR = re.compile(
    r"(tensorflow(\.compat\.v[12]|\.python)?\.estimator|tensorflow_estimator)\..+"
)

# TF 1.15 also had contrib in tf.compat.v1; TF 2 never did.
_CONTRIB_OF = {None: "tensorflow.contrib", "v1": "tensorflow.compat.v1.contrib"}

_PARAMETERS = (
    "AdagradParameters",
    "AdamParameters",
    "FtrlParameters",
    "StochasticGradientDescentParameters",
)


def put_back(log: UndoLog, *, emulate: bool | None) -> None:
    """Makes all changes."""
    _check_names_are_free(
        {
            "tensorflow": tf,
            "tensorflow.compat.v1": tf.compat.v1,
            "tensorflow.compat.v2": tf.compat.v2,
        }
    )
    _check_nothing_is_bound()
    if emulate is None:
        emulate = environment_emulates()
    elif emulate:
        log.set_environment(EMULATE_VARIABLE, "1")
    # All checks come before the first change, so a refusal changes nothing.
    changes = _Changes(log, emulate=emulate)
    for name, module in changes.modules.items():
        log.set_module(name, module)
    log.add_finder(
        ImportWatcher(
            change_of=changes.change_of, module_of=changes.contrib.module, refusal_of=_refusal
        )
    )
    log.add_last_finder(MovedModulesFinder())
    # The watcher changes later imports; modules that are already imported are changed here. The list is a copy, since a
    # change may import.
    for name, module in list(sys.modules.items()):
        change = changes.change_of(name)
        if change is not None:
            change(module)


class _Changes:
    """Knows which change each module needs."""

    def __init__(self, log: UndoLog, *, emulate: bool) -> None:
        self._log = log
        self._emulate = emulate
        self._apis = {version: estimator_modules(version) for version in ("v1", "v2")}
        self.contrib = ContribNames(log)
        self.modules = original_modules(self._apis)
        for place, version in (("", "v2"), (".compat.v1", "v1"), (".compat.v2", "v2")):
            for below, module in self._apis[version].items():
                self.modules[f"tensorflow{place}.estimator.{below}".rstrip(".")] = module

    def change_of(self, name: str) -> Change | None:
        """Returns the change of a module, by name."""
        if found := _ROOT.fullmatch(name):
            return functools.partial(self._add_estimators, version=found.group(1))
        if _TPU_EXPERIMENTAL.fullmatch(name):
            return self._add_parameters
        if _DATA_EXPERIMENTAL.fullmatch(name):
            return self._add_input_hook
        if _RESOLVERS.fullmatch(name) and self._emulate:
            return self._answer_resolvers
        if _KERAS.fullmatch(name):
            return self._add_keras_estimator
        if name in _TFMA_MODULES:
            return lambda module: _add_tfma_export(self._log, module)
        return None

    def _add_estimators(self, module: types.ModuleType, *, version: str | None) -> None:
        values: dict[str, Any] = {"estimator": self._apis[version or "v2"][""]}
        if version != "v2":
            values["contrib"] = self.contrib.module(_CONTRIB_OF[version])
        self._set_missing(module, values)

    def _add_parameters(self, module: types.ModuleType) -> None:
        experimental = estimator.tpu.experimental
        self._set_missing(module, {name: getattr(experimental, name) for name in _PARAMETERS})

    def _add_input_hook(self, module: types.ModuleType) -> None:
        self._set_missing(module, {"CheckpointInputPipelineHook": CheckpointInputPipelineHook})

    def _answer_resolvers(self, module: types.ModuleType) -> None:
        self._log.set_attribute(module, "TPUClusterResolver", EmulatedTPUClusterResolver)

    def _add_keras_estimator(self, module: types.ModuleType) -> None:
        self._set_missing(module, {"estimator": keras_estimator_module()})

    def _set_missing(self, module: types.ModuleType, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if name not in vars(module):
                self._log.set_attribute(module, name, value)


def _refusal(name: str) -> str | None:
    found = _ESTIMATOR.fullmatch(name)
    if found is None:
        return None
    above, _, last = name.rpartition(".")
    return (
        f"{above} has no {last!r}: tfx_tpu_trainer.compat restores only the public names of "
        "tf.estimator (docs/compat.md lists them), not TensorFlow's private ones."
    )


_TFMA_MODULES = ("tensorflow_model_analysis", "tensorflow_model_analysis.eval_saved_model")
"""The modules that had an `export`."""

_TFMA_NAMES = (
    "EvalInputReceiver",
    "build_parsing_eval_input_receiver_fn",
    "export_eval_savedmodel",
)


def _add_tfma_export(log: UndoLog, module: types.ModuleType) -> None:
    """Adds `export` to a TFMA module that lacks it."""
    if "export" in vars(module):
        return
    name = f"{module.__name__}.export"
    export = make_module(
        name,
        {each: getattr(tfma_export, each) for each in _TFMA_NAMES},
        doc="The evaluation export of tfx_tpu_trainer.compat, where TFMA had its own.",
    )
    log.set_module(name, export)
    log.set_attribute(module, "export", export)


ORIGINAL = "tensorflow_estimator"
# Names with no other meaning, which `try: ... except ImportError:` sets to None.
_OPTIONAL_NAMES = ("tf_estimator", ORIGINAL)
# Modules of these packages bind the names for themselves.
_LIBRARIES = (ORIGINAL, "tensorflow", "tf_keras", "keras", "tfx_tpu_trainer")


def _check_names_are_free(places: Mapping[str, types.ModuleType]) -> None:
    """Raises if TensorFlow has its own estimator."""
    tensorflow = sys.modules["tensorflow"]
    for name, module in places.items():
        there = vars(module).get("estimator", sys.modules.get(f"{name}.estimator"))
        if there is None or is_alias(there):
            continue
        version = tuple(int(part) for part in tensorflow.__version__.split(".")[:2])
        advice = (
            "Run the program without tfx_tpu_trainer.compat, or on TensorFlow 2.16 or later."
            if version < (2, 16)
            else "Remove what defined it before compat.install()."
        )
        raise RuntimeError(
            f"{name}.estimator already exists: {there!r}, in TensorFlow {tensorflow.__version__}. "
            f"{advice}"
        )


def _check_nothing_is_bound() -> None:
    """Raises if a module of the program has bound the old names to their previous values."""
    for module, name, value in _bound():
        what = (
            "found no tf.estimator and put None there"
            if value is None
            else f"holds {value!r} of the package {ORIGINAL}"
        )
        raise RuntimeError(
            f"install() was called after the program had bound the old names: {module}.{name} "
            f"{what}. Call tfx_tpu_trainer.compat.install() before {module} is imported, or run "
            "the program with python -m tfx_tpu_trainer.compat PROGRAM."
        )


def _bound() -> Iterator[tuple[str, str, Any]]:
    for module_name, module in list(sys.modules.items()):
        package = module_name.partition(".")[0]
        if package in _LIBRARIES or package in sys.stdlib_module_names or not is_module(module):
            continue
        for name, value in list(vars(module).items()):
            if (value is None and name in _OPTIONAL_NAMES) or _is_of_the_original(value):
                yield module_name, name, value


def _is_of_the_original(value: Any) -> bool:
    # Runs on hundreds of thousands of values, everything that the process imported: quick tests come first.
    kind = type(value)
    if kind is types.FunctionType or issubclass(kind, type):
        home = value.__module__
    elif issubclass(kind, types.ModuleType):
        home = attribute(value, "__name__")
    else:
        return False
    if not isinstance(home, str) or not home.startswith(ORIGINAL):
        return False
    return home.partition(".")[0] == ORIGINAL and not is_alias(value)


_OURS: Final = "tfx_tpu_trainer.compat.contrib"
_CONTRIB: Final = "tensorflow.contrib"
_NAME: Final = re.compile(r"tensorflow(?:\.compat\.v1)?\.contrib((?:\.\w+)*)")
_PRIVATE: Final = "tensorflow.python."
_DOCTOR: Final = "`tfx-tpu-trainer doctor PROGRAM` examines the whole program."


class ContribNames:
    """The modules of `tf.contrib`, made on first use."""

    def __init__(self, log: UndoLog) -> None:
        self._log = log
        self._modules: dict[str, types.ModuleType] = {}

    def module(self, name: str) -> types.ModuleType | None:
        """Makes the module of a name in contrib."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        if name not in self._modules:
            path = found.group(1).removeprefix(".")
            module = make_module(name, {}, doc=f"`{name}`, provided by its current replacement.")
            today = _find(path)
            if isinstance(today, types.ModuleType):
                vars(module)["__getattr__"] = functools.partial(_attribute, today)
            elif _is_module(path):
                vars(module)["__getattr__"] = functools.partial(self._value, name, path)
            else:
                # With the module's own name, `from tensorflow.contrib import x` drops the message.
                above = name.rpartition(".")[0]
                raise ModuleNotFoundError(f"no module {name!r}: {_advice(path)}", name=above)
            self._modules[name] = module
            self._log.set_module(name, module)
        return self._modules[name]

    def _value(self, module: str, path: str, name: str) -> Any:
        """Returns the value of a name in a module of contrib."""
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        below = f"{path}.{name}".removeprefix(".")
        value = _find(below)
        if value is None:
            # A private module exists only for programs that import it.
            if ".python" in below or not _is_module(below):
                raise AttributeError(
                    f"module {module!r} has no attribute {name!r}: {_advice(below)}"
                )
            value = self.module(f"{module}.{name}")
        self._log.set_attribute(self._modules[module], name, value)
        return value


def _attribute(module: types.ModuleType, name: str) -> Any:
    """Returns an attribute of the module that another one replaces, except its file and path."""
    if name.startswith("__"):
        raise AttributeError(
            f"module {module.__name__!r} replaces it, and does not share its {name!r}"
        )
    return getattr(module, name)


def _public(path: str) -> str:
    """Returns a name's public path: `layers.flatten` for `layers.python.layers.layers.flatten`."""
    part, *rest = path.split(".")
    return f"{part}.{rest[-1]}" if len(rest) > 1 and rest[0] == "python" else path


def _find(path: str) -> Any:
    """Returns the replacement of a name or of its public name; `None` if there is none."""
    found = _resolve(path) if path else None
    if found is None and path != _public(path):
        found = _resolve(_public(path))
    return _private(path) if found is None else found


def _private(path: str) -> Any:
    """Returns a name of contrib.tpu's private modules, which are now in `tensorflow.python.tpu`."""
    module, _, name = path.rpartition(".")
    if not module.startswith("tpu.python.tpu."):
        return None
    today = f"tensorflow.{module.removeprefix('tpu.')}"
    try:
        return getattr(importlib.import_module(today), name, None)
    except ImportError:
        return None


def _resolve(path: str) -> Any:
    part, _, name = path.rpartition(".")
    ours = _own_module(part)
    if ours is not None and name in ours.__all__:
        return getattr(ours, name)
    _, advice = _rule(path)
    if not _is_told(path) or advice.becomes is None or advice.calls_only:
        return None
    if advice.becomes.startswith("tensorflow.") and not advice.becomes.startswith(_PRIVATE):
        # Found through attributes of `tf`: importing `tensorflow.x` would execute an API module again, and return
        # another object than the program's.
        return functools.reduce(getattr, advice.becomes.split(".")[1:], tf)
    return pkgutil.resolve_name(advice.becomes)


def _own_module(part: str) -> Any:
    """Returns this package's module with the names of a part of contrib, if there is one."""
    name = f"{_OURS}.{part}"
    try:
        is_there = bool(part) and importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        # Its parent does not exist either, or is not a package.
        return None
    module = importlib.import_module(name) if is_there else None
    return module if hasattr(module, "__all__") else None


def _is_module(path: str) -> bool:
    """Returns whether contrib had this module, and some of its names exist today."""
    part, *rest = path.split(".")
    if not part:
        return True
    if rest and rest[0] == "python":
        # There is no list of private modules, but a name with a rule is not a module.
        return _is_module(part) and not _is_told(path) and not rest[-1][:1].isupper()
    if _own_module(path) is not None:
        return True
    rules = importlib.import_module("tfx_tpu_trainer.compat.doctor.rules").RULES
    below = f"{_CONTRIB}.{path}."
    return any(
        name.startswith(below) and advice.becomes is not None and not advice.calls_only
        for name, advice in rules.items()
    )


def _rule(path: str) -> tuple[str, Any]:
    """Returns the doctor's rule for a name, with the part of contrib that it covers."""
    rules = importlib.import_module("tfx_tpu_trainer.compat.doctor.rules")
    # Some private modules have their own rule. The loop falls through to the public name's rule if neither has one.
    for name in (path, _public(path)):
        key, advice = rules.look_up(rules.canonical(f"{_CONTRIB}.{name}".rstrip(".")))
        if key == f"{_CONTRIB}.{name}":
            break
    return key, advice


def _is_told(path: str) -> bool:
    """Returns whether a rule is about this very name, instead of only about its module."""
    return _rule(path)[0] in (f"{_CONTRIB}.{path}", f"{_CONTRIB}.{_public(path)}")


def _advice(path: str) -> str:
    _, advice = _rule(path)
    instead = advice.edit or advice.becomes
    return f"{advice.says} Instead: {instead}. {_DOCTOR}"
