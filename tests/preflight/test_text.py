"""A report in the terminal."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from tests.preflight.reports import (
    FINDING,
    compiled_step,
    fitting_step,
    lowered_step,
    oversized_step,
    report,
    unlowered_step,
)
from tfx_tpu_trainer.hardware import find_slice
from tfx_tpu_trainer.preflight._report import (
    StepReport,
    bytes_text,
    count_text,
    flop_text,
    seconds_text,
)
from tfx_tpu_trainer.preflight._text import print_report


def _printed(made) -> str:
    stream = io.StringIO()
    print_report(made, Console(file=stream, width=120, highlight=False))
    return stream.getvalue()


def test_a_step_that_fits():
    text = _printed(report())
    for part in (
        "Preflight of model.py for v5e:2x4  8 replicas, 197 TFLOP/s",
        "✓ train, 1,024 rows: compiles and fits: 9.25 GiB of 15.8 GiB HBM",
        "9.25 GiB of 15.8 GiB (58.7%)",
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
