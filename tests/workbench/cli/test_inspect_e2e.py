"""`tfx-tpu-trainer inspect` on what the demo pipelines leave behind."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tests.pipeline_runs import PipelineRun
from tfx_tpu_trainer.workbench.cli.main import main

pytestmark = pytest.mark.e2e


def test_taxi_is_checked_and_warmed_up(taxi_run: PipelineRun):
    _is_checked_and_warmed_up(taxi_run)


def test_digits_is_checked_and_warmed_up(digits_run: PipelineRun):
    _is_checked_and_warmed_up(digits_run)


def _is_checked_and_warmed_up(run: PipelineRun) -> None:
    model = run.output_folder("TpuTrainer", "model")
    ended = CliRunner().invoke(main, ["inspect", str(model), "--json"])
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout)
    assert found["check"]["passed"]
    outcomes = {check["name"]: check["outcome"] for check in found["check"]["checks"]}
    assert outcomes == {
        "serve: answers as the estimator predicts": "passed",
        "serve, tpu: loads": "passed",
        "serve, tpu: all of the model on the TPU": "passed",
        "serve, tpu: compiles": "passed",
    }
    assert found["warmup"] == [{"signature": "serving_default", "rows": 1, "records": 1}]
    assert found["meta_graphs"][1]["ops"]["refused_by_tpu"] == []
