"""`tfx-tpu-trainer inspect` on what the demo pipelines leave behind."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tfx_tpu_trainer.cli.main import main

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("name", ["taxi_run", "digits_run"])
def test_the_trained_model_is_checked_and_warmed_up(name, request):
    run = request.getfixturevalue(name)
    model = run.output_folder("TpuTrainer", "model")
    ended = CliRunner().invoke(main, ["inspect", str(model), "--json"])
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout)
    assert found["check"]["passed"]
    outcomes = {check["name"]: check["outcome"] for check in found["check"]["checks"]}
    assert set(outcomes.values()) == {"passed"} and len(outcomes) == 3
    assert found["warmup"] == [{"signature": "serving_default", "rows": 1, "records": 1}]
    assert found["meta_graphs"][1]["ops"]["refused_by_tpu"] == []
