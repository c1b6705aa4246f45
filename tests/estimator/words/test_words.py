"""What programs hear of ours begins with the original's words.

`original.json` is what `record_original.py` recorded, with the command that it names.
"""

import json
import pathlib
import re
from collections import Counter

import pytest

from tests.estimator.words import differences, hook_lines, outcomes
from tests.estimator.words.cases import CASES
from tests.estimator.words.stacks import Stack
from tests.sweeps import mostly_swept
from tfx_tpu_trainer import estimator
from tfx_tpu_trainer._support import progress_views
from tfx_tpu_trainer.estimator import tpu, v1

pytestmark = pytest.mark.matrix

ORIGINAL = json.loads(pathlib.Path(__file__).with_name("original.json").read_text("utf-8"))
PAGE = pathlib.Path(__file__).parents[3] / "docs" / "behaviours.md"
ROWS, RECORDED = ORIGINAL["rows"], ORIGINAL["cases"]


def said(name: str) -> tuple[str, BaseException | None]:
    """Returns how ours differs from the recording in a case, or "", and ours's error."""
    with Stack(estimator, v1, tpu) as stack:
        told, _, error = outcomes.outcome(CASES[name], stack)
    return (outcomes.difference(RECORDED[name], told, error, **differences.log_rules(name)), error)


# Long cases all of whose rows other cases have too.
SWEPT = {
    "hooks.early_stopping_below",
    "hooks.in_memory",
    "training.locally",
    "training.locally_without_max_steps",
    "training.locally_on_empty_input",
    "estimator.warm_start",
    "estimator.metric_of_a_double",
    "estimator.metric_of_a_summary",
    "estimator.train_101_steps",
    "specs.metric_fn",
    "canned.old_label_of_three_classes_too_high",
}


@mostly_swept("name", RECORDED, kept=RECORDED.keys() - SWEPT)
@pytest.mark.behaviour(
    9, 10, 11, 39, 40, 41, 52, 53, 103, 151, 153, 154, 191, 197, 199, 210, 231, 232, 246, 362
)
def test_ours_fails_and_logs_in_the_words_of_the_original(name):
    difference, error = said(name)
    if name in differences.CASES:
        assert difference, "equal by now: take it out of differences.CASES"
    else:
        assert not difference, f"{difference}\n{error!r}"


def _is_unsaid(row: str) -> bool:
    """Tells whether a row is a log line that ours has no use for."""
    words = outcomes.first_words(ROWS[row], 3).replace("%s", "infeed")
    unsaid = [line.partition(" ")[2] for line in differences.UNSAID]
    return ":log:" in row and any(
        bool(words) and (line.startswith(words) or words.startswith(line)) for line in unsaid
    )


def _status(row: str) -> str:
    """Returns what is known of a row: equal, documented, without a case, or open."""
    names = [name for name, told in RECORDED.items() if row in told["rows"]]
    if names and all(name.startswith("tpu") for name in names) and _is_unsaid(row):
        return "documented"
    if any(name not in differences.CASES for name in names):
        return "equal"
    if names:
        return "documented"
    return "no case" if any(map(row.startswith, differences.ROWS)) else "open"


def test_no_row_is_open():
    assert [row for row in ROWS if _status(row) == "open"] == []


def test_the_page_counts_the_rows():
    counts = Counter(map(_status, ROWS))
    found = re.findall(r"^\| (equal|documented|no case|open) \| (\d+) \|", PAGE.read_text(), re.M)
    told = {status: int(count) for status, count in found}
    assert told == {"open": 0, **counts}


def test_every_reason_is_of_rows_without_a_case():
    hit = {row for told in RECORDED.values() for row in told["rows"]}
    for start in differences.ROWS:
        assert any(row.startswith(start) and row not in hit for row in ROWS), start
    assert set(differences.CASES) <= set(RECORDED)


def test_every_case_is_recorded():
    assert list(CASES) == list(RECORDED)


_TRAINING = """Calling model_fn.
Done calling model_fn.
Saving checkpoints for 0 into model.ckpt.
loss = 2.5, step = 0
loss = 0.0, step = 100 (SECONDS)
loss = 0.0, step = 200 (SECONDS)
Saving checkpoints for 201 into model.ckpt.
Loss for final step: 0.0."""
_BEFORE_EVALUATION = """Calling model_fn.
Done calling model_fn.
Starting evaluation at TIME
Restoring parameters from model.ckpt-201"""
_AFTER_EVALUATION = """Inference Time : SECONDS
Finished evaluation at TIME
Saving dict for global step 201: global_step = 201, loss = 0.0
Saving 'checkpoint_path' summary for global step 201: model.ckpt-201"""


def _evaluation(steps: int, shown: list[int]) -> list[str]:
    between = [f"Evaluation [{step}/{steps}]" for step in shown]
    return [*_BEFORE_EVALUATION.split("\n"), *between, *_AFTER_EVALUATION.split("\n")]


def test_losses_are_said_at_steps_0_100_200_and_evaluations_every_tenth(monkeypatch):
    # The original has no least time between lines.
    monkeypatch.setattr(progress_views, "LINE_SECONDS", 0.0)
    with Stack(estimator, v1, tpu) as stack:
        said = hook_lines.lines(stack)
    assert said == [
        *_TRAINING.split("\n"),
        *_evaluation(3, [1, 2, 3]),
        *_evaluation(25, [*range(2, 25, 2), 25]),
    ]
