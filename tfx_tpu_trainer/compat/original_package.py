"""The module names of the package `tensorflow_estimator`, for programs that import from it.

Only names that were public, or that public programs import, are here: the classes and functions,
each in the module where the original defined it.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from tfx_tpu_trainer import estimator
from tfx_tpu_trainer.compat.alias_module import make_module
from tfx_tpu_trainer.compat.keras_names import keras_lib_model_to_estimator
from tfx_tpu_trainer.estimator.heads import keys
from tfx_tpu_trainer.estimator.task_environment import TaskType
from tfx_tpu_trainer.estimator.tpu.tpu_context import TPUContext

ROOT = "tensorflow_estimator"
_PYTHON = f"{ROOT}.python.estimator"
# TensorFlow had most of the modules under names of its own too.
_IN_TENSORFLOW = "tensorflow.python.estimator"
_TPU_IN_TENSORFLOW = "tensorflow.python.tpu"

# Module below tensorflow_estimator.python.estimator -> its names that `tf.compat.v1.estimator` has.
_NAMES = {
    "early_stopping": (
        "make_early_stopping_hook",
        "stop_if_higher_hook",
        "stop_if_lower_hook",
        "stop_if_no_decrease_hook",
        "stop_if_no_increase_hook",
    ),
    "estimator": ("Estimator", "VocabInfo", "WarmStartSettings"),
    "exporter": ("BestExporter", "Exporter", "FinalExporter", "LatestExporter"),
    "extenders": ("add_metrics",),
    "head.base_head": ("Head",),
    "head.binary_class_head": ("BinaryClassHead",),
    "head.multi_class_head": ("MultiClassHead",),
    "head.multi_head": ("MultiHead",),
    "head.multi_label_head": ("MultiLabelHead",),
    "head.regression_head": ("LogisticRegressionHead", "PoissonRegressionHead", "RegressionHead"),
    "hooks.basic_session_run_hooks": (
        "CheckpointSaverHook",
        "CheckpointSaverListener",
        "FeedFnHook",
        "FinalOpsHook",
        "GlobalStepWaiterHook",
        "LoggingTensorHook",
        "NanLossDuringTrainingError",
        "NanTensorHook",
        "ProfilerHook",
        "SecondOrStepTimer",
        "StepCounterHook",
        "StopAtStepHook",
        "SummarySaverHook",
    ),
    "hooks.hooks": ("InMemoryEvaluatorHook", "make_stop_at_checkpoint_step_hook"),
    "hooks.session_run_hook": (
        "SessionRunArgs",
        "SessionRunContext",
        "SessionRunHook",
        "SessionRunValues",
    ),
    "mode_keys": ("ModeKeys",),
    "model_fn": ("EstimatorSpec", "ModeKeys", "call_logit_fn"),
    "run_config": ("RunConfig",),
    "training": ("EvalSpec", "TrainSpec", "train_and_evaluate"),
}
# Modules with a class for each version of the API; the newer one's name ends with V2.
_CANNED = {
    "canned.baseline": ("BaselineClassifier", "BaselineEstimator", "BaselineRegressor"),
    "canned.dnn": ("DNNClassifier", "DNNEstimator", "DNNRegressor"),
    "canned.dnn_linear_combined": (
        "DNNLinearCombinedClassifier",
        "DNNLinearCombinedEstimator",
        "DNNLinearCombinedRegressor",
    ),
    "canned.linear": ("LinearClassifier", "LinearEstimator", "LinearRegressor"),
}


def original_modules(
    apis: Mapping[str, Mapping[str, types.ModuleType]],
) -> dict[str, types.ModuleType]:
    """Makes the modules.

    Args:
        apis: `"v1"` and `"v2"` -> what `estimator_modules` gives.

    Returns:
        Full name -> module, each an attribute of the one above it.
    """
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
    values = {module: _take(names) for module, names in _NAMES.items()}
    for module, names in _CANNED.items():
        values[module] = _take(names) | {f"{name}V2": getattr(estimator, name) for name in names}
    values["canned.dnn"] |= _take(("dnn_logit_fn_builder",))
    values["canned.linear"] |= _take(("LinearSDCA", "linear_logit_fn_builder"))
    values["canned.kmeans"] = {"KMeansClustering": estimator.v1.experimental.KMeans}
    values["canned.rnn"] = {
        name: getattr(estimator.experimental, name) for name in ("RNNClassifier", "RNNEstimator")
    }
    values["canned.metric_keys"] = {"MetricKeys": keys.MetricKeys}
    values["canned.prediction_keys"] = {"PredictionKeys": keys.PredictionKeys}
    parsing = ("classifier_parse_example_spec", "regressor_parse_example_spec")
    values["canned.parsing_utils"] = _take(parsing) | {
        f"{name}_v2": getattr(estimator, name) for name in parsing
    }
    values["early_stopping"]["read_eval_metrics"] = estimator.hooks.read_eval_metrics
    values["estimator"]["EstimatorV2"] = estimator.Estimator
    values["run_config"]["TaskType"] = TaskType
    values |= _exports() | _inputs() | _tpu()
    values["estimator_lib"] = _estimator_lib(values)
    values["keras_lib"] = {"model_to_estimator": keras_lib_model_to_estimator}
    return values


def _take(names: tuple[str, ...]) -> dict[str, Any]:
    experimental = vars(estimator.v1.experimental)
    return {
        name: experimental[name] if name in experimental else getattr(estimator.v1, name)
        for name in names
    }


def _exports() -> dict[str, dict[str, Any]]:
    export = estimator.export
    outputs = {name: value for name, value in vars(export).items() if name.endswith("Output")}
    receivers = {
        name: getattr(export, name)
        for name in export.__all__
        if name.startswith("build_") or name.endswith("InputReceiver")
    }
    return {
        "export.export": receivers,
        "export.export_output": outputs,
        "export.export_lib": {**receivers, **outputs},
    }


def _inputs() -> dict[str, dict[str, Any]]:
    numpy_io = {"numpy_input_fn": estimator.inputs.numpy_input_fn}
    pandas_io = {"pandas_input_fn": estimator.inputs.pandas_input_fn}
    return {
        "inputs.inputs": numpy_io | pandas_io,
        "inputs.numpy_io": numpy_io,
        "inputs.pandas_io": pandas_io,
    }


def _tpu() -> dict[str, dict[str, Any]]:
    tpu = estimator.tpu
    named = (
        "BatchConfig",
        "ExportSavedModelApiVersion",
        "TPUEstimator",
        "TPUEstimatorSpec",
        "call_computation",
        "export_estimator_savedmodel",
        "inference_on_tpu",
        "model_fn_inference_on_tpu",
    )
    config = ("InputPipelineConfig", "RunConfig", "TPUConfig")
    return {
        "tpu.tpu_config": {name: getattr(tpu, name) for name in config},
        "tpu.tpu_context": {"TPUContext": TPUContext},
        "tpu.tpu_estimator": {name: getattr(tpu, name) for name in named},
        "tpu._tpu_estimator_embedding": {"EmbeddingConfigSpec": tpu.EmbeddingConfigSpec},
    }


def _estimator_lib(values: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the module that listed the public names before the API was generated."""
    names = [*_NAMES, *_CANNED, "canned.kmeans", "canned.parsing_utils", "canned.rnn"]
    found: dict[str, Any] = {
        "TPUEstimator": estimator.tpu.TPUEstimator,
        "model_to_estimator": estimator.v1.model_to_estimator,
    }
    for module in names:
        found |= {
            name: value
            for name, value in values[module].items()
            if not name.endswith(("V2", "_v2"))
        }
    return found
