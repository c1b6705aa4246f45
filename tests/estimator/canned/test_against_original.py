"""Each canned estimator against what the original made of the same rows from the same first values."""

import json
import shutil
from typing import Any

import numpy as np
import pytest

from tests.estimator.canned import canned_runs
from tests.estimator.canned.record_original_canned import (
    CHECKPOINT,
    CHECKPOINT_OF,
    RECORDING,
    STEPS,
    arguments,
)
from tests.estimator.original import facts_of
from tests.estimator.original import original_python as original_python

pytestmark = pytest.mark.matrix

# Summed losses with plain gradient descent grow without end here: after many steps nothing compares.
MORE_STEPS = 2
RECORDED = json.loads(RECORDING.read_text())
RUNS = RECORDED["runs"]

# Wide and deep models have all of a family, one in each version: that of v2 is the checkpoint of the original's.
QUICK = ("combined_regressor v1", "baseline_classifier v2")


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


@pytest.mark.sweep
@pytest.mark.parametrize("run", canned_runs.ALL)
def test_each_trains_on_from_the_others_checkpoint(tmp_path, original_python, run):
    apis = canned_runs.our_api(run)
    canned_runs.facts(apis, run, str(tmp_path / "ours"), STEPS)
    facts_of(original_python, canned_runs, run, tmp_path / "original", STEPS)
    shutil.copytree(tmp_path / "ours", tmp_path / "of_ours")
    from_ours = facts_of(original_python, canned_runs, run, tmp_path / "of_ours", MORE_STEPS)
    from_original = canned_runs.facts(apis, run, str(tmp_path / "original"), MORE_STEPS)
    assert_alike(from_original, from_ours)
    assert_alike(canned_runs.facts(apis, run, str(tmp_path / "ours"), MORE_STEPS), from_ours)
