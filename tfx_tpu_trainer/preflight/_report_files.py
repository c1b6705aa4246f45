"""A preflight's report as files: JSON for programs, a page for people."""

import dataclasses
import json
from collections.abc import Sequence

import jinja2
import tensorflow as tf

from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.preflight._price import TrainingCost
from tfx_tpu_trainer.preflight._report import (
    PreflightReport,
    StepReport,
    bytes_text,
    count_text,
    duration_text,
    flop_text,
    seconds_text,
)
from tfx_tpu_trainer.preflight._run import Sweep
from tfx_tpu_trainer.preflight._text import (
    FINDING_TITLES,
    SERIAL_INPUT,
    STAGE_TITLES,
    measured_text,
)


def write_json(report: PreflightReport, path: str, *, cost: TrainingCost | None = None) -> None:
    """Writes a report as JSON, whole or not at all.

    Args:
        report: The report.
        path: Where to; any path that `tf.io.gfile` knows. Its folder is created if missing.
        cost: What the training costs, for the key `cost`. Defaults to `None`: not known.

    Raises:
        OSError: It cannot be written there.
    """
    values = {**report.to_json(), "cost": cost and cost.to_json()}
    _write(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def write_html(report: PreflightReport, path: str, *, cost: TrainingCost | None = None) -> None:
    """Writes a report as one HTML page, whole or not at all.

    Args:
        report: The report.
        path: Where to, as in `write_json`.
        cost: What the training costs. Defaults to `None`: not known.

    Raises:
        OSError: It cannot be written there.
    """
    _write(path, render_html(report, cost=cost))


def write_sweep(found: Sweep, path: str, *, costs: Sequence[TrainingCost] = ()) -> None:
    """Writes a sweep as JSON, whole or not at all.

    Args:
        found: The sweep.
        path: Where to, as in `write_json`.
        costs: What the training costs on its slices, for the key `costs`. Defaults to none.

    Raises:
        OSError: It cannot be written there.
    """
    values = {**found.to_json(), "costs": [each.to_json() for each in costs]}
    _write(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def read_json(path: str) -> PreflightReport:
    """Reads what `write_json` wrote.

    Args:
        path: The file.

    Returns:
        The report.

    Raises:
        ValueError: The file holds no report.
        OSError: It cannot be read.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class BarPart:
    """A part of the bar of HBM use."""

    label: str  # what it is for
    bytes: int  # its size
    x: float  # where it begins, in hundredths of the bar
    width: float  # how wide it is, in hundredths of the bar
    color: str  # its colour


def render_html(report: PreflightReport, *, cost: TrainingCost | None = None) -> str:
    """Returns a report as one HTML page that loads nothing: styles and drawings are part of it."""
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
        seconds=seconds_text,
    )
    template = environment.get_template("report.html.j2")
    return template.render(
        report=report,
        chip=report.tpu_slice.chip,
        steps=[(step, hbm_bar(step)) for step in report.steps],
        finding_titles=FINDING_TITLES,
        stage_titles=STAGE_TITLES,
        serial_input=SERIAL_INPUT,
        cost=cost,
    )


def hbm_bar(step: StepReport) -> tuple[BarPart, ...]:
    """Lays out the bar of a step's HBM use."""
    sizes = {label: size for label, size in step.hbm_by_category.items() if size}
    colors: tuple[str, ...] = _COLORS
    if not sizes and step.need_bytes:
        # It did not compile: the compiler only says how much it would be.
        sizes, colors = {"needed in all": step.need_bytes}, (_NEED_COLOR,)
    whole = max(step.limit_bytes or 0, sum(sizes.values()))
    parts = []
    start = 0.0
    for (label, size), color in zip(sizes.items(), colors):
        width = 100 * size / whole
        parts.append(
            BarPart(label=label, bytes=size, x=round(start, 3), width=round(width, 3), color=color)
        )
        start += width
    return tuple(parts)
