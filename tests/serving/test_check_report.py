from __future__ import annotations

import json
import os

import pytest

from tests.bad_input import case
from tfx_tpu_trainer.serving import Check, ServingCheck, read_serving_check, write_serving_check
from tfx_tpu_trainer.serving._check_report import Latency

REPORT = ServingCheck(
    (
        Check("serve: answers", "passed", "4 rows", 1.25),
        Check("serve, tpu: loads", "failed", "an op is not known", 0.5),
        Check("compiles", "not run", "no compiler"),
    )
)


def test_there_and_back(tmp_path):
    path = write_serving_check(str(tmp_path), REPORT)
    assert os.listdir(tmp_path) == ["serving_check.json"]
    assert read_serving_check(str(tmp_path)) == REPORT
    with open(path, encoding="utf-8") as file:
        values = json.load(file)
    assert values["passed"] is False
    assert values["checks"][0] == {
        "name": "serve: answers",
        "outcome": "passed",
        "detail": "4 rows",
        "seconds": 1.25,
    }


def test_latencies_come_back_and_reports_of_the_version_before_have_none(tmp_path):
    latency = Latency(signature="s", rows=32, first_seconds=0.5, median_seconds=0.001, repeats=10)
    path = write_serving_check(str(tmp_path), ServingCheck(REPORT.checks, (latency,)))
    assert read_serving_check(str(tmp_path)).latencies == (latency,)
    with open(path, encoding="utf-8") as file:
        values = json.load(file)
    del values["latencies"]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(values, file)
    assert read_serving_check(str(tmp_path)) == REPORT


def test_one_failure_fails_it():
    assert not REPORT.passed
    assert REPORT.summary() == "serve, tpu: loads: an op is not known"
    rest = ServingCheck((REPORT.checks[0], REPORT.checks[2]))
    assert rest.passed
    assert rest.summary() == "serve: answers: passed; compiles: not run"


def test_no_file_is_no_report(tmp_path):
    assert read_serving_check(str(tmp_path)) is None


@pytest.mark.parametrize(
    "text",
    [
        case(
            "exports",
            f"a `serving_check.json` that holds `{text}`",
            f"serving_check.json is not a report of a serving check ({says}",
            "): remove it, or let TpuTrainer write it again",
            values=text,
        )
        for text, says in (
            ("", "JSONDecodeError"),
            ("{", "JSONDecodeError"),
            ("[]", "TypeError"),
            ('{"checks": [{"name": 1}]}', "TypeError"),
            (
                '{"checks": [{"name": 1, "outcome": "passed", "detail": ""}]}',
                "a check is Check(name=1",
            ),
        )
    ],
)
def test_another_file_is_named(tmp_path, text, refused):
    (tmp_path / "serving_check.json").write_text(text)
    with refused(ValueError):
        read_serving_check(str(tmp_path))


def test_what_a_model_says_of_itself_can_not_command_a_terminal():
    report = ServingCheck((Check("serve", "failed", "the tensor \x1b]0;title\x07 is wrong"),))
    assert report.summary() == r"serve: the tensor \x1b]0;title\x07 is wrong"
