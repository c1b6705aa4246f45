"""The table of a search."""

from __future__ import annotations

from tfx_tpu_trainer.components.tuning._results import TrialResult, table_of


def _result(number, score, *, status="COMPLETED", message="", **values):
    return TrialResult(
        trial_id=number, values=values, status=status, score=score, step=30, message=message
    )


RESULTS = [
    _result("02", 0.9, rate=0.0123456, optimizer="adam"),
    _result("00", 0.8, rate=0.1, optimizer="momentum", momentum=0.5),
    _result("01", None, status="FAILED", message="it has diverged", rate=30.0, optimizer="adam"),
    _result("03", None, status="RUNNING", rate=0.2, optimizer="adam"),
]


def test_the_table_has_a_row_for_each_trial_and_a_reason_for_each_that_failed():
    lines = table_of(RESULTS, objective="auc").splitlines()
    assert [line.split() for line in (lines[0], *lines[2:])] == [
        ["trial", "auc", "step", "rate", "optimizer", "momentum"],
        ["02", "0.9", "30", "0.01235", "adam", "-"],
        ["00", "0.8", "30", "0.1", "momentum", "0.5"],
        ["01", "-", "30", "30", "adam", "-", "it", "has", "diverged"],
        ["03", "-", "30", "0.2", "adam", "-", "running"],
    ]
