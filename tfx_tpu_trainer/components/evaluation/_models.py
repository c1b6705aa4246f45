"""Finds models: trained ones by their metrics in ML Metadata, and the last blessed one in a file.

The latter is for backends that can't query ML Metadata. A small file, `<folder>/blessed.json`, points to it. Next to it
is its history, a file for each blessing in `<folder>/blessed/`: runs that bless at the same time each write their own
file, and the pointer names the last one.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import math
import os
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import ml_metadata as mlmd
import tensorflow as tf
from ml_metadata.proto import metadata_store_pb2

from tfx_tpu_trainer._support.messages import printable
from tfx_tpu_trainer._support.whole_files import parse_document, write_document
from tfx_tpu_trainer.components.evaluation._eval_metrics import (
    CHECKPOINT,
    GLOBAL_STEP,
    METRIC_PREFIX,
    NUM_EXAMPLES,
    SECONDS,
    EvalMetrics,
    metrics_from_json,
    metrics_to_json,
    number_from_json,
)

_logger = logging.getLogger(__name__)

_MODEL_TYPE = "Model"
_PIPELINE_TYPE = "pipeline"
_RUN_TYPE = "pipeline_run"
# The version of the pointer's and the history's files.
_FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A Model artifact with its trainer's metrics."""

    artifact_id: int  # its id in ML Metadata
    uri: str  # its folder, where `eval_metrics.json` has all digits
    metrics: Mapping[str, float]  # metric -> value with ML Metadata's six digits
    global_step: int | None  # step of the evaluated checkpoint; None if unknown
    num_examples: int | None  # rows evaluated; None if unknown
    checkpoint: str | None  # the evaluated checkpoint; None if unknown
    seconds: float | None  # duration of the evaluation; None if unknown
    pipeline: str  # pipeline's name; '' if ML Metadata does not record it
    # The runs that use it: the first one trained it, later ones got it from TFX's cache.
    runs: tuple[str, ...]
    created: float  # creation time, in seconds since 1970


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
        store: ML Metadata: a store, or the path of a SQLite file, such as the one of `tfx-tpu-trainer run`.
        metric: the metric to sort by: a name that metric_fn returns, or `loss`. Models without it are left out.
        mode: "max" if higher is better, "min" if lower is. NaN is worse than anything.
        pipeline: only models of this pipeline; None: of all.
        limit: the most models to return; None: all.

    Returns:
        The models; empty if no model has the metric.

    Raises:
        ValueError: the mode is neither of these, or the file does not exist.
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
        # A model still being written, or of a failed training, has no metrics.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlessedModel:
    """A blessed model."""

    uri: str  # folder of the Model artifact
    metrics: Mapping[str, float]  # over the whole eval split, at the blessing
    time: str  # when it was blessed, in UTC, in ISO 8601
    # The digest of its training's inputs, code and settings; `None` if the trainer did not record it.
    training: str | None = None

    @classmethod
    def now(cls, uri: str, metrics: EvalMetrics, training: str | None = None) -> BlessedModel:
        """Makes the record of a model that is blessed now."""
        time = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds")
        return cls(uri=uri, metrics=metrics.overall, time=time, training=training)


def point_to(pointer: str, model: BlessedModel) -> None:
    """Records a blessing: first in the history, then as the last one."""
    document: dict[str, Any] = {
        "version": _FORMAT_VERSION,
        "uri": model.uri,
        "metrics": metrics_to_json(model.metrics),
        "time": model.time,
        "training": model.training,
    }
    name = f"{model.time.replace(':', '')}-{uuid.uuid4().hex[:8]}.json"
    # In this order, a process killed in between leaves the blessing where the next one finds it.
    write_document(os.path.join(_history(pointer), name), document)
    write_document(pointer, document)


def last_blessed(pointer: str) -> BlessedModel | None:
    """Finds the last blessed model.

    If the pointer is damaged, or its model no longer exists, the latest existing model of the history is returned, with
    a log line.
    """
    if not tf.io.gfile.exists(pointer):
        return None
    try:
        return _read(pointer)
    except ValueError as error:
        problem = str(error)
    for path in reversed(blessings(pointer)):
        try:
            found = _read(path)
        except ValueError:
            continue
        _logger.warning(
            "%s; falling back to the model blessed before it, at %s: %s",
            printable(problem),
            found.time,
            printable(found.uri),
        )
        return found
    raise ValueError(
        f"{problem}, and {_history(pointer)} names no other existing model; remove {pointer} to "
        "start without a baseline"
    )


def blessings(pointer: str) -> list[str]:
    """Lists the history's files, oldest first."""
    return sorted(tf.io.gfile.glob(os.path.join(_history(pointer), "[0-9]*.json")))


def _history(pointer: str) -> str:
    return os.path.join(os.path.dirname(pointer), "blessed")


def _read(path: str) -> BlessedModel:
    with tf.io.gfile.GFile(path, "rb") as file:
        text = file.read()
    try:
        document = parse_document(text, newest=_FORMAT_VERSION)
        uri, time, training = document["uri"], document["time"], document["training"]
        if not (isinstance(uri, str) and isinstance(time, str)):
            raise ValueError(f"its uri is {uri!r} and its time {time!r}")
        model = BlessedModel(
            uri=uri, metrics=metrics_from_json(document["metrics"]), time=time, training=training
        )
    except (KeyError, TypeError, ValueError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"the pointer {path} to the last blessed model is damaged ({reason})"
        ) from error
    if not tf.io.gfile.isdir(uri) or not tf.io.gfile.listdir(uri):
        raise ValueError(f"the pointer {path} names the model {uri}, which no longer exists")
    return model
