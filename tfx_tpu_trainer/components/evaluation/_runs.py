"""Finds the models that were trained, by their metrics, in ML Metadata."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping

import ml_metadata as mlmd
from ml_metadata.proto import metadata_store_pb2

from tfx_tpu_trainer.components.evaluation._eval_metrics import (
    CHECKPOINT,
    GLOBAL_STEP,
    METRIC_PREFIX,
    NUM_EXAMPLES,
    SECONDS,
    number_from_json,
)

_MODEL_TYPE = "Model"
_PIPELINE_TYPE = "pipeline"
_RUN_TYPE = "pipeline_run"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A Model artifact with the metrics that its trainer measured.

    Attributes:
        artifact_id: its id in ML Metadata.
        uri: its folder; `eval_metrics.json` in it has every digit.
        metrics: metric name -> value, of which ML Metadata keeps six digits.
        global_step: training step of the evaluated checkpoint, or None.
        num_examples: rows evaluated, or None.
        checkpoint: the evaluated checkpoint, or None.
        seconds: wall time of the evaluation, or None.
        pipeline: name of the pipeline, '' if ML Metadata doesn't tell.
        runs: names of the runs that have it, the first of which trained it; later ones took it from TFX's
            cache.
        created: when it was made, in seconds since 1970.
    """

    artifact_id: int
    uri: str
    metrics: Mapping[str, float]
    global_step: int | None
    num_examples: int | None
    checkpoint: str | None
    seconds: float | None
    pipeline: str
    runs: tuple[str, ...]
    created: float


def list_models(
    store: mlmd.MetadataStore | str | os.PathLike[str],
    *,
    metric: str,
    mode: str = "max",
    pipeline: str | None = None,
    limit: int | None = None,
) -> list[TrainedModel]:
    """Lists trained models by a metric, the best first.

    Args:
        store: ML Metadata: a store, or the path of a SQLite file, as `tfx-tpu-trainer run` keeps it.
        metric: what to sort by: a name that metric_fn returns, or `loss`. Models without it are left out.
        mode: "max" if higher is better, "min" if lower is. NaN is worse than anything.
        pipeline: only models of this pipeline; None: of all.
        limit: at most so many; None: all.

    Returns:
        The models; empty if no model has the metric.

    Raises:
        ValueError: another mode, or there is no such file.
    """
    if mode not in ("max", "min"):
        raise ValueError(f"mode={mode!r} is not valid; give 'max' or 'min'.")
    opened = store if isinstance(store, mlmd.MetadataStore) else _open(os.fspath(store))
    models = [
        model
        for model in _trained_models(opened)
        if metric in model.metrics and pipeline in (None, model.pipeline)
    ]
    sign = -1 if mode == "max" else 1

    def rank(model: TrainedModel) -> tuple[bool, float, float]:
        value = model.metrics[metric]
        return math.isnan(value), 0.0 if math.isnan(value) else sign * value, model.created

    return sorted(models, key=rank)[:limit]


def _open(path: str) -> mlmd.MetadataStore:
    if not os.path.exists(path):
        raise ValueError(
            f"{path!r} is not an ML Metadata database: give the path of its SQLite file."
        )
    config = metadata_store_pb2.ConnectionConfig()
    config.sqlite.filename_uri = path
    config.sqlite.connection_mode = metadata_store_pb2.SqliteMetadataSourceConfig.READONLY
    return mlmd.MetadataStore(config)


def _trained_models(store: mlmd.MetadataStore) -> Iterator[TrainedModel]:
    if _MODEL_TYPE not in {kind.name for kind in store.get_artifact_types()}:
        return
    for artifact in store.get_artifacts_by_type(_MODEL_TYPE):
        values = {
            name: getattr(value, value.WhichOneof("value"))
            for name, value in artifact.custom_properties.items()
            if value.WhichOneof("value") in ("int_value", "double_value", "string_value")
        }
        metrics = {
            name.removeprefix(METRIC_PREFIX): number_from_json(value)
            for name, value in values.items()
            if name.startswith(METRIC_PREFIX)
        }
        # A model that is being written, or whose training has failed, has no metrics.
        if not metrics:
            continue
        contexts = sorted(store.get_contexts_by_artifact(artifact.id), key=lambda c: c.id)
        by_type = {
            kind: tuple(context.name for context in contexts if context.type == kind)
            for kind in (_PIPELINE_TYPE, _RUN_TYPE)
        }
        yield TrainedModel(
            artifact_id=artifact.id,
            uri=artifact.uri,
            metrics=metrics,
            global_step=values.get(GLOBAL_STEP),
            num_examples=values.get(NUM_EXAMPLES),
            checkpoint=values.get(CHECKPOINT),
            seconds=values.get(SECONDS),
            pipeline=next(iter(by_type[_PIPELINE_TYPE]), ""),
            runs=by_type[_RUN_TYPE],
            created=artifact.create_time_since_epoch / 1000,
        )
