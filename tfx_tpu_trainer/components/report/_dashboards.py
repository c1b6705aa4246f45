"""What TensorBoard's dashboards show of a training beside its curves: HParams, PR Curves, Text, Custom Scalars.

It is made of what the page is made of, when the page is, by the writers of TensorBoard's own plugins.
"""

from __future__ import annotations

import numbers
import os
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import summary as custom_scalar
from tensorboard.plugins.hparams import api, api_pb2
from tensorboard.plugins.hparams import summary as sessions
from tensorboard.plugins.pr_curve import summary as pr_curve
from tensorboard.plugins.text import summary as text

from tfx_tpu_trainer._support.file_systems import as_pattern
from tfx_tpu_trainer.components.report._errors import scores_by_class
from tfx_tpu_trainer.components.report._events import BOARDS_SUFFIX, HPARAMS_SUFFIX, TRAINING
from tfx_tpu_trainer.components.report._run_data import RunData
from tfx_tpu_trainer.estimator.extending import NORM, RowSample

v1 = tf.compat.v1

_EVALUATION = "eval"
_SPEEDS = ("global_step/sec", "examples/sec")
_MOST_CHARTS = 30
# Of the PR curves, and TensorBoard's own default for their thresholds.
_MOST_CLASSES, _THRESHOLDS = 20, 201


def write_dashboards(
    run: RunData,
    folder: str,
    *,
    rows: RowSample | None = None,
    hparams: Mapping[str, Any] | None = None,
    page: str | None = None,
) -> None:
    """Writes event files for TensorBoard's dashboards. They replace those of an earlier call.

    Args:
        run: The data of the training.
        folder: The folder of its events, in which those of its evaluation are in `eval`; any path
            `tf.io.gfile` knows.
        rows: Rows of the evaluation, for the PR curves of a classifier. Defaults to `None`: it has none.
        hparams: The values by which the HParams dashboard compares trainings: name -> value; lists and mappings are
            shown as text. Defaults to `None`: nothing, and the training is not in that dashboard.
        page: Where the page of the training is. Defaults to `None`: it has none.

    Raises:
        OSError: They can't be written there.
    """
    metrics = run.measured.metrics if run.measured else {}
    step = (run.measured.global_step if run.measured else None) or _last_step(run)
    layout = custom_scalar.pb(_layout(run))
    texts = [text.pb(name, words) for name, words in _texts(run, page)]
    _replace(folder, BOARDS_SUFFIX, [layout, *texts], step)
    curves = [] if rows is None else list(_pr_curves(rows))
    _replace(os.path.join(folder, _EVALUATION), BOARDS_SUFFIX, curves, step)
    compared = []
    if hparams:
        status = api_pb2.STATUS_FAILURE if run.stopped else api_pb2.STATUS_SUCCESS
        compared = [
            # Without a name TensorBoard takes trainings with equal settings for one.
            api.hparams_pb(dict(_plain(hparams)), trial_id=_name(run), start_time_secs=run.written),
            *(_scalar(f"exported/{name}", value) for name, value in metrics.items()),
            sessions.session_end_pb(status, end_time_secs=run.written),
        ]
    _replace(folder, HPARAMS_SUFFIX, compared, step)


def _replace(folder: str, suffix: str, summaries: Iterable[Any], step: int) -> None:
    for path in tf.io.gfile.glob(os.path.join(as_pattern(folder), f"*tfevents*{suffix}")):
        tf.io.gfile.remove(path)
    summaries = list(summaries)
    if not summaries:
        return
    # A FileWriter is for graphs; nothing of this one is used.
    with (
        tf.Graph().as_default(),
        v1.summary.FileWriter(folder, filename_suffix=suffix) as writer,
    ):
        for summary in summaries:
            writer.add_summary(summary.SerializeToString(), step)


def _last_step(run: RunData) -> int:
    return max((series.steps[-1] for series in run.learning.series if series.steps), default=0)


def _name(run: RunData) -> str:
    return f"{run.title} {time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(run.written))}"


def _plain(hparams: Mapping[str, Any]) -> Iterable[tuple[str, bool | float | str]]:
    for name, value in hparams.items():
        if value is not None:
            is_plain = isinstance(value, (bool, str, numbers.Real))
            yield name, value if is_plain else str(value)


def _scalar(tag: str, value: float) -> v1.Summary:
    return v1.Summary(value=[v1.Summary.Value(tag=tag, simple_value=value)])


def _pr_curves(rows: RowSample) -> Iterable[Any]:
    by_class = scores_by_class(rows.columns)
    for name, (labels, scores) in list(by_class.items())[:_MOST_CLASSES]:
        if labels.any():
            yield pr_curve.pb(
                f"class_{name}" if name else "classes",
                labels,
                scores,
                num_thresholds=_THRESHOLDS,
                description=f"Of {len(scores):,} rows of the evaluation's {rows.seen:,}.",
            )


def _texts(run: RunData, page: str | None) -> Iterable[tuple[str, str]]:
    if page is not None:
        # A browser follows no link from TensorBoard to a file.
        yield "page", f"The page of this training: `{page}`. Open it in a browser."
    if run.stopped:
        yield "stopped", f"This training stopped early: {_cell(run.stopped)}"
    lineage = run.lineage
    tables = {
        "settings": lineage.settings,
        "inputs": lineage.inputs,
        "versions": lineage.versions,
        "trained_on": {"place": lineage.ran_on} if lineage.ran_on else {},
    }
    for name, values in tables.items():
        if values:
            lines = [f"| {_cell(key)} | {_cell(value)} |" for key, value in values.items()]
            yield name, "\n".join(["| name | value |", "|---|---|", *lines])


def _cell(value: str) -> str:
    return " ".join(value.replace("|", "\\|").split())


def _layout(run: RunData) -> layout_pb2.Layout:
    """Arranges what people look for first: quality, loss, speed, gradients, and what the model writes itself."""
    names = {TRAINING: set[str](), _EVALUATION: set[str]()}
    for series in run.learning.series:
        names.setdefault(series.source, set()).add(series.name)
    measured = set(run.measured.metrics) if run.measured else set()
    quality = sorted((names[_EVALUATION] | measured) - {"loss", "global_step"})
    gradients = {name for name in names[TRAINING] if name.split("/")[0] == NORM}
    own = sorted(names[TRAINING] - gradients - {"loss", *_SPEEDS})
    categories = {
        "Loss": {"loss": ["loss"]},
        "Quality": {name: [name] for name in quality},
        "Speed": {name: [name] for name in _SPEEDS if name in names[TRAINING]},
        "Gradients": {"norms": sorted(gradients)} if gradients else {},
        "Training": {name: [name] for name in own},
    }
    return layout_pb2.Layout(
        category=[
            layout_pb2.Category(
                title=title,
                chart=[
                    layout_pb2.Chart(
                        title=chart,
                        multiline=layout_pb2.MultilineChartContent(
                            tag=[f"^{re.escape(tag)}$" for tag in tags[:_MOST_CHARTS]]
                        ),
                    )
                    for chart, tags in list(charts.items())[:_MOST_CHARTS]
                ],
                closed=title == "Training",
            )
            for title, charts in categories.items()
            if charts
        ]
    )
