"""The check finds a model that a server would choke on, and lets a sound one pass."""

from __future__ import annotations

import pathlib
import shutil
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.serving.exports import ROWS, edited, examples, formula, tpu_program, with_other_values
from tfx_tpu_trainer.serving import Sample, check_saved_model, place_ops, read_saved_model
from tfx_tpu_trainer.serving._check import check_placement
from tfx_tpu_trainer.serving._check_report import Finding

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
    # A sound model passes in tests/components/trainer/test_serving_step.py as well.
    @pytest.mark.sweep
    def test_a_sound_model_passes(self, exported):
        report, checks = _checks(exported)
        assert report.passed, report.summary()
        assert list(checks) == [ANSWERS, LOADS, PLACED]
        assert {check.outcome for check in report.checks} == {"passed"}
        assert "serving_default['text'], serving_default['y']: 4 rows" in checks[ANSWERS].detail
        assert all(check.seconds >= 0 for check in report.checks)
        (latency,) = report.latencies
        assert (latency.signature, latency.rows) == ("serving_default", len(ROWS))
        assert latency.median_seconds > 0
        assert 1 <= latency.repeats <= 10

    # So does a model that answers otherwise fail there.
    @pytest.mark.sweep
    def test_other_values_of_a_variable_are_found(self, exported, tmp_path):
        # A weight that is 4 too large puts the answer to a row off by 4 x[2]: most in the second
        # row, where x[2] is 8. That row has the largest value, too.
        path = with_other_values(
            exported, tmp_path / "copy", lambda w: w + np.float32([[0, 0], [0, 0], [0, 4]])
        )
        report, checks = _checks(path)
        part = 4 * ROWS[1, 2] / np.abs(formula(ROWS)).max()
        assert [check.name for check in report.failures] == [ANSWERS]
        assert checks[ANSWERS].detail.startswith(
            f"serving_default['y'] differs by {part:.2g} of its largest value"
        )
        assert report.summary().startswith(f"{ANSWERS}: serving_default")

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

    @pytest.mark.sweep
    def test_without_a_sample_it_is_only_loaded(self, exported_in_batches):
        _, checks = _checks(exported_in_batches, sample=None, no_sample_because="it rained")
        assert checks[ANSWERS].outcome == "not run"
        assert checks[ANSWERS].detail == "it can be loaded; it rained"
        assert checks[LOADS].outcome == "passed"


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
    assert list(checks) == [ANSWERS, LOADS, PLACED, "compiles"]
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
