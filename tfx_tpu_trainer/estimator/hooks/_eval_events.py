"""Reads what evaluations have left in their event files."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.file_systems import as_pattern

v1 = tf.compat.v1
_logger = tf.get_logger()


def read_events(pattern: str) -> Iterator[tuple[int, dict[str, float]]]:
    """Reads the scalars of event files."""
    for path in sorted(tf.io.gfile.glob(pattern)):
        try:
            for event in v1.train.summary_iterator(path):
                values = {
                    value.tag: value.simple_value
                    for value in event.summary.value
                    if value.HasField("simple_value")
                }
                if values:
                    yield event.step, values
        except tf.errors.DataLossError as error:
            _logger.warning(
                "Skipping rest of the file due to encountering data corruption error; file path: "
                "%s; original error raised by `tf.train.summary_iterator`: %s",
                path,
                error,
            )


def read_eval_metrics(eval_dir: str) -> dict[int, dict[str, Any]]:
    """Reads the metrics of all evaluations; mirrors the original's helper of that name.

    Args:
        eval_dir: Folder of the evaluation's events, such as `estimator.eval_dir()`.

    Returns:
        Global step -> metrics by name, in the order of the steps.
    """
    metrics: dict[int, dict[str, Any]] = defaultdict(dict)
    for step, values in read_events(os.path.join(as_pattern(eval_dir), "*.tfevents.*")):
        metrics[step].update(values)
    return dict(sorted(metrics.items()))
