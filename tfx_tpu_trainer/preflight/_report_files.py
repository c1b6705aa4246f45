"""Writes a preflight's report as JSON for programs and as a page for people."""

import dataclasses
import json
from typing import Any

import jinja2
import tensorflow as tf

from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.preflight._price import TrainingCost, price_text
from tfx_tpu_trainer.preflight._report import (
    PreflightReport,
    StepReport,
    bytes_text,
    count_text,
    duration_text,
    flop_text,
    seconds_text,
    share_text,
)
from tfx_tpu_trainer.preflight._step_time import PUBLISHED_ERRORS
from tfx_tpu_trainer.preflight._sweep import Sweep
from tfx_tpu_trainer.preflight._text import (
    FINDING_TITLES,
    SERIAL_INPUT,
    STAGE_TITLES,
    choice_text,
    measured_text,
)


def write_json(report: PreflightReport, path: str, *, cost: TrainingCost | None = None) -> None:
    """Writes a report as JSON, whole or not at all.

    Args:
        report: The report.
        path: The file's path; any that `tf.io.gfile` supports. Its folder is created if missing.
        cost: The training's cost, for the key `cost`. Defaults to `None`: unknown.

    Raises:
        OSError: If it cannot be written.
    """
    values = {**report.to_json(), "cost": cost and cost.to_json()}
    _write(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def write_html(
    report: PreflightReport | Sweep, path: str, *, cost: TrainingCost | None = None
) -> None:
    """Writes a report or a sweep as one HTML page, whole or not at all.

    Args:
        report: The report or sweep.
        path: As in `write_json`.
        cost: The cost of a report's training; a sweep has its own costs. Defaults to `None`: unknown.

    Raises:
        OSError: If it cannot be written.
    """
    if isinstance(report, Sweep):
        _write(path, render_sweep_page(report))
    else:
        _write(path, render_html(report, cost=cost))


def write_sweep(found: Sweep, path: str) -> None:
    """Writes a sweep as JSON, whole or not at all.

    Args:
        found: The sweep.
        path: As in `write_json`.

    Raises:
        OSError: If it cannot be written.
    """
    _write(path, json.dumps(found.to_json(), indent=2, allow_nan=False) + "\n")


def read_json(path: str) -> PreflightReport:
    """Reads a report that `write_json` wrote.

    Raises:
        ValueError: If the file has no report.
        OSError: If it cannot be read.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return PreflightReport.from_json(json.loads(file.read()))
    except tf.errors.OpError as error:
        raise OSError(f"The report {path} can't be read: {error.message}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} contains no preflight report: {error}. Create it again with tfx-tpu-trainer "
            "preflight --json."
        ) from error


def _write(path: str, text: str) -> None:
    try:
        write_whole(path, text)
    except tf.errors.OpError as error:
        raise OSError(f"The report can't be written to {path}: {error.message}") from None
    except OSError as error:
        raise OSError(f"The report can't be written to {path}: {error.strerror}") from None


_COLORS = ("#3b6fb6", "#d08c2e", "#5b9a68", "#8a63a8")
_NEED_COLOR = "#c0392b"
# A bar below this share of the limit would be invisible.
_SLIVER = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class BarPart:
    """A part of the bar of HBM use."""

    label: str
    bytes: int
    x: float  # its start, in hundredths of the bar
    width: float  # its width, in hundredths of the bar
    color: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class HbmBar:
    """The bar of a step's HBM use."""

    parts: tuple[BarPart, ...]
    enlarged: bool  # whether it is scaled to the used memory instead of the limit


def render_html(report: PreflightReport, *, cost: TrainingCost | None = None) -> str:
    """Renders a report as one self-contained HTML page."""
    return _render(
        "report.html.j2",
        report=report,
        chip=report.tpu_slice.chip,
        steps=[(step, hbm_bar(step)) for step in report.steps],
        finding_titles=FINDING_TITLES,
        stage_titles=STAGE_TITLES,
        serial_input=SERIAL_INPUT,
        cost=cost,
    )


def render_sweep_page(found: Sweep) -> str:
    """Renders a sweep as one self-contained HTML page: a row for each slice, and the choice with its reason."""
    return _render(
        "sweep.html.j2",
        found=found,
        choice=choice_text(found),
        reports=[row.entry.report for row in found.rows if row.entry.report is not None],
        errors=PUBLISHED_ERRORS,
    )


def _render(template: str, **values: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tfx_tpu_trainer.preflight", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        bytes=bytes_text,
        count=count_text,
        duration=duration_text,
        flop=flop_text,
        measured=measured_text,
        price=price_text,
        seconds=seconds_text,
        share=share_text,
    )
    return environment.get_template(template).render(**values)


def hbm_bar(step: StepReport) -> HbmBar:
    """Lays out the bar of a step's HBM use, up to the limit, or on its own scale if it would be a sliver."""
    sizes = {label: size for label, size in step.hbm_by_category.items() if size}
    colors: tuple[str, ...] = _COLORS
    if not sizes and step.need_bytes:
        # It did not compile, so only the sum is known.
        sizes, colors = {"needed in total": step.need_bytes}, (_NEED_COLOR,)
    needed = sum(sizes.values())
    enlarged = needed < _SLIVER * (step.limit_bytes or 0)
    whole = needed if enlarged else max(step.limit_bytes or 0, needed)
    parts = []
    start = 0.0
    for (label, size), color in zip(sizes.items(), colors):
        width = 100 * size / whole
        parts.append(
            BarPart(label=label, bytes=size, x=round(start, 3), width=round(width, 3), color=color)
        )
        start += width
    return HbmBar(parts=tuple(parts), enlarged=enlarged and bool(parts))
