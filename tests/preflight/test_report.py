"""A report: what follows from its numbers, its JSON, and its text in a terminal."""

import copy
import dataclasses
import io
import json

import pytest
from rich.console import Console

from tests.bad_input import case, row
from tests.preflight.reports import (
    FINDING,
    GIB,
    MEMORY,
    compiled_step,
    fitting_step,
    lowered_step,
    oversized_step,
    report,
    unlowered_step,
)
from tfx_tpu_trainer.hardware import find_slice
from tfx_tpu_trainer.preflight._report import (
    PreflightReport,
    StepReport,
    bytes_text,
    count_text,
    flop_text,
    seconds_text,
)
from tfx_tpu_trainer.preflight._report_files import read_json, write_html, write_json
from tfx_tpu_trainer.preflight._step_time import PUBLISHED_ERRORS
from tfx_tpu_trainer.preflight._text import print_report


def test_a_report_is_ok_when_all_its_steps_are():
    assert report(fitting_step("train"), fitting_step("eval")).ok
    mixed = report(fitting_step("train"), oversized_step("eval"))
    assert not mixed.ok
    assert [step.ok for step in mixed.steps] == [True, False]


def test_the_summary_is_one_line_of_what_is_wrong():
    mixed = report(fitting_step("train"), oversized_step("predict"), unlowered_step("eval"))
    summary = mixed.summary()
    assert "\n" not in summary
    assert summary.startswith("model.py on v5e:2x4: predict: The step needs 29.80 GiB of HBM")
    assert "model.py:7: table" in summary and "take more chips" in summary
    assert "eval: The op AsString" in summary and "train" not in summary
    fine = "train: compiles and fits: 9.25 GiB of 15.8 GiB HBM"
    assert report().summary() == f"model.py on v5e:2x4: {fine}"


def test_bounds_are_those_of_the_slice():
    # 197 GFLOP at 197 TFLOP/s and 819 MB at 819 GB/s are a millisecond each, for 8 x 128 rows.
    step = fitting_step()
    assert step.batch_size == 1024
    assert step.roofline.step_seconds == pytest.approx(1e-3)
    assert step.roofline.examples_per_second == pytest.approx(1_024_000)
    assert oversized_step().roofline is None and unlowered_step().roofline is None


def test_categories_of_hbm_add_up_to_the_need():
    step = fitting_step()
    assert sum(step.hbm_by_category.values()) == step.need_bytes == MEMORY.total
    assert step.hbm_by_category["results that replace no variable"] == GIB
    assert oversized_step().hbm_by_category == {}


def test_every_report_says_how_far_to_trust_it():
    lowering, compiler, bounds, estimates = report().caveats
    assert "XLA:CPU" in lowering
    assert "libtpu 0.0.21" in compiler and "newer" in compiler and "2.16.2" in compiler
    assert "Bounds" in bounds
    assert str(PUBLISHED_ERRORS) in estimates


@pytest.mark.parametrize(
    "made",
    [report(), report(fitting_step("eval"), oversized_step(), unlowered_step("predict"))],
    ids=["ok", "not ok"],
)
def test_json_and_back_is_the_same_report(made, tmp_path):
    values = json.loads(json.dumps(made.to_json(), allow_nan=False))
    assert PreflightReport.from_json(values) == made
    path = str(tmp_path / "new" / "report.json")
    write_json(made, path)
    assert read_json(path) == made
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["report.json"]


KEYS = """
format ok model tpu chip num_replicas num_cores_per_replica num_slices tensorflow compiler steps input caveats
"""
KEYS_OF_A_STEP = """
name ok batch_size parameter_count variable_bytes memory need_bytes limit_bytes hbm_by_category flops bytes_accessed
collective_bytes roofline largest findings problem lowering_seconds compiling_seconds collectives network_bytes estimate
"""
KEYS_OF_A_ROOFLINE = """
compute_seconds memory_seconds collective_seconds network_seconds rows limited_by step_seconds_lower_bound
examples_per_second_upper_bound
"""


def test_the_keys_of_the_json_form_are_stable():
    values = report().to_json()
    (step,) = values["steps"]
    assert list(values) == KEYS.split()
    assert set(step) == set(KEYS_OF_A_STEP.split())
    assert set(step["roofline"]) == set(KEYS_OF_A_ROOFLINE.split())


def test_a_report_of_before_there_were_cores_of_a_replica_and_slices_is_read():
    values = report().to_json()
    del values["num_cores_per_replica"], values["num_slices"]
    del values["steps"][0]["collectives"], values["steps"][0]["network_bytes"]
    del values["steps"][0]["roofline"]["network_seconds"]
    assert PreflightReport.from_json(values) == report()


def test_a_newer_version_may_add_keys():
    values = report().to_json()
    values["steps"][0]["new"] = 1
    values["steps"][0]["largest"][0]["new"] = 1
    assert PreflightReport.from_json({**values, "new": 1}) == report()


@pytest.mark.parametrize(
    "values",
    [
        case("preflight", f"a report {given}", *says, values=(values,))
        for given, values, *says in (
            ("that is a list", [], "is not a preflight report"),
            (
                "of a newer format",
                {"format": "tfx_tpu_trainer.preflight/9"},
                "preflight/9",
                "expected",
            ),
            (
                "with a step without its keys",
                {**report().to_json(), "steps": [{}]},
                "damaged: steps.0.name: Field required",
            ),
        )
    ],
)
def test_what_is_no_report_is_refused(values, refused):
    with refused(ValueError):
        PreflightReport.from_json(copy.deepcopy(values))


@pytest.mark.parametrize(
    "content",
    [
        case("preflight", f"a report that {given}", *says, values=(content,))
        for given, content, *says in (
            (
                "is not valid JSON",
                b"text",
                "report.json contains no preflight report: Expecting value",
            ),
            ("is not UTF-8", b"\xff", "report.json contains no preflight report: 'utf-8' codec"),
            (
                "is nested 100,000 deep",
                b"[" * 100_000,
                "report.json contains no preflight report: maximum",
            ),
            ("is not there", None, "The report ", "report.json can't be read: "),
        )
    ],
)
def test_a_file_that_holds_none_is_named(tmp_path, content, refused):
    path = tmp_path / "report.json"
    if content is not None:
        path.write_bytes(content)
    with refused((ValueError, OSError)):
        read_json(str(path))


@row("disks", "a preflight report below a file", "The report can't be written to ", "file/report: ")
@pytest.mark.parametrize("write", [write_json, write_html])
def test_a_place_that_cannot_be_written_is_named_and_nothing_stays(write, tmp_path, refused):
    (tmp_path / "file").write_text("text", encoding="utf-8")
    with refused(OSError):
        write(report(), str(tmp_path / "file" / "report"))
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def _printed(made) -> str:
    stream = io.StringIO()
    print_report(made, Console(file=stream, width=120, highlight=False))
    return stream.getvalue()


def test_a_step_that_fits():
    text = _printed(report())
    for part in (
        "Preflight of model.py for v5e:2x4  8 replicas, 197 TFLOP/s",
        "✓ train, 1,024 rows: compiles and fits: 9.25 GiB of 15.8 GiB HBM",
        "9.25 GiB of 15.8 GiB (59%)",
        "6 GiB variables and inputs",
        "1.23 M; all variables are 14.1 MiB",
        "197 GFLOP, 781 MiB through HBM",
        "step ≥ 1 ms, limited by compute",
        "≤ 1.02 M examples/s on the slice",
        "f32[1024,3]",
        "deep/table",
        "! padding to 8 x 128 tiles (train): f32[1024,3] takes 42 times the memory.",
        "at: model.py:12: hidden = tf.matmul(inputs, kernel)",
        "* Steps are lowered with the kernels of XLA:CPU",
    ):
        assert part in text, text


def test_the_bar_is_as_full_as_the_memory():
    bar = next(line for line in _printed(report()).splitlines() if "█" in line)
    assert (bar.count("█"), bar.count("░")) == (23, 17)  # 58.7 % of 40


def test_a_step_that_is_too_large_names_op_line_and_remedy():
    text = _printed(report(oversized_step()))
    for part in (
        "✗ train, 1,024 rows: does not fit",
        "The step needs 29.80 GiB of HBM",
        "op: deep/table (VarHandleOp)",
        "at: model.py:7: table = get_variable('table', [10**9, 8])",
        "do: Make the table smaller, or take more chips.",
        "29.8 GiB of 15.8 GiB",
    ):
        assert part in text, text
    assert "step ≥" not in text


def test_a_step_that_was_never_compiled_has_no_memory():
    text = _printed(report(unlowered_step()))
    assert "✗ eval: TensorFlow can't turn it into a TPU program" in text
    assert "The op AsString handles strings" in text
    assert "HBM  " not in text and "step ≥" not in text


def test_of_many_findings_the_first_are_shown():
    many = tuple(dataclasses.replace(FINDING, message=f"finding {n}.") for n in range(11))
    step = StepReport.of(
        lowered_step(), compiled_step(findings=many), tpu_slice=find_slice("v5e:2x4")
    )
    text = _printed(report(step))
    assert "finding 7." in text and "finding 8." not in text
    assert "3 more (all are in --json and --html)" in text


def test_a_finding_of_several_steps_is_shown_once():
    text = _printed(report(fitting_step("train"), fitting_step("eval")))
    assert text.count("f32[1024,3] takes 42 times") == 1
    assert "padding to 8 x 128 tiles (train, eval):" in text


def test_markup_in_a_model_is_no_markup_here():
    named = dataclasses.replace(fitting_step(), name="serve_v1:[red]x[/red]")
    assert "serve_v1:[red]x[/red]" in _printed(report(named, model="[bold].py"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (bytes_text(0), "0 bytes"),
        (bytes_text(1023), "1023 bytes"),
        (bytes_text(1536), "1.5 KiB"),
        (bytes_text(15.75 * 2**30), "15.8 GiB"),
        (bytes_text(5000 * 2**30), "5,000 GiB"),
        (count_text(9_999), "9,999"),
        (count_text(12_345), "12.3 k"),
        (count_text(2.5e13), "25 T"),
        (flop_text(0), "0 FLOP"),
        (flop_text(146.4e9), "146 GFLOP"),
        (seconds_text(12.3), "12.3 s"),
        (seconds_text(0.00123), "1.23 ms"),
        (seconds_text(4.2e-7), "0.42 µs"),
    ],
)
def test_numbers_as_people_read_them(text, expected):
    assert text == expected
