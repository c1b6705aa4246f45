"""The module names of the package `tensorflow_estimator`, for programs that import from it.

Only names that were public, or that public programs import, are here: the classes and functions,
each in the module where the original defined it.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from tfx_tpu_trainer import estimator
from tfx_tpu_trainer.compat._alias_module import make_module
from tfx_tpu_trainer.compat._keras_names import keras_lib_model_to_estimator
from tfx_tpu_trainer.compat._original_names import MODULES
from tfx_tpu_trainer.estimator.extending import (
    MetricKeys,
    PredictionKeys,
    TaskType,
    TPUContext,
    argument_names,
    as_input_tensors,
)

ROOT = "tensorflow_estimator"
_PYTHON = f"{ROOT}.python.estimator"
# TensorFlow had most of the modules under names of its own too.
_IN_TENSORFLOW = "tensorflow.python.estimator"
_TPU_IN_TENSORFLOW = "tensorflow.python.tpu"


def original_modules(
    apis: Mapping[str, Mapping[str, types.ModuleType]],
) -> dict[str, types.ModuleType]:
    """Makes the modules."""
    values = _values()
    modules = {f"{_PYTHON}.{below}": _module(below, names) for below, names in values.items()}
    for version, api in apis.items():
        for place in (f"{_PYTHON}.api._{version}.estimator", f"{ROOT}._api.{version}.estimator"):
            modules |= {f"{place}.{below}".rstrip("."): module for below, module in api.items()}
    modules |= {
        f"{ROOT}.estimator.{below}".rstrip("."): module for below, module in apis["v1"].items()
    }
    _add_packages(modules)
    for name in ("tpu_config", "tpu_context", "tpu_estimator", "_tpu_estimator_embedding"):
        modules[f"{_TPU_IN_TENSORFLOW}.{name}"] = modules[f"{_PYTHON}.tpu.{name}"]
    return modules | {
        name.replace(_PYTHON, _IN_TENSORFLOW): module
        for name, module in modules.items()
        if name.startswith(_PYTHON)
    }


def _module(below: str, values: Mapping[str, Any]) -> types.ModuleType:
    doc = f"The public names of {_PYTHON}.{below}, from tfx_tpu_trainer."
    return make_module(f"{_PYTHON}.{below}", values, doc=doc)


def _add_packages(modules: dict[str, types.ModuleType]) -> None:
    """Adds the packages above the modules, and makes each module an attribute of its own."""
    for name in list(modules):
        while "." in name:
            above, _, last = name.rpartition(".")
            if above not in modules:
                modules[above] = make_module(
                    above, {}, doc=f"Public modules of {above}, from tfx_tpu_trainer."
                )
            vars(modules[above]).setdefault(last, modules[name])
            name = above


def _values() -> dict[str, dict[str, Any]]:
    """Module below tensorflow_estimator.python.estimator -> its public values."""
    return {
        module: {name: _value(module, name) for name in names} for module, names in MODULES.items()
    }


def _value(module: str, name: str) -> Any:
    v1 = estimator.v1
    if module == "keras_lib":
        return keras_lib_model_to_estimator
    elsewhere = {
        "KMeansClustering": v1.experimental.KMeans,
        "MetricKeys": MetricKeys,
        "PredictionKeys": PredictionKeys,
        "TPUContext": TPUContext,
        "TPUEstimator": estimator.tpu.TPUEstimator,
        "TaskType": TaskType,
        "fn_args": argument_names,
        "parse_input_fn_result": _parse_input_fn_result,
        "read_eval_metrics": estimator.hooks.read_eval_metrics,
    }
    if name in elsewhere:
        return elsewhere[name]
    if module.startswith("tpu."):
        return getattr(estimator.tpu, name)
    # A module with a class for each version of the API has the newer one under such a name.
    for suffix in ("V2", "_v2"):
        if name.endswith(suffix):
            return getattr(estimator, name.removesuffix(suffix))
    places = (v1.experimental, v1, estimator.experimental, estimator.export, estimator.inputs)
    return next(getattr(place, name) for place in places if hasattr(place, name))


def _parse_input_fn_result(result: Any) -> tuple[Any, Any, list[Any]]:
    """Returns features, labels and the hooks that start the input, as the original's `util` does."""
    inputs = as_input_tensors(result)
    return inputs.features, inputs.labels, list(inputs.hooks)
