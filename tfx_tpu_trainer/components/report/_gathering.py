"""Gathers the files that trainings leave in their folders."""

from __future__ import annotations

import collections
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer._support.file_systems import as_pattern, check_can_be_opened, is_local
from tfx_tpu_trainer.components.report._data import read_data
from tfx_tpu_trainer.components.report._errors import digest_of_labels, find_errors, margin_of
from tfx_tpu_trainer.components.report._events import read_learning
from tfx_tpu_trainer.components.report._run_data import (
    TRAINING,
    Answer,
    CheckOfServing,
    Data,
    Exported,
    Layer,
    Learning,
    Lineage,
    Measured,
    MeasuredSlice,
    MetaGraph,
    Preflight,
    RunData,
    Signature,
    StepOnTpu,
    Verdict,
    read_run_data,
)
from tfx_tpu_trainer.estimator.extending import RowSample, tf_private
from tfx_tpu_trainer.preflight import read_json as read_preflight
from tfx_tpu_trainer.serving import ServingCheck, holds_saved_model, overview, read_serving_check

Read = TypeVar("Read")

# Entries that are neither a model's variables nor optimizer slots.
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_COUNTERS = frozenset({"global_step", "beta1_power", "beta2_power", _OBJECT_GRAPH})
_OUTPUTS = ("model_run", "model")
PREFLIGHT_FILE = os.path.join("preflight", "report.json")
"""The report of the preflight, in a ModelRun artifact."""
_PLACES = {
    "on_tpu": "on the TPU",
    "outside_compilation": "on the host, called by the TPU",
    "host": "on the host, before the TPU",
    "host_after_tpu": "on the host, after the TPU",
    "host_beside_tpu": "on the host, in the TPU's call",
}


def gather_folder(folder: str) -> RunData:
    """Gathers a folder of checkpoints, or a Model artifact's folder, together with the matching other one.

    Args:
        folder: The folder.

    Returns:
        The data of the training.

    Raises:
        ValueError: If the folder is neither.
    """
    check_can_be_opened("folder", folder)
    # The root folder would become "".
    folder = folder.rstrip("/") or folder
    above, name = os.path.split(os.path.abspath(folder) if is_local(folder) else folder)
    # TFX puts a component's outputs into <component>/<output>/<execution>.
    model_run, model = (os.path.join(os.path.dirname(above), key, name) for key in _OUTPUTS)
    found: tuple[str | None, str | None]
    if _is_model(folder):
        found = model_run if _is_model_run(model_run) else None, folder
    elif _is_model_run(folder):
        found = folder, model if _is_model(model) else None
    else:
        if not tf.io.gfile.isdir(folder):
            if tf.io.gfile.exists(folder):
                raise ValueError(f"{folder!r} is a file: give the folder of a training.")
            raise ValueError(f"The folder {folder!r} does not exist.")
        raise ValueError(
            f"{folder!r} contains no training: give a folder with checkpoints or TensorBoard "
            "events, or one with eval_metrics.json or Format-Serving."
        )
    title = os.path.join(os.path.basename(above), name) or folder
    return gather(found[0], title=title, model=found[1])


def _is_model(folder: str) -> bool:
    return any(
        tf.io.gfile.exists(os.path.join(folder, name))
        for name in ("Format-Serving", "eval_metrics.json")
    )


def _is_model_run(folder: str) -> bool:
    return tf.train.latest_checkpoint(folder) is not None or bool(
        tf.io.gfile.glob(os.path.join(as_pattern(folder), "*tfevents*"))
    )


def gather(
    model_run: str | None,
    *,
    title: str,
    model: str | None = None,
    exported: str | None = None,
    lineage: Lineage | None = None,
    stopped: str | None = None,
    verdict: Verdict | None = None,
    rows: RowSample | None = None,
    class_names: Sequence[str] = (),
    statistics: str | None = None,
    baseline_statistics: str | None = None,
) -> RunData:
    """Gathers the folders of a training. A file that can't be read is listed as unread; the rest is still gathered.

    Args:
        model_run: The folder of checkpoints and TensorBoard events; `None` if there is none.
        title: The name of the training; if `lineage` comes from an earlier `run.json`, the title does, too.
        model: Folder of the Model artifact, with `eval_metrics.json` and `serving_check.json`.
            Defaults to `None`: there is none.
        exported: The SavedModel. Defaults to `None`: that of `model`, if it has one.
        lineage: The model's origin. Defaults to `None`: that in an earlier `run.json` in `model_run`.
        stopped: The reason why the training ended early. Defaults to `None`: it did not, or the reason in an earlier
            `run.json` if `lineage` comes from there, too.
        verdict: The gate's verdict; its baseline's metrics are read. Defaults to `None`: there is none yet.
        rows: Rows of the evaluation of `model`'s metrics. Defaults to `None`: the results in an earlier `run.json`.
        class_names: The names of the classes in `rows`. Defaults to none: they are numbered.
        statistics: Folder of StatisticsGen's statistics of its raw examples. Defaults to `None`: the one in an earlier
            `run.json`.
        baseline_statistics: The same folder of the model that it is compared with. Defaults to `None`: unknown.

    Returns:
    What was found.
    """
    unread: list[str] = []

    def read(function: Callable[..., Read], *args: Any, otherwise: Read) -> Read:
        try:
            return function(*args)
        except (ValueError, OSError, ImportError, tf.errors.OpError) as error:
            said = error.message if isinstance(error, tf.errors.OpError) else str(error)
            unread.append(" ".join(said.split()))
            return otherwise

    # Facts of an earlier page that no file records (who trained it, on which rows) come from its `run.json`, so a
    # page made again, after the gate or by hand, loses nothing. Those about the evaluation are kept only if its numbers
    # are unchanged: the intervals of another checkpoint would be wrong.
    earlier: RunData | None = None
    learning, layers = Learning(), tuple[Layer, ...]()
    damaged: tuple[str, ...] = ()
    if model_run is not None:
        if lineage is None and (earlier := read(read_run_data, model_run, otherwise=None)):
            lineage, stopped = earlier.lineage, stopped or earlier.stopped
            title = earlier.title
        learning, damaged = read(read_learning, model_run, otherwise=(learning, damaged))
        unread += damaged
        layers = read(_layers, model_run, otherwise=layers)
    data: Data | None = None
    if statistics is not None:
        data = read(_data, statistics, baseline_statistics, otherwise=None)
        if data is None and baseline_statistics is not None:
            data = read(_data, statistics, None, otherwise=None)
    elif earlier:
        data = earlier.data
    check = read(read_serving_check, model, otherwise=None) if model else None
    measured = read(_measured, model, otherwise=None) if model else None
    measured = measured or _last_evaluation(learning)
    if verdict and verdict.baseline:
        of_baseline = read(_measured, verdict.baseline, otherwise=None)
        if of_baseline is not None:
            verdict = dataclasses.replace(verdict, baseline_metrics=of_baseline.metrics)
    errors = None
    if measured and rows:
        measured = _with_intervals(measured, rows)
        errors = find_errors(rows.columns, seen=rows.seen, classes=class_names)
    elif measured and earlier and earlier.measured and _is_same(measured, earlier.measured):
        measured, errors = earlier.measured, earlier.errors
    if exported is None and model is not None:
        exported = _saved_model_of(model)
    return RunData(
        title=title,
        written=time.time(),
        stopped=stopped,
        verdict=verdict,
        measured=measured,
        errors=errors,
        learning=learning,
        data=data,
        layers=layers,
        preflight=read(_preflight, model_run, otherwise=None) if model_run else None,
        exported=read(_exported, exported, otherwise=None) if exported else None,
        serving_checks=_serving_checks(check),
        answers=_answers(check),
        lineage=lineage or Lineage(),
        unread=tuple(unread),
    )


def _measured(model: str) -> Measured | None:
    # Imported late: the estimators work without TFMA.
    from tfx_tpu_trainer.components.evaluation._data_slices import slice_in_words
    from tfx_tpu_trainer.components.evaluation._eval_metrics import read_eval_metrics

    metrics = read_eval_metrics(model)
    if metrics is None:
        return None
    return Measured(
        global_step=metrics.global_step,
        num_examples=metrics.num_examples,
        seconds=metrics.seconds,
        metrics=dict(metrics.overall),
        slices=tuple(
            MeasuredSlice(
                name=slice_in_words(one.key),
                num_examples=one.num_examples,
                metrics=dict(one.metrics),
            )
            for one in metrics.slices
        ),
    )


def _with_intervals(measured: Measured, rows: RowSample) -> Measured:
    deviations = {
        name: of_metric for name, of_metric in rows.deviations().items() if name in measured.metrics
    }
    margins = {name: margin_of(of_metric) for name, of_metric in deviations.items()}
    return dataclasses.replace(
        measured,
        intervals={
            name: (measured.metrics[name] - margin, measured.metrics[name] + margin)
            for name, margin in margins.items()
        },
        sampled_rows=min(len(column) for column in rows.columns.values()),
        deviations={name: tuple(of_metric.tolist()) for name, of_metric in deviations.items()},
        rows_digest=digest_of_labels(rows.columns, seen=rows.seen),
    )


def _is_same(one: Measured, other: Measured) -> bool:
    return (one.global_step, one.metrics) == (other.global_step, other.metrics)


def _last_evaluation(learning: Learning) -> Measured | None:
    """Returns the last values written by the estimator's own evaluation."""
    sources = {series.source for series in learning.series} - {TRAINING}
    if not sources:
        return None
    source = "eval" if "eval" in sources else min(sources)
    last = {
        series.name: (series.steps[-1], series.values[-1])
        for series in learning.series
        if series.source == source
    }
    step = max(step for step, _ in last.values())
    return Measured(
        global_step=step,
        num_examples=None,
        seconds=None,
        metrics={name: value for name, (at, value) in last.items() if at == step},
    )


def _layers(model_run: str) -> tuple[Layer, ...]:
    path = tf.train.latest_checkpoint(model_run)
    if path is None:
        return ()
    try:
        reader = tf.train.load_checkpoint(path)
    except tf.errors.OpError as error:
        raise ValueError(f"The checkpoint {path} can't be read: {error.message}") from error
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    # Keras saves object-based checkpoints, whose keys are paths to the variables.
    names = {}
    if _OBJECT_GRAPH in shapes:
        keys = tf_private.object_graph_keys(reader.get_tensor(_OBJECT_GRAPH))
        names = {key: name for name, key in keys.items()}
    for key, shape in shapes.items():
        name = names.get(key, key)
        if name in _COUNTERS:
            continue
        elements = int(np.prod(shape, dtype=np.int64))
        layer = counts[name.partition("/")[0]]
        # TF 1's optimizers name slots after their variable.
        is_slot = name.rpartition("/")[0] in shapes or name.startswith("training/")
        layer["slots" if is_slot else "parameters"] += elements
        layer["bytes"] += elements * dtypes[key].size
    layers = [Layer(name=name, **_counted(of_layer)) for name, of_layer in counts.items()]
    return tuple(sorted(layers, key=lambda layer: (-layer.parameters, layer.name)))


def _counted(layer: Mapping[str, int]) -> dict[str, int]:
    return {kind: layer[kind] for kind in ("parameters", "slots", "bytes")}


def _saved_model_of(model: str) -> str | None:
    path = os.path.join(model, "Format-Serving")
    return path if holds_saved_model(path) else None


def _exported(path: str) -> Exported:
    found = overview(path)
    return Exported(
        path=path,
        bytes=found["bytes"],
        meta_graphs=tuple(
            MetaGraph(
                tags=tuple(sorted(graph["tags"])),
                signatures=tuple(_signatures(graph["signatures"])),
                ops=_places(graph["ops"]),
            )
            for graph in found["meta_graphs"]
        ),
        warmup_requests=sum(each["records"] for each in found["warmup"]),
    )


def _signatures(signatures: Mapping[str, Mapping[str, Any]]) -> Iterator[Signature]:
    for name, signature in sorted(signatures.items()):
        inputs, outputs = (
            {
                key: f"{tensor['dtype']} {_shape_in_words(tensor['shape'])}"
                for key, tensor in sorted(signature[side].items())
            }
            for side in ("inputs", "outputs")
        )
        yield Signature(name=name, inputs=inputs, outputs=outputs)


def _shape_in_words(shape: tuple[int | None, ...] | None) -> str:
    if shape is None:
        return "of any shape"
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


def _places(ops: Mapping[str, Any]) -> dict[str, int]:
    counts = {
        words: sum(ops[key].values()) if isinstance(ops[key], Mapping) else len(ops[key])
        for key, words in _PLACES.items()
    }
    if not counts[_PLACES["on_tpu"]]:
        return {"on the host": sum(counts.values())}
    return {words: count for words, count in counts.items() if count}


def _data(statistics: str, baseline: str | None) -> Data:
    return read_data(statistics, baseline=baseline)


def _preflight(model_run: str) -> Preflight | None:
    path = os.path.join(model_run, PREFLIGHT_FILE)
    if not tf.io.gfile.exists(path):
        return None
    report = read_preflight(path)
    return Preflight(
        tpu=report.tpu,
        compiler=report.compiler,
        steps=tuple(
            StepOnTpu(
                name=step.name,
                ok=step.ok,
                says=step.verdict,
                need_bytes=step.need_bytes,
                limit_bytes=step.limit_bytes,
                by_category={name: size for name, size in step.hbm_by_category.items() if size},
            )
            for step in report.steps
        ),
    )


def _answers(report: ServingCheck | None) -> tuple[Answer, ...]:
    return tuple(
        Answer(**dataclasses.asdict(latency)) for latency in (report.latencies if report else ())
    )


def _serving_checks(report: ServingCheck | None) -> tuple[CheckOfServing, ...]:
    return tuple(
        CheckOfServing(
            name=check.name, outcome=check.outcome, detail=check.detail, seconds=check.seconds
        )
        for check in (report.checks if report else ())
    )
