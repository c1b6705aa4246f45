"""Compares recorded published TPU speeds with the preflight's bound and estimate."""

import re

import pytest

from benchmarks.published_tpus import comparison, programs
from benchmarks.published_tpus.results import PUBLISHED
from tfx_tpu_trainer.preflight._step_time import PUBLISHED_ERRORS

RECORDED = comparison.read()


def test_the_record_has_each_published_result():
    assert len(RECORDED) == len(PUBLISHED) >= 20
    named = [(each.model, each.slice_name, each.source) for each in RECORDED]
    assert named == [(each.model, each.slice_name, each.source) for each in PUBLISHED]
    # Repository, file and year.
    assert all(re.fullmatch(r"\S+/\S+, .+ \(20\d\d\)", each.source) for each in PUBLISHED)


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: f"{row.model}-{row.slice_name}")
def test_no_published_step_beats_the_bound(row):
    assert row.bound_seconds < row.published_seconds
    assert row.bound_seconds < row.estimated_seconds


def test_most_results_are_held_out_and_their_errors_are_those_that_reports_print():
    held_out = [each for each in RECORDED if not each.fitted]
    assert len(held_out) >= 2 * (len(RECORDED) - len(held_out))
    assert comparison.spread(RECORDED) == PUBLISHED_ERRORS


def test_the_docs_have_the_table(request):
    page = request.config.rootpath / "docs" / "preflight-time.md"
    assert comparison.table(RECORDED) in page.read_text("utf-8")


def test_a_deeper_resnet_has_its_groups_blocks_more_often():
    shallow, deep = PUBLISHED[0], PUBLISHED[1]
    cost = programs.OpCost(
        name="fusion",
        opcode="fusion",
        op_name="group_2_other/Conv2D",
        op_type="Conv2D",
        runs=1,
        flops=500.0,
        hbm_bytes=1000,
        collective_bytes=0,
        overlaps=False,
    )
    (scaled,) = comparison.scaled([cost], shallow)
    assert scaled.flops == 500.0
    (scaled,) = comparison.scaled([cost], deep)
    # 5 further blocks of the third group stand for 22.
    assert scaled.flops == pytest.approx(500 * 22 / 5)
    assert scaled.hbm_bytes == pytest.approx(1000 * 22 / 5)


@pytest.mark.sweep
def test_a_program_that_is_compiled_anew_gives_what_was_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "CACHE", tmp_path)
    (published,) = (each for each in PUBLISHED if each.program == "maxtext_16b_v5e")
    found = comparison.compare(published)
    (recorded,) = (
        each for each in RECORDED if each.source == found.source and each.model == "MaxText 16B"
    )
    assert found.bound_seconds == pytest.approx(recorded.bound_seconds, rel=0.02)
    assert found.estimated_seconds == pytest.approx(recorded.estimated_seconds, rel=0.02)
