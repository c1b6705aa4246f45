"""Writes an evaluation's result for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from tfx_tpu_trainer.engine.evaluating.evaluation import EvalResult

v1 = tf.compat.v1
_logger = tf.get_logger()


def write_evaluation_events(result: EvalResult, *, output_dir: str) -> None:
    """Writes metrics as summaries at the evaluated checkpoint's step.

    Numbers become scalars, arrays tensors, and serialized `Summary` protos are split into
    `name/0`, `name/1` and so on; the global step itself is the step, not a summary. The
    checkpoint's path is written as text where there is one.

    Must be called with a graph as the default one; the first call for a folder writes it too.

    Args:
        result: The result of an evaluation.
        output_dir: Folder of the events.
    """
    step = result.global_step
    shown = ", ".join(f"{name} = {value}" for name, value in sorted(result.metrics.items()))
    _logger.info("Saving dict for global step %d: %s", step, shown)
    writer = v1.summary.FileWriterCache.get(output_dir)
    writer.add_summary(_as_summary(result.metrics), step)
    if result.checkpoint_path:
        _logger.info(
            "Saving 'checkpoint_path' summary for global step %d: %s", step, result.checkpoint_path
        )
        writer.add_summary(_text_summary("checkpoint_path", result.checkpoint_path), step)
    writer.flush()


def _as_summary(metrics: Mapping[str, Any]) -> v1.Summary:
    summary = v1.Summary()
    for name, value in metrics.items():
        if name != "global_step" and value is not None:
            _add(summary, name, value)
    return summary


def _add(summary: v1.Summary, name: str, value: Any) -> None:
    if isinstance(value, (float, int, np.number)):
        summary.value.add(tag=name, simple_value=float(value))
    elif isinstance(value, bytes):
        _add_serialized(summary, name, value)
    elif isinstance(value, np.ndarray):
        summary.value.add(tag=name, tensor=tf.make_tensor_proto(value))
        _logger.info(
            "Summary for np.ndarray is not visible in Tensorboard by default: %s is one.", name
        )
    else:
        _logger.warning(
            "Skipping summary for %s, must be a float, np.float32, np.int64, np.int32 or int or "
            "np.ndarray or a serialized string of Summary; got a %s.",
            name,
            type(value).__name__,
        )


def _add_serialized(summary: v1.Summary, name: str, value: bytes) -> None:
    try:
        parsed = v1.Summary.FromString(value)
    except DecodeError:
        _logger.warning("Skipping summary for %s, cannot parse string to Summary.", name)
        return
    for index, part in enumerate(parsed.value):
        part.tag = f"{name}/{index}"
        summary.value.append(part)


def _text_summary(name: str, text: str) -> v1.Summary:
    summary = v1.Summary()
    part = summary.value.add(tag=name, tensor=tf.make_tensor_proto(text, dtype=tf.string))
    part.metadata.plugin_data.plugin_name = "text"
    return summary
