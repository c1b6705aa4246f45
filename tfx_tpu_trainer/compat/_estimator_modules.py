"""Makes the modules of `tf.estimator` and of the package `tensorflow_estimator`, with the original's names only.

Only names that were public, or that public programs import, are included, each in the module where the original
defined it.
"""

import types
from collections.abc import Mapping
from typing import Any

from tfx_tpu_trainer import estimator
from tfx_tpu_trainer.compat._installation import make_module
from tfx_tpu_trainer.compat._original_names import EXPORT_NAMES, MODULES, NAMES, TPU_NAMES
from tfx_tpu_trainer.estimator.extending import (
    MetricKeys,
    PredictionKeys,
    TaskType,
    TPUContext,
    argument_names,
    as_input_tensors,
)


def estimator_modules(version: str) -> dict[str, types.ModuleType]:
    """Makes the modules of one version of the API."""
    ours = estimator if version == "v2" else estimator.v1
    root = "tensorflow.estimator" if version == "v2" else "tensorflow.compat.v1.estimator"
    names: dict[str, tuple[types.ModuleType, tuple[str, ...]]] = {
        "": (ours, tuple(NAMES)),
        "experimental": (ours.experimental, tuple(ours.experimental.__all__)),
        "export": (estimator.export, EXPORT_NAMES),
    }
    if version == "v1":
        names["inputs"] = (estimator.inputs, tuple(estimator.inputs.__all__))
        names["tpu"] = (estimator.tpu, TPU_NAMES)
        names["tpu.experimental"] = (estimator.tpu.experimental, ("EmbeddingConfigSpec",))
    modules = {
        below: make_module(
            f"{root}.{below}".rstrip("."),
            {name: getattr(source, name) for name in wanted},
            doc=f"`{source.__name__}` under its name in TensorFlow up to 2.15.",
        )
        for below, (source, wanted) in names.items()
    }
    for below, module in modules.items():
        if below:
            above, _, name = below.rpartition(".")
            setattr(modules[above], name, module)
            vars(modules[above])["__all__"].append(name)
    return modules


ROOT = "tensorflow_estimator"
_PYTHON = f"{ROOT}.python.estimator"
# TensorFlow had most modules under its own names, too.
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
    """Adds the modules' parent packages, and makes each module an attribute of its parent."""
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
    """Returns the public values of each module in tensorflow_estimator.python.estimator."""
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
    # A module with one class per version of the API gives the newer one this suffix.
    for suffix in ("V2", "_v2"):
        if name.endswith(suffix):
            return getattr(estimator, name.removesuffix(suffix))
    places = (v1.experimental, v1, estimator.experimental, estimator.export, estimator.inputs)
    return next(getattr(place, name) for place in places if hasattr(place, name))


def _parse_input_fn_result(result: Any) -> tuple[Any, Any, list[Any]]:
    """Returns features, labels and the hooks that start the input, as the original's `util` does."""
    inputs = as_input_tensors(result)
    return inputs.features, inputs.labels, list(inputs.hooks)


def keras_estimator_module() -> types.ModuleType:
    """Makes the module `tf.keras.estimator`."""
    return make_module(
        "tensorflow.keras.estimator",
        {"model_to_estimator": estimator.model_to_estimator},
        doc="`tfx_tpu_trainer.estimator.model_to_estimator`, where Keras 2 has it.",
    )


def keras_lib_model_to_estimator(
    keras_model: Any = None, *, use_v2_estimator: bool = False, **options: Any
) -> Any:
    """Makes an estimator from a Keras model; called by Keras 2's own `model_to_estimator`."""
    api = estimator if use_v2_estimator else estimator.v1
    return api.model_to_estimator(keras_model, **options)
