"""Each canned estimator against what the original made of the same rows from the same first values."""

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from benchmarks import oracle_environment
from tests.estimator.canned import canned_runs
from tests.estimator.canned.record_original_canned import (
    CHECKPOINT,
    CHECKPOINT_OF,
    RECORDING,
    STEPS,
    arguments,
)

pytestmark = pytest.mark.matrix

# Summed losses with plain gradient descent grow without end here: after many steps nothing compares.
MORE_STEPS = 2
RECORDED = json.loads(RECORDING.read_text())
RUNS = RECORDED["runs"]

# Wide and deep models have all of a family, one in each version: that of v2 is the checkpoint of the original's.
QUICK = (
    "combined_regressor v1",
    "baseline_classifier v2",
)


def assert_alike(ours: dict[str, Any], original: dict[str, Any]) -> None:
    """The same names everywhere, and the same numbers to 1e-4."""
    for part in ("metrics", "values"):
        assert list(ours[part]) == list(original[part]), part
        for name, value in original[part].items():
            np.testing.assert_allclose(ours[part][name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    for row, original_row in zip(ours["predictions"], original["predictions"], strict=True):
        assert list(row) == list(original_row)
        for key, value in original_row.items():
            if isinstance(value[0], str):
                assert row[key] == value, key
            else:
                np.testing.assert_allclose(row[key], value, rtol=1e-4, atol=1e-5, err_msg=key)
    assert ours["signatures"] == original["signatures"]
    assert set(original["tags"]) <= set(ours["tags"])
    assert set(original["eval_tags"]) <= set(ours["eval_tags"])


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run, marks=[] if run in QUICK else [pytest.mark.sweep])
        for run in canned_runs.ALL
    ],
)
def test_metrics_keys_names_and_values_are_the_originals(tmp_path, run):
    ours = canned_runs.facts(canned_runs.our_api(run), run, str(tmp_path), STEPS)
    assert_alike(ours, RUNS[run])


def test_a_checkpoint_of_the_original_is_trained_on_as_by_the_original(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(CHECKPOINT, folder)
    apis = canned_runs.our_api(CHECKPOINT_OF)
    assert canned_runs.make(apis, CHECKPOINT_OF, str(folder)).get_variable_value("global_step") == 6
    ours = canned_runs.facts(apis, CHECKPOINT_OF, str(folder), STEPS)
    assert_alike(ours, RUNS[f"{CHECKPOINT_OF} goes on"])


def test_constructors_take_the_originals_arguments_in_order():
    ours = canned_runs.our_api("v2")[0]
    assert arguments({"v1": ours.v1, "v2": ours}) == RECORDED["arguments"]


@pytest.fixture(scope="session")
def original_python() -> str:
    """The interpreter of the original's environment, made where it is missing."""
    return str(oracle_environment.oracle_python())


def facts_of(python: str, run: str, folder: Any, steps: int = STEPS) -> dict[str, Any]:
    """What another interpreter's estimator makes of a folder."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.getcwd()}
    if python != sys.executable:
        # The original's environment has no tf-keras.
        environment.pop("TF_USE_LEGACY_KERAS", None)
    ended = subprocess.run(
        [python, "-m", canned_runs.__name__, run, str(folder), str(steps)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.sweep
@pytest.mark.parametrize("run", canned_runs.ALL)
def test_each_trains_on_from_the_others_checkpoint(tmp_path, original_python, run):
    apis = canned_runs.our_api(run)
    canned_runs.facts(apis, run, str(tmp_path / "ours"), STEPS)
    facts_of(original_python, run, tmp_path / "original")
    shutil.copytree(tmp_path / "ours", tmp_path / "of_ours")
    from_ours = facts_of(original_python, run, tmp_path / "of_ours", MORE_STEPS)
    from_original = canned_runs.facts(apis, run, str(tmp_path / "original"), MORE_STEPS)
    assert_alike(from_original, from_ours)
    assert_alike(canned_runs.facts(apis, run, str(tmp_path / "ours"), MORE_STEPS), from_ours)
