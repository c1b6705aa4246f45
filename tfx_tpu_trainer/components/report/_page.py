"""Writes a training's page: one HTML file and its numbers as JSON."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.components.evaluation import compare_losses, overfits
from tfx_tpu_trainer.components.report._bar_charts import draw_bars
from tfx_tpu_trainer.components.report._charts import (
    Mark,
    Table,
    cut,
    draw_confusion,
    draw_curve,
    draw_series,
    number_text,
)
from tfx_tpu_trainer.components.report._comparison import less_is_better
from tfx_tpu_trainer.components.report._gathering import gather
from tfx_tpu_trainer.components.report._run_data import (
    TRAINING,
    Lineage,
    Measured,
    MeasuredSlice,
    RunData,
    Series,
    Verdict,
    write_run_data,
)
from tfx_tpu_trainer.components.report._sections import (
    Section,
    data_section,
    lineage_section,
    model_section,
    render_sections,
    serving_section,
    short,
    time_text,
)
from tfx_tpu_trainer.estimator import Estimator

PAGE_FILE = "run.html"
"""Name of the page, next to the checkpoints of its training."""

_PACKAGES = ("tfx-tpu-trainer", "tensorflow", "tf-keras", "tfx", "tensorflow-transform", "numpy")
_MOST_CHARTS = 12
_MOST_SLICES = 10
_FEW_ROWS = 100
_LOSS, _LOSS_BY_ROWS = _LOSSES = ("loss", "loss_by_rows")
_KINDS = {
    "scores": "Scores of two classes",
    "classes": "Classes",
    "residuals": "Residuals of a regression",
}


def render(run: RunData) -> str:
    """Renders the page of a run.

    Args:
        run: The data of the training.

    Returns:
        HTML, below 1 MB.
    """
    return render_sections(
        [make(run) for make in _SECTIONS], title=run.title, written=run.written, unread=run.unread
    )


def write(
    estimator: Estimator,
    folder: str | None = None,
    *,
    title: str | None = None,
    exported: str | None = None,
) -> str:
    """Writes the page of an estimator's training: `run.html`, and `run.json` next to it.

    Args:
        estimator: A trained estimator, evaluated if the page should show the model's quality.
        folder: The folder to write into; any path that `tf.io.gfile` supports. Defaults to `None`: the estimator's
            `model_dir`.
        title: The name of the training. Defaults to `None`: the last part of `model_dir`.
        exported: The SavedModel that `export_saved_model` has returned. Defaults to `None`: the page
            describes no SavedModel.

    Returns:
        The page's path.

    Raises:
        TypeError: If `estimator` is not an Estimator.
        OSError: If it can't be written.
    """
    if not isinstance(estimator, Estimator):
        raise TypeError(f"estimator={estimator!r} is not a tfx_tpu_trainer.estimator.Estimator.")
    model_dir = tf.compat.as_str_any(estimator.model_dir)
    run = gather(
        model_dir,
        title=title or os.path.basename(model_dir.rstrip("/")) or model_dir,
        exported=exported,
        lineage=Lineage(settings=_settings(estimator), versions=versions()),
    )
    return write_page(run, folder or model_dir)


def write_page(run: RunData, folder: str, *, copies: Sequence[str] = ()) -> str:
    """Writes `run.json` and `run.html`; each appears whole or not at all.

    Args:
        run: The data of the training.
        folder: The folder to write into, created if missing; any path that `tf.io.gfile` supports.
        copies: Paths of further copies of the page. Defaults to none.

    Returns:
        The page's path.

    Raises:
        OSError: If they can't be written.
    """
    path, page = os.path.join(folder, PAGE_FILE), render(run)
    write_run_data(run, folder)
    for each in (path, *copies):
        write_whole(each, page)
    return path


def versions() -> dict[str, str]:
    """Returns the versions of Python, of this package and of its main dependencies."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _verdict(run: RunData) -> Section:
    if run.stopped is not None:
        steps = [each.steps[-1] for each in run.learning.series if each.source == TRAINING]
        where = f" at step {max(steps):,}" if steps else " before its first step was logged"
        return Section(
            title="Verdict",
            says=f"The training stopped{where}: {short(run.stopped)}",
            mood="bad",
        )
    failed = [check for check in run.serving_checks if check.outcome == "failed"]
    if failed:
        return Section(
            title="Verdict",
            says=f"The exported model must not be served: {failed[0].name}: {short(failed[0].detail)}",
            mood="bad",
        )
    measured = run.measured
    if measured is None:
        return Section(title="Verdict", says="Not evaluated.", mood="warn")
    infinite = [name for name, value in measured.metrics.items() if math.isinf(value)]
    if any(math.isnan(measured.metrics.get(name, 0.0)) for name in _LOSSES) or infinite:
        return Section(
            title="Verdict", says="The model has diverged: its metrics are not finite.", mood="bad"
        )
    if run.verdict is not None and run.verdict.blessed is not None:
        # The gate's text begins with the verdict.
        says = run.verdict.says or ("blessed" if run.verdict.blessed else "not blessed")
        return Section(
            title="Verdict",
            says=short(says[:1].upper() + says[1:]),
            mood="good" if run.verdict.blessed else "bad",
            notes=(*_judged(run.verdict), *_losses_compared(run, blessed=run.verdict.blessed)),
        )
    done = "Trained, evaluated and exported" if run.exported else "Trained and evaluated"
    return Section(
        title="Verdict",
        says=f"{done}: {_in_words(measured.metrics)}.",
        notes=(
            "No gate had judged the model when this page was written.",
            *_losses_compared(run, blessed=None),
        ),
    )


def _judged(verdict: Verdict) -> Iterator[str]:
    """Yields when the gate judged the model, and against which baseline."""
    if verdict.since is not None:
        yield f"Since {time_text(verdict.since)}."
    if verdict.baseline is None:
        # The gate's text may already contain this.
        if "no baseline" not in verdict.says:
            yield "No baseline was available for comparison."
        return
    of_run = f", of run {verdict.baseline_run}" if verdict.baseline_run else ""
    since = f", written {time_text(verdict.baseline_since)}" if verdict.baseline_since else ""
    yield f"The baseline is {verdict.baseline}{of_run}{since}."


def _losses_compared(run: RunData, *, blessed: bool | None) -> Iterator[str]:
    """Yields a diagnosis from the losses: for a rejected model always, and for an unjudged one if it overfits."""
    # Evaluations after the best checkpoint don't show how good that checkpoint is, which is the exported one.
    exported = run.measured.global_step if run.measured and blessed is None else None
    last: dict[bool, float] = {}
    for each in run.learning.series:
        values = [
            value
            for step, value in zip(each.steps, each.values)
            if exported is None or step <= exported
        ]
        if each.name == _LOSS and values:
            last.setdefault(each.source == TRAINING, values[-1])
    training, evaluation = last.get(True), last.get(False)
    if evaluation is None and run.measured:
        evaluation = run.measured.metrics.get(_LOSS)
    if blessed or training is None or evaluation is None:
        return
    if blessed is False or overfits(training, evaluation):
        yield compare_losses(training, evaluation)


def _in_words(metrics: Mapping[str, float]) -> str:
    named = [name for name in metrics if name not in _LOSSES] or list(metrics)
    return ", ".join(f"{cut(name)} {number_text(metrics[name])}" for name in named[:4])


def _numbers(run: RunData) -> Section | None:
    measured = run.measured
    if measured is None:
        return None
    rows = "an unknown number of rows"
    if measured.num_examples is not None:
        rows = f"{measured.num_examples:,} rows"
    step = "" if measured.global_step is None else f" of step {measured.global_step:,}"
    notes = []
    if all(name in measured.metrics for name in _LOSSES):
        notes.append(
            "loss_by_rows is the mean loss of the rows, and what the chart of the loss shows of an evaluation. loss is "
            "the mean over the batches, as tf.estimator measures it: a short last batch counts as much as the others."
        )
    if measured.intervals:
        notes.append(
            "Of 100 evaluations on other rows of the same kind, 95 would fall into the interval, "
            f"estimated by 100 resamplings of {measured.sampled_rows:,} rows (m out of n "
            "bootstrap). The interval is for this one model: another training may end elsewhere."
        )
    return Section(
        title="Numbers",
        says=f"The checkpoint{step}, measured on {rows}.",
        tables={"Metrics": _metrics_table(measured, run.verdict)},
        notes=tuple(notes),
    )


def _metrics_table(measured: Measured, verdict: Verdict | None) -> Table:
    columns: dict[str, Mapping[str, str]] = {
        "value": {name: f"{value:.6g}" for name, value in measured.metrics.items()}
    }
    if measured.intervals:
        columns["95 % interval"] = {
            name: f"{number_text(low)} to {number_text(high)}"
            for name, (low, high) in measured.intervals.items()
        }
    if verdict is not None and verdict.baseline_metrics:
        columns["baseline"] = {
            name: f"{value:.6g}" for name, value in verdict.baseline_metrics.items()
        }
    return Table(
        head=("metric", *columns),
        rows=tuple(
            (cut(name), *(column.get(name, "") for column in columns.values()))
            for name in sorted(measured.metrics, key=_losses_last)
        ),
    )


def _losses_last(name: str) -> tuple[bool, bool, str]:
    """Sorts metrics: losses come last, `loss_by_rows` before `loss`."""
    return name in _LOSSES, name == _LOSS, name


def _learning(run: RunData) -> Section | None:
    series = run.learning.series
    if not series:
        return None
    by_name = _curves(series)
    # A value measured once, such as a slice's, is not a curve. The loss comes first, then the evaluation's metrics,
    # then scalars that only the training wrote.
    names = sorted(
        (name for name, of in by_name.items() if any(len(each.steps) > 1 for each in of)),
        key=lambda name: (
            name != _LOSS,
            all(each.source == TRAINING for each in by_name[name]),
            name,
        ),
    )
    marks = [Mark(step=restart.step, name="restart") for restart in run.learning.restarts]
    if run.measured and run.measured.global_step is not None:
        marks.append(Mark(step=run.measured.global_step, name="exported"))
    notes = []
    if rest := len(by_name) - len(names[:_MOST_CHARTS]):
        notes.append(f"{rest} other scalar{'s are' if rest > 1 else ' is'} in run.json.")
    if any(len(each.steps) < each.thinned_from for each in series):
        notes.append(
            "Curves of more than 600 values show only the last value in each of 600 equal "
            "intervals of steps."
        )
    count = len(run.learning.restarts)
    last = max(each.steps[-1] for each in series)
    restarts = "without a restart" if not count else f"with {count} restart{'s' * (count > 1)}"
    return Section(
        title="Learning",
        says=f"{last:,} step{'s' * (last != 1)}, {restarts}.",
        charts=tuple(
            draw_series(cut(name), by_name[name], marks, full_width=name == _LOSS)
            for name in names[:_MOST_CHARTS]
        ),
        notes=tuple(notes),
    )


def _curves(series: Iterable[Series]) -> dict[str, list[Series]]:
    """Groups series by chart; of an evaluation's two losses it draws `loss_by_rows`."""
    by_rows = {each.source for each in series if each.name == _LOSS_BY_ROWS}
    found: dict[str, list[Series]] = {}
    for each in series:
        if each.name == _LOSS and each.source in by_rows:
            continue
        name = _LOSS if each.name == _LOSS_BY_ROWS else each.name
        found.setdefault(name, []).append(each)
    return found


def _slices(run: RunData) -> Section | None:
    slices = run.measured.slices if run.measured else ()
    if not run.measured or not slices:
        return None
    shared = [name for name in run.measured.metrics if any(name in one.metrics for one in slices)]
    if not shared:
        return Section(title="Slices", says=f"{len(slices):,} slices have no metric of the whole.")
    name = next((name for name in shared if "loss" not in name), shared[0])
    worst_first = _worst_first(slices, name)
    shown = list(worst_first)
    if len(shown) > 2 * _MOST_SLICES:
        shown = [*worst_first[:_MOST_SLICES], *worst_first[-_MOST_SLICES:]]
    few = [one for one in slices if one.num_examples is not None and one.num_examples < _FEW_ROWS]
    notes = []
    if few:
        notes.append(
            f"{len(few):,} of {len(slices):,} slices have fewer than {_FEW_ROWS} rows: too few to "
            "say much about them."
        )
    if len(shown) < len(slices):
        notes.append(
            f"The {_MOST_SLICES} worst and the {_MOST_SLICES} best of {len(slices):,} are shown; "
            "run.json has all."
        )
    says = f"By {cut(name)} ({number_text(run.measured.metrics[name])} on the whole split)"
    if worst_first:
        worst, best = worst_first[0], worst_first[-1]
        says += (
            f", {cut(worst.name)} is worst ({number_text(worst.metrics[name])}) "
            f"and {cut(best.name)} is best ({number_text(best.metrics[name])})"
        )
    return Section(
        title="Slices",
        says=says + ".",
        mood="warn" if few else "",
        charts=(
            draw_bars(
                f"{cut(name)} by slice, worst first",
                {one.name: one.metrics[name] for one in shown},
                unit=cut(name),
            ),
        ),
        tables={
            "Slices": Table(
                head=("slice", "rows", *map(cut, shared)),
                rows=tuple(
                    (
                        cut(one.name),
                        "" if one.num_examples is None else f"{one.num_examples:,}",
                        *(number_text(one.metrics.get(key, math.nan)) for key in shared),
                    )
                    for one in shown
                ),
            )
        },
        notes=tuple(notes),
    )


def _worst_first(slices: Iterable[MeasuredSlice], name: str) -> list[MeasuredSlice]:
    known = [one for one in slices if math.isfinite(one.metrics.get(name, math.nan))]
    return sorted(known, key=lambda one: one.metrics[name], reverse=less_is_better(name))


def _errors(run: RunData) -> Section | None:
    errors = run.errors
    if run.measured is None or errors is None:
        return None
    right = sum(row[n] for n, row in enumerate(errors.confusion))
    says = f"{_KINDS[errors.kind]}: {cut(errors.prediction)} against {cut(errors.label)}"
    if errors.confusion:
        says += f"; {right:,} of {errors.rows:,} rows are correct"
    notes = []
    if errors.rows < errors.seen:
        notes.append(f"A sample of {errors.rows:,} of {errors.seen:,} rows, drawn uniformly.")
    if errors.is_weighted:
        notes.append("All rows count equally here: weights are ignored.")
    if errors.kind == "scores":
        positive = errors.classes[1] if errors.classes else "1"
        notes.append(f"The confusion matrix counts rows with a score above 0.5 as {cut(positive)}.")
    charts = [draw_confusion(errors.confusion, errors.classes)] if errors.confusion else []
    charts += [
        draw_curve(curve, diagonal=curve.name in ("ROC", "Calibration")) for curve in errors.curves
    ]
    return Section(
        title="Errors",
        says=says + ".",
        charts=tuple(charts),
        tables={
            "Summary": Table(
                head=("of these rows", "value"),
                rows=tuple((name, f"{value:.6g}") for name, value in errors.summary.items()),
            )
        },
        notes=tuple(notes),
    )


_SECTIONS: tuple[Callable[[RunData], Section | None], ...] = (
    _verdict,
    _numbers,
    _learning,
    _slices,
    _errors,
    data_section,
    model_section,
    serving_section,
    lineage_section,
)


def _settings(estimator: Estimator) -> dict[str, str]:
    """Returns params and the RunConfig fields that differ from their defaults."""
    default = type(estimator.config)()
    params = estimator.params or {}
    settings = {f"params.{name}": str(value) for name, value in sorted(params.items())}
    for name in sorted(default_names := _public_properties(default)):
        value = getattr(estimator.config, name)
        if name != "model_dir" and value != default_names[name]:
            settings[name] = str(value)
    return settings


def _public_properties(config: Any) -> dict[str, Any]:
    return {
        name: getattr(config, name)
        for name in dir(type(config))
        if not name.startswith("_") and isinstance(getattr(type(config), name), property)
    }
