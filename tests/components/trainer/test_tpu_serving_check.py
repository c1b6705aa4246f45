"""The serving check compiles an export where there is a TPU compiler."""

from __future__ import annotations

import functools
import re
import sys
from typing import Any

import pytest

from tests.serving import exports
from tfx_tpu_trainer.components.trainer.settings import TrainSettings
from tfx_tpu_trainer.components.trainer.tpu_checks import CHECK, check_compiles
from tfx_tpu_trainer.serving import check_saved_model

SETTINGS = TrainSettings.parse({})
check = functools.partial(check_compiles, settings=SETTINGS, rows=8)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    return exports.train_and_export(tmp_path_factory.mktemp("exported"))


def test_a_sound_model_passes_and_its_need_is_told(exported):
    outcome, detail = check(exported)
    assert outcome == "passed"
    said = r"for v5e:1x1, batches of 8: serve:serving_default takes 0\.\d MiB \(0\.0%\) of a device's HBM"
    assert re.fullmatch(said, detail)


def test_an_op_that_no_tpu_runs_fails_it(exported, tmp_path):
    def compile_the_text_too(meta_graph: Any) -> None:
        for node in exports.tpu_program(meta_graph).node_def:
            node.attr.pop("_xla_outside_compilation", None)

    outcome, detail = check(exports.edited(exported, tmp_path / "copy", compile_the_text_too))
    assert outcome == "failed"
    assert "for v5e:1x1: serve:serving_default: AsString 'AsString' handles strings" in detail


def test_what_says_nothing_of_the_model_does_not_fail_it(exported, monkeypatch):
    outcome, detail = check(
        exported, settings=SETTINGS.model_copy(update={"serving_check_timeout": 0.01})
    )
    assert outcome == "not run" and "was stopped" in detail
    monkeypatch.setitem(sys.modules, "libtpu", None)
    outcome, detail = check(exported)
    assert outcome == "not run" and "pip install 'tfx-tpu-trainer[preflight]'" in detail


# tests/components/trainer/test_serving_step.py has it among the checks of a component in `make test`.
@pytest.mark.e2e
@pytest.mark.sweep
def test_it_is_one_of_the_checks_of_an_export(exported):
    checks = {CHECK: functools.partial(check, exported)}
    report = check_saved_model(exported, sample=None, further_checks=checks)
    assert report.passed, report.summary()
    assert [each.name for each in report.checks][-1] == CHECK
    assert report.checks[-1].outcome == "passed"
