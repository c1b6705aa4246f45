"""Tests the checks of a model for a TPU before the first step."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import re
import sys
from typing import Any

import pytest

from tests.components.trainer.execution import Execution
from tests.serving import exports
from tfx_tpu_trainer.components.trainer.settings import TrainSettings
from tfx_tpu_trainer.components.trainer.tpu_checks import CHECK, PreflightError, check_compiles
from tfx_tpu_trainer.preflight._report_files import read_json
from tfx_tpu_trainer.serving import check_saved_model


def _execution(folder, preflight, **properties) -> Execution:
    on_a_chip = {"tpu": "v5e:1x1", "use_tpu": 1, "master": "emulated", "export_to_tpu": 0}
    return Execution.of_trainer(folder, steps=2, preflight=preflight, **on_a_chip, **properties)


def _report(execution: Execution):
    return read_json(
        os.path.join(execution.outputs["model_run"][0].uri, "preflight", "report.json")
    )


@pytest.fixture
def no_libtpu(monkeypatch):
    """A machine without the package of the compiler."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "libtpu" else find(name, *rest),
    )


@pytest.mark.matrix
def test_a_model_that_does_not_fit_is_not_trained(tmp_path):
    execution = _execution(tmp_path, "error", params='{"width": 500000000}')
    with pytest.raises(PreflightError) as caught:
        execution.run()
    message = str(caught.value)
    assert "\n" not in message
    for part in (
        "Nothing was trained: tests.components.trainer.small_model on v5e:1x1: train:",
        "payment",
        "small_model.py",
        "model_run/preflight",
        "preflight='warn'",
    ):
        assert part in message, message
    assert os.listdir(tmp_path / "model_run") == ["preflight"]
    assert sorted(os.listdir(tmp_path / "model_run" / "preflight")) == [
        "report.html",
        "report.json",
    ]
    assert execution.files() == []
    report = _report(execution)
    assert not report.ok and report.steps[0].problem.stage == "memory"


@pytest.mark.matrix
def test_a_model_that_fits_is_trained_and_its_report_kept(tmp_path):
    execution = _execution(tmp_path, "error")
    execution.run()
    report = _report(execution)
    assert report.ok and [step.name for step in report.steps] == ["train", "eval"]
    assert [step.batch_size for step in report.steps] == [64, 64]
    # The input was read, too, from the training split.
    assert report.input is not None and report.input.rows % 64 == 0
    assert report.input_limit.limited_by in ("input", "chips", "either")
    assert os.path.exists(execution.serving_dir)


@pytest.mark.matrix
def test_a_warning_lets_the_training_go_on(tmp_path, caplog, no_libtpu):
    with caplog.at_level(logging.WARNING):
        _execution(tmp_path, "warn").run()
    (record,) = [each for each in caplog.records if "preflight='warn'" in each.getMessage()]
    assert "libtpu, which holds the TPU compiler, is not installed" in record.getMessage()
    assert os.path.exists(tmp_path / "model" / "Format-Serving")


@pytest.mark.matrix
def test_without_the_compiler_an_error_says_how_to_get_it(tmp_path, no_libtpu):
    with pytest.raises(PreflightError, match=r"is not installed: pip install .*\[preflight\]"):
        _execution(tmp_path, "error").run()


@pytest.mark.matrix
@pytest.mark.parametrize("preflight", ["warn", "error"])
def test_a_preflight_needs_a_slice(preflight):
    with pytest.raises(
        ValueError, match=f"preflight='{preflight}' compiles for a TPU slice, but tpu is not set"
    ):
        TrainSettings.parse({"preflight": preflight})
    assert TrainSettings.parse({}).preflight == "off"
    with pytest.raises(ValueError, match="preflight='always' is not valid; give 'off', 'warn'"):
        TrainSettings.parse({"preflight": "always"})


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
