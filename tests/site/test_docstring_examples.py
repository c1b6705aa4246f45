"""Runs every docstring's example and compares its output; main names must have one."""

import doctest
import importlib
import inspect
import linecache
import sys
from pathlib import Path
from types import ModuleType

import pytest

from scripts.site_hooks import PACKAGE, examples
from tests.sweeps import mostly_swept

pytestmark = pytest.mark.e2e

EXAMPLES = examples()

# Those that take more than a second, while a quick one goes the same way.
SLOW = {
    "BestExporter",
    "DNNLinearCombinedClassifier",
    "InMemoryEvaluatorHook",
    "add_metrics",
    "check_saved_model",
    "from_estimator",
    "preflight_saved_model",
}


@mostly_swept(
    "place", EXAMPLES, kept=[place for place in EXAMPLES if place.split(":")[1] not in SLOW]
)
def test_an_example_prints_what_it_says(place, tmp_path, monkeypatch):
    path, name = place.split(":")
    monkeypatch.chdir(tmp_path)
    # Names come from the example's own imports, as when a reader pastes it.
    example = doctest.DocTestParser().get_doctest(EXAMPLES[place], {}, name, path, 0)
    for number, part in enumerate(example.examples):
        # AutoGraph converts only functions whose source it finds, as it would in a program's file.
        lines = part.source.splitlines(keepends=True)
        linecache.cache[f"<doctest {name}[{number}]>"] = len(part.source), None, lines, name
    said: list[str] = []
    ran = doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert ran.attempted >= 3
    assert ran.failed == 0, "".join(said)


# Module -> those of its public names that people start from; of `True`, all that are not abstract.
STARTED_FROM = {
    "": ["EvalMetricsGate", "LastBlessedModel", "TpuSpec", "TpuTrainer", "VertexTpuTrainer"],
    "compat": ["install", "uninstall"],
    "compat.doctor": ["examine", "repair"],
    "estimator": [
        "BaselineClassifier",
        "DNNClassifier",
        "DNNLinearCombinedClassifier",
        "Estimator",
        "EstimatorSpec",
        "LinearClassifier",
        "LinearEstimator",
        "RunConfig",
        "WarmStartSettings",
        "add_metrics",
        "keras_to_estimator",
    ],
    "estimator.experimental": ["InMemoryEvaluatorHook", "make_early_stopping_hook"],
    "estimator.export": [
        "build_parsing_serving_input_receiver_fn",
        "build_raw_serving_input_receiver_fn",
    ],
    "estimator.heads": True,
    "estimator.inputs": ["numpy_input_fn"],
    "estimator.schedule": True,
    "estimator.tpu": [
        "CrossShardOptimizer",
        "RunConfig",
        "TPUConfig",
        "TPUEstimator",
        "TPUEstimatorSpec",
        "from_estimator",
    ],
    "components.evaluation": ["EvalMetrics", "read_eval_metrics"],
    "hardware": ["TpuSpec", "find_slice"],
    "preflight": ["preflight", "preflight_function", "preflight_saved_model"],
    "serving": ["check_saved_model", "describe_saved_model", "find_saved_model", "load_serving"],
    "components.tuning": ["TuneSettings", "make_tuner_fn"],
}


@pytest.mark.parametrize("module", STARTED_FROM)
def test_the_names_that_people_start_from_have_an_example(module):
    public = importlib.import_module(f"tfx_tpu_trainer.{module}".rstrip("."))
    names = STARTED_FROM[module]
    if names is True:
        names = [name for name in public.__all__ if not inspect.isabstract(getattr(public, name))]
    assert set(names) <= set(public.__all__)
    assert [name for name in names if _place(public, name) not in EXAMPLES] == []


def _place(module: ModuleType, name: str) -> str:
    home = sys.modules[getattr(module, name).__module__]
    is_ours = home.__name__.startswith("tfx_tpu_trainer")
    file = inspect.getsourcefile(home if is_ours else module)
    return f"{Path(file).relative_to(PACKAGE)}:{name}"
