"""Tests that the check finds models that would break a server, and passes sound ones; tests its report."""

import json
import os
import pathlib
import shutil
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tests.serving.exports import ROWS, edited, examples, formula, tpu_program
from tfx_tpu_trainer.serving import (
    ALIKE,
    Check,
    Sample,
    ServingCheck,
    check_saved_model,
    place_ops,
    read_saved_model,
    read_serving_check,
    write_serving_check,
)
from tfx_tpu_trainer.serving._check import Finding, Latency, check_placement, compare

ANSWERS = "serve: answers as the estimator predicts"
LOADS = "serve, tpu: loads"
PLACED = "serve, tpu: all of the model on the TPU"


def _sample():
    texts = np.array([str(i).encode() for i in formula(ROWS).argmax(axis=1)], dtype=object)
    return Sample(
        inputs={"serving_default": {"examples": np.array(examples(ROWS), dtype=object)}},
        predictions={"y": formula(ROWS), "text": texts},
    )


def _checks(path, **options):
    report = check_saved_model(path, **{"sample": _sample(), **options})
    return report, {check.name: check for check in report.checks}


def _placement_of(path, *, whole_model=True):
    placement = place_ops(read_saved_model(path).meta_graphs[1])
    return check_placement(placement, whole_model=whole_model)


# Each starts processes that import TensorFlow.
@pytest.mark.e2e
class TestInFreshProcesses:
    # A sound model passes in tests/components/trainer/test_serving_step.py, too.
    @pytest.mark.sweep
    def test_a_sound_model_passes(self, exported):
        report, checks = _checks(exported)
        assert report.passed, report.summary()
        assert list(checks) == [ANSWERS, LOADS, ALIKE, PLACED]
        assert {check.outcome for check in report.checks} == {"passed"}
        assert "serving_default['text'], serving_default['y']: 4 rows" in checks[ANSWERS].detail
        assert all(check.seconds >= 0 for check in report.checks)
        (latency,) = report.latencies
        assert (latency.signature, latency.rows) == ("serving_default", len(ROWS))
        assert latency.median_seconds > 0
        assert 1 <= latency.repeats <= 10

    def test_a_model_that_can_not_be_loaded_is_found_with_the_reason(self, exported, tmp_path):
        def rename(meta_graph):
            for node in meta_graph.graph_def.node:
                if node.op == "ParseExampleV2":
                    node.op = "ParseExampleV99"

        path = edited(exported, tmp_path / "copy", rename)
        shutil.rmtree(f"{path}/variables")
        report, checks = _checks(path, sample=None)
        assert [check.name for check in report.failures] == [ANSWERS, LOADS]
        assert "the metagraph can't be loaded and run: " in checks[ANSWERS].detail
        assert "ParseExampleV99" in checks[LOADS].detail
        assert not any("\n" in check.detail for check in report.checks)


def test_rows_are_taken_while_what_needs_none_is_checked(exported):
    began = threading.Event()

    def compiles():
        began.set()
        return Finding("passed", "it compiles")

    def take():
        assert began.wait(60)
        assert threading.current_thread() is threading.main_thread()
        return "it rained"

    _, checks = _checks(
        exported, sample=take, further_checks={"compiles": compiles}, timeout_seconds=0.01
    )
    assert list(checks) == [ANSWERS, LOADS, ALIKE, PLACED, "compiles"]
    assert checks["compiles"].detail == "it compiles"


@pytest.mark.e2e
def test_why_there_are_no_rows_is_what_the_function_says(exported_in_batches):
    _, checks = _checks(exported_in_batches, sample=lambda: "it rained")
    assert checks[ANSWERS].outcome == "not run"
    assert checks[ANSWERS].detail == "it can be loaded; it rained"


def test_a_process_that_takes_too_long_is_stopped(exported):
    _, checks = _checks(exported, timeout_seconds=0.01)
    for name in (ANSWERS, LOADS):
        assert checks[name].outcome == "failed"
        assert "did not finish within 0.01 s and was stopped" in checks[name].detail


def test_each_op_of_a_sound_model_is_counted(exported):
    assert _placement_of(exported).outcome == "passed"
    assert "1 outside of the compilation, 1 before it, 0 after" in _placement_of(exported).detail


def test_ops_after_the_tpu_are_the_models_own_business_in_version_2_only(exported_in_batches):
    assert _placement_of(exported_in_batches, whole_model=False).outcome == "passed"
    finding = _placement_of(exported_in_batches)
    assert finding.outcome == "failed"
    assert finding.detail.startswith("part of the model is left on the host: AddV2 'add")


def test_a_string_op_on_the_tpu_is_found(exported, tmp_path):
    def add(meta_graph):
        program = tpu_program(meta_graph)
        (product,) = [node for node in program.node_def if node.op == "MatMul"]
        node = program.node_def.add(name="odd", op="AsString", input=[f"{product.name}:product:0"])
        node.attr["T"].type = tf.float32.as_datatype_enum
        node.attr["_tpu_replicate"].CopyFrom(product.attr["_tpu_replicate"])

    finding = _placement_of(edited(exported, tmp_path / "copy", add))
    assert finding.outcome == "failed"
    assert finding.detail.startswith("no TPU can run AsString 'odd', which handles strings")
    assert "outside_compilation" in finding.detail


def test_nothing_on_the_tpu_is_found(exported, tmp_path):
    def unmark(meta_graph):
        for node in tpu_program(meta_graph).node_def:
            node.attr.pop("_tpu_replicate", None)

    finding = _placement_of(edited(exported, tmp_path / "copy", unmark))
    assert finding.outcome == "failed"
    assert "no part of it runs on the TPU" in finding.detail


@row(
    "exports",
    "`check_saved_model` of an empty folder",
    "contains no saved_model.pb; it has no files. Give the folder that contains it",
)
def test_a_path_without_a_model_is_an_error(tmp_path: pathlib.Path, refused):
    with refused(FileNotFoundError):
        check_saved_model(str(tmp_path), sample=None)


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


VALUES = np.array([[1.0, -40.0], [0.001, 20.0]], np.float32)


def _compare(answer, expected, tolerance=1e-6):
    return compare({"serving_default": {"y": np.asarray(answer)}}, {"y": expected}, tolerance)


def test_equal_values_pass():
    finding = _compare(VALUES, VALUES)
    assert finding == (
        "passed",
        "serving_default['y']: 2 rows, largest difference 0 of the largest value",
    )


@pytest.mark.parametrize("tolerance", [1e-6, 1e-3])
@pytest.mark.parametrize(("times", "outcome"), [(0.5, "passed"), (2.0, "failed")])
def test_the_tolerance_is_a_part_of_the_largest_value(tolerance, times, outcome):
    answer = VALUES.astype(np.float64)
    answer[1, 0] += times * tolerance * 40.0
    assert _compare(answer, VALUES.astype(np.float64), tolerance).outcome == outcome


def test_the_difference_is_told():
    answer = VALUES.copy()
    answer[0, 0] += 4.0
    assert _compare(answer, VALUES).detail == (
        "serving_default['y'] differs by 0.1 of its largest value, but only 1e-06 is allowed, from "
        "what the estimator predicts"
    )


def test_nan_and_infinity_equal_themselves_only():
    odd = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert _compare(odd, odd).outcome == "passed"
    for place in range(3):
        answer = odd.copy()
        answer[place] = 1.0
        assert _compare(answer, odd).outcome == "failed"
        assert _compare(odd, answer).outcome == "failed"


def test_zeros_are_compared_absolutely():
    assert _compare(np.full(3, 5e-7), np.zeros(3)).outcome == "passed"
    assert _compare(np.full(3, 2e-6), np.zeros(3)).outcome == "failed"


@pytest.mark.parametrize(
    ("answer", "expected", "outcome"),
    [
        (np.array([b"a", b"b"], object), np.array([b"a", b"b"]), "passed"),
        (np.array([b"a", b"b"], object), np.array(["a", "b"], object), "passed"),
        (np.array([b"a", b"b"], object), np.array([b"a", b"c"], object), "failed"),
        (np.array([True, False]), np.array([True, False]), "passed"),
        (np.array([True, False]), np.array([True, True]), "failed"),
        (np.array([3, 2**40]), np.array([3, 2**40]), "passed"),
        (np.array([3, 4]), np.array([3, 5]), "failed"),
    ],
)
def test_texts_booleans_and_integers_are_the_same_or_not(answer, expected, outcome):
    assert _compare(answer, expected).outcome == outcome


@pytest.mark.parametrize("expected", [VALUES[:, :1], VALUES.astype(np.float64)])
def test_another_shape_or_type_is_told(expected):
    finding = _compare(VALUES, expected)
    assert finding.outcome == "failed"
    assert finding.detail.startswith(
        f"serving_default['y'] is float32[2, 2] such as [1.0] instead of {expected.dtype}"
        f"{list(expected.shape)} such as [1.0], from"
    )


def test_every_signature_is_compared():
    answers = {"a": {"y": VALUES, "only here": VALUES}, "b": {"y": VALUES + 1}}
    finding = compare(answers, {"y": VALUES}, 1e-6)
    assert finding.outcome == "failed" and finding.detail.startswith("b['y'] differs")


def test_outputs_without_a_prediction_of_their_name_are_not_judged():
    finding = compare({"a": {"y": VALUES}}, {"z": VALUES}, 1e-6)
    assert finding == ("not run", "it answers a, but no output has the name of a prediction (z)")
