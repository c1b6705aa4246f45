"""Every change that an installation makes, to modules that are there and to those imported later."""

from __future__ import annotations

import functools
import re
import sys
import types
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer import estimator
from tfx_tpu_trainer.compat import _checks, _tfma_names
from tfx_tpu_trainer.compat._contrib_names import ContribNames
from tfx_tpu_trainer.compat._estimator_api import estimator_modules
from tfx_tpu_trainer.compat._import_watcher import Change, ImportWatcher
from tfx_tpu_trainer.compat._keras_names import keras_estimator_module
from tfx_tpu_trainer.compat._moved_modules import MovedModulesFinder
from tfx_tpu_trainer.compat._original_package import original_modules
from tfx_tpu_trainer.compat._undo_log import UndoLog
from tfx_tpu_trainer.estimator.extending import (
    EMULATE_VARIABLE,
    CheckpointInputPipelineHook,
    EmulatedTPUClusterResolver,
    environment_emulates,
)

# Each module of TensorFlow's API exists under several names: tf.compat.v1 is
# tensorflow._api.v2.compat.v1, and `import tensorflow.compat.v1` executes it again.
_ROOT = re.compile(r"tensorflow(?:(?:\.\w+)*\.compat\.(v[12]))?")
_TPU_EXPERIMENTAL = re.compile(r"tensorflow(\.\w+)*\.compat\.v1\.tpu\.experimental")
_DATA_EXPERIMENTAL = re.compile(r"tensorflow(?!\.python\b)(\.\w+)*\.data\.experimental")
_RESOLVERS = re.compile(r"tensorflow(?!\.python\b)(\.\w+)*\.distribute\.cluster_resolver")
# Keras 3 under both of its names; Keras 2 has an `estimator` of its own, which asks the original's
# keras_lib for the rest.
_KERAS = re.compile(r"tensorflow\.keras|keras\._tf_keras\.keras")
# Modules that no one but this package has, and what could be below them.
_ESTIMATOR = re.compile(
    r"(tensorflow(\.compat\.v[12]|\.python)?\.estimator|tensorflow_estimator)\..+"
)

# TF 1.15 had contrib in tf.compat.v1 too; TF 2 never had it.
_CONTRIB = {None: "tensorflow.contrib", "v1": "tensorflow.compat.v1.contrib"}

_PARAMETERS = (
    "AdagradParameters",
    "AdamParameters",
    "FtrlParameters",
    "StochasticGradientDescentParameters",
)


def put_back(log: UndoLog, *, emulate: bool | None) -> None:
    """Makes all changes."""
    _checks.check_names_are_free(
        {
            "tensorflow": tf,
            "tensorflow.compat.v1": tf.compat.v1,
            "tensorflow.compat.v2": tf.compat.v2,
        }
    )
    _checks.check_nothing_is_bound()
    if emulate is None:
        emulate = environment_emulates()
    elif emulate:
        log.set_environment(EMULATE_VARIABLE, "1")
    changes = _Changes(log, emulate=emulate)
    for name, module in changes.modules.items():
        log.set_module(name, module)
    log.add_finder(
        ImportWatcher(
            change_of=changes.change_of, module_of=changes.contrib.module, refusal_of=_refusal
        )
    )
    log.add_last_finder(MovedModulesFinder())
    for name, module in list(sys.modules.items()):
        change = changes.change_of(name)
        if change is not None:
            change(module)


class _Changes:
    """What changes in which module."""

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
        """Returns what to change in the module of this name."""
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
        if name in _tfma_names.WATCHED:
            return lambda module: _tfma_names.add(self._log, module)
        return None

    def _add_estimators(self, module: types.ModuleType, *, version: str | None) -> None:
        values: dict[str, Any] = {"estimator": self._apis[version or "v2"][""]}
        if version != "v2":
            values["contrib"] = self.contrib.module(_CONTRIB[version])
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
