"""Renders artifacts as HTML fragments from their files."""

import dataclasses
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2
import matplotlib
import tensorflow as tf
from matplotlib.figure import Figure

from tfx_tpu_trainer.components.evaluation import (
    EvalMetrics,
    LearningCurve,
    read_eval_metrics,
    read_learning_curve,
    read_model_evaluation,
    slice_in_words,
)
from tfx_tpu_trainer.components.report import PAGE_FILE
from tfx_tpu_trainer.serving import TensorDescription, describe_saved_model, find_saved_model

Lines = list[tuple[str, str]]
_ALL_ROWS = "all rows"
_EXAMPLE_COUNT = "example_count"
_MOST_METRICS = 4
_LOSS = "loss"


@dataclasses.dataclass(frozen=True)
class _Table:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def model_page(uri: str) -> str:
    """Shows a Model: its exported metrics and its SavedModel's signatures.

    Args:
        uri: Folder of the artifact.

    Returns:
        HTML. A missing or unreadable file is reported on a line.
    """
    lines: Lines = []
    tables: list[_Table] = []
    try:
        metrics = read_eval_metrics(uri)
        if metrics is not None:
            lines += _evaluated(metrics)
            tables.append(_metrics_table(metrics))
        path = find_saved_model(uri)
        lines.append(("SavedModel", path))
        tables.append(_signatures_table(path))
    except (OSError, ValueError) as error:
        lines.append(("not shown", str(error)))
    return _page(lines=lines, tables=tables)


def run_page(path: str) -> str:
    """Returns HTML that shows the page of a training, `run.html`, in a frame; one line if it can't be read."""
    try:
        with tf.io.gfile.GFile(path) as file:
            return _page(frame=file.read())
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        said = error.message if isinstance(error, tf.errors.OpError) else str(error)
        return _page(lines=[("not shown", f"{path}: {said}")])


def model_run_page(uri: str) -> str:
    """Shows a ModelRun: the page of the training, `run.html`, after the learning curve of its evaluations.

    Args:
        uri: Folder of the artifact.

    Returns:
        HTML. A missing or unreadable file is reported on a line.
    """
    page = os.path.join(uri, PAGE_FILE)
    return _learning_curve(uri) + (run_page(page) if tf.io.gfile.exists(page) else "")


def _learning_curve(uri: str) -> str:
    lines: Lines = [("checkpoints and events", uri)]
    try:
        curve = read_learning_curve(uri)
    except (OSError, ValueError) as error:
        return _page(lines=[*lines, ("not shown", str(error))])
    if curve is None or not curve.points:
        return _page(
            lines=[*lines, ("learning curve", "none: the model was not evaluated in training")]
        )
    if curve.goal is not None and curve.best is not None:
        value = _number(curve.best.metrics.overall[curve.goal.metric])
        lines.append(("best", f"{curve.goal.metric} = {value} at step {curve.best.step:,}"))
    names = sorted({name for point in curve.points for name in point.metrics.overall})
    rows = [
        [f"{point.step:,}", *(_number(point.metrics.overall.get(name)) for name in names)]
        for point in curve.points
    ]
    table = _Table("Evaluations in training", ["step", *names], rows)
    return _page(lines=lines, picture=draw_curve(curve), tables=[table])


def evaluation_page(uri: str) -> str:
    """Shows a ModelEvaluation: the metrics of the whole split and of each slice.

    Args:
        uri: Folder of the artifact, which may be the stock Evaluator's.

    Returns:
        HTML. A missing or unreadable file is reported on a line.
    """
    try:
        metrics = _read_evaluation(uri)
    except (OSError, ValueError) as error:
        return _page(lines=[("not shown", str(error))])
    if metrics is None:
        return _page(lines=[("not shown", f"{uri} has no metrics over the whole data")])
    return _page(lines=_evaluated(metrics), tables=[_metrics_table(metrics)])


def blessing_page(blessed: bool | None, verdict: str = "") -> str:
    """Shows a ModelBlessing: the verdict in words.

    Args:
        blessed: Whether the model may be pushed; `None` if it was not judged.
        verdict: The reasons, in words. Defaults to `""`: the stock Evaluator gives none.

    Returns:
        HTML.
    """
    word = {True: "blessed", False: "not blessed", None: "not judged"}[blessed]
    return _page(lines=[("verdict", verdict or word)])


def results_page(
    *, model: str | None = None, evaluation: str | None = None, verdict: str = ""
) -> str:
    """Shows the results of a component's run in a few lines.

    Args:
        model: Folder of the Model. Defaults to `None`: there is none.
        evaluation: Folder of the ModelEvaluation. Defaults to `None`: there is none.
        verdict: The verdict on the model, in words. Defaults to `""`: there is none.

    Returns:
        HTML, without lines for missing files.
    """
    lines: Lines = []
    metrics: EvalMetrics | None = None
    try:
        metrics = read_eval_metrics(model) if model else None
        if metrics is None and evaluation:
            metrics = _read_evaluation(evaluation)
    except (OSError, ValueError) as error:
        lines.append(("metrics", str(error)))
    if metrics is not None:
        lines += _evaluated(metrics)
        lines += [(name, _number(value)) for name, value in sorted(metrics.overall.items())]
    if verdict:
        lines.append(("verdict", verdict))
    if model:
        lines.append(("model", model))
    return _page(tables=[_Table("Results", [], lines)])


def _read_evaluation(uri: str) -> EvalMetrics | None:
    """Reads a ModelEvaluation, in which TFMA lists the number of rows among the metrics."""
    metrics = read_model_evaluation(uri)
    if metrics is None or _EXAMPLE_COUNT not in metrics.overall:
        return metrics
    overall = dict(metrics.overall)
    count = int(overall.pop(_EXAMPLE_COUNT))
    return dataclasses.replace(metrics, overall=overall, num_examples=count) if overall else metrics


def _evaluated(metrics: EvalMetrics) -> Lines:
    lines: Lines = []
    if metrics.global_step is not None:
        lines.append(("step", f"{metrics.global_step:,}"))
    if metrics.num_examples is not None:
        lines.append(("rows evaluated", f"{metrics.num_examples:,}"))
    return lines


def _metrics_table(metrics: EvalMetrics) -> _Table:
    names = sorted({*metrics.overall, *(name for one in metrics.slices for name in one.metrics)})
    rows = [_metrics_row(_ALL_ROWS, metrics.num_examples, metrics.overall, names)]
    rows += [
        _metrics_row(slice_in_words(one.key), one.num_examples, one.metrics, names)
        for one in metrics.slices
    ]
    return _Table("Metrics", ["slice", "rows", *names], rows)


def _metrics_row(
    name: str, rows: int | None, values: Mapping[str, float], names: Iterable[str]
) -> list[str]:
    return [
        name,
        "" if rows is None else f"{rows:,}",
        *(_number(values.get(each)) for each in names),
    ]


def _signatures_table(path: str) -> _Table:
    rows = [
        [", ".join(graph.tags), name, _tensors(signature.inputs), _tensors(signature.outputs)]
        for graph in describe_saved_model(path)
        for name, signature in sorted(graph.signatures.items())
    ]
    return _Table("Signatures", ["tags", "signature", "inputs", "outputs"], rows)


def _tensors(tensors: Mapping[str, TensorDescription]) -> str:
    return ", ".join(f"{key}: {tensor}" for key, tensor in sorted(tensors.items()))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _page(
    *,
    lines: Sequence[tuple[str, str]] = (),
    tables: Sequence[_Table] = (),
    picture: str = "",
    frame: str = "",
) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tfx_tpu_trainer.workbench.notebook", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown: dict[str, Any] = {"lines": lines, "tables": tables, "picture": picture, "frame": frame}
    return environment.get_template("page.html.j2").render(shown)


def draw_curve(curve: LearningCurve) -> str:
    """Draws the metrics of a training's evaluations over the steps, each with its own axes."""
    names = _names(curve)
    figure = Figure(figsize=(4 * len(names), 2.8), layout="constrained")
    steps = [point.step for point in curve.points]
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names):
        axes.plot(steps, [point.metrics.overall[name] for point in curve.points], marker=".")
        if curve.best is not None:
            best = curve.best
            axes.plot(best.step, best.metrics.overall[name], "o", mfc="none", ms=12)
        axes.set_title(name)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    drawn = io.StringIO()
    # Reproducible output: no date, and no random ids.
    with matplotlib.rc_context({"svg.hashsalt": __name__}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()[drawn.getvalue().index("<svg") :]


def _names(curve: LearningCurve) -> list[str]:
    """Returns the metrics that all points have, up to the number of plots."""
    common = set.intersection(*(set(point.metrics.overall) for point in curve.points))
    first = [curve.goal.metric] if curve.goal is not None else []
    ordered = [*first, _LOSS, *sorted(common)]
    return [name for name in dict.fromkeys(ordered) if name in common][:_MOST_METRICS]
