"""The examples of the names that people start from run, and print what their docstrings say."""

from __future__ import annotations

import doctest
import importlib

import pytest

pytestmark = pytest.mark.e2e

# module:name of what people import first.
NAMES = (
    "tfx_tpu_trainer.component:EvalMetricsGate",
    "tfx_tpu_trainer.component:TpuTrainer",
    "tfx_tpu_trainer.doctor:examine",
    "tfx_tpu_trainer.doctor:repair",
    "tfx_tpu_trainer.estimator:Estimator",
    "tfx_tpu_trainer.estimator:keras_to_estimator",
    "tfx_tpu_trainer.estimator.tpu:TPUEstimator",
    "tfx_tpu_trainer.hardware:TpuSpec",
    "tfx_tpu_trainer.preflight:preflight",
)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_prints_what_it_says(name, tmp_path, monkeypatch):
    module, attribute = name.split(":")
    value = getattr(importlib.import_module(module), attribute)
    monkeypatch.chdir(tmp_path)
    # Names come from the example's own imports, as where a reader pastes it.
    (example,) = doctest.DocTestFinder(recurse=False).find(value, attribute, globs={})
    said: list[str] = []
    ran = doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert ran.attempted >= 3
    assert ran.failed == 0, "".join(said)
