"""A report: what follows from its numbers, and its JSON."""

from __future__ import annotations

import copy
import json

import pytest

from tests.bad_input import case, row
from tests.preflight.reports import (
    GIB,
    MEMORY,
    fitting_step,
    oversized_step,
    report,
    unlowered_step,
)
from tfx_tpu_trainer.preflight._report import PreflightReport
from tfx_tpu_trainer.preflight._report_files import read_json, write_html, write_json
from tfx_tpu_trainer.preflight._step_time import PUBLISHED_ERRORS


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


def test_the_keys_of_the_json_form_are_stable():
    values = report().to_json()
    assert list(values) == [
        "format",
        "ok",
        "model",
        "tpu",
        "chip",
        "num_replicas",
        "num_cores_per_replica",
        "num_slices",
        "tensorflow",
        "compiler",
        "steps",
        "input",
        "caveats",
    ]
    assert set(values["steps"][0]) == {
        "name",
        "ok",
        "batch_size",
        "parameter_count",
        "variable_bytes",
        "memory",
        "need_bytes",
        "limit_bytes",
        "hbm_by_category",
        "flops",
        "bytes_accessed",
        "collective_bytes",
        "roofline",
        "largest",
        "findings",
        "problem",
        "lowering_seconds",
        "compiling_seconds",
        "collectives",
        "network_bytes",
        "estimate",
    }
    assert set(values["steps"][0]["roofline"]) == {
        "compute_seconds",
        "memory_seconds",
        "collective_seconds",
        "network_seconds",
        "rows",
        "limited_by",
        "step_seconds_lower_bound",
        "examples_per_second_upper_bound",
    }


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
                "damaged: KeyError",
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
