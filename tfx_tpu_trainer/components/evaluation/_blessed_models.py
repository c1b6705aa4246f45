"""Which model was blessed last: a small pointer file, for backends that can't ask ML Metadata.

Beside the pointer, `<folder>/blessed.json`, stands its history, a file for each blessing in
`<folder>/blessed/`: runs that bless at the same time each leave theirs, and the pointer names the last one.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import os
import uuid
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.messages import printable
from tfx_tpu_trainer._support.whole_files import parse_document, write_document
from tfx_tpu_trainer.components.evaluation._eval_metrics import (
    EvalMetrics,
    metrics_from_json,
    metrics_to_json,
)

_logger = logging.getLogger(__name__)

_FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlessedModel:
    """A model that was blessed.

    Attributes:
        uri: The folder of its Model artifact.
        metrics: Metric name -> value over the whole eval split, when it was blessed.
        time: When that was, in UTC, as ISO 8601 has it.
        training: What tells its training from others: the digest of its inputs, code and settings;
            `None` where the trainer did not say.
    """

    uri: str
    metrics: Mapping[str, float]
    time: str
    training: str | None = None

    @classmethod
    def now(cls, uri: str, metrics: EvalMetrics, training: str | None = None) -> BlessedModel:
        """Makes the record of a model that has just been blessed."""
        time = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds")
        return cls(uri=uri, metrics=metrics.overall, time=time, training=training)

    def _to_document(self) -> dict[str, Any]:
        return {
            "version": _FORMAT_VERSION,
            "uri": self.uri,
            "metrics": metrics_to_json(self.metrics),
            "time": self.time,
            "training": self.training,
        }


def point_to(pointer: str, model: BlessedModel) -> None:
    """Records a blessing: in the history, and then as the last one."""
    document = model._to_document()
    name = f"{model.time.replace(':', '')}-{uuid.uuid4().hex[:8]}.json"
    write_document(os.path.join(_history(pointer), name), document)
    write_document(pointer, document)


def last_blessed(pointer: str) -> BlessedModel | None:
    """Finds the model that was blessed last.

    If the pointer is damaged, or its model no longer exists, the latest existing model of the history is returned, and
    a log line says so.
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
    """Lists the files of the history, the oldest first."""
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
