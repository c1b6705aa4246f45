"""Rows for the check of an exported model and for its warm-up requests, as real as can be had."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_transform as tft

from tfx_tpu_trainer.component.train_job import TrainJob
from tfx_tpu_trainer.serving.tfrecords import read_tfrecords


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingRows:
    """Some rows as a client would send them.

    Attributes:
        examples: Serialized tf.Examples.
        origin: Where they are from, for reports.
        are_real: Whether they are data. Rows that were made up show that a model can be run, but
            warm nothing up: a server would learn wrong shapes from them.
        defaults: Feature name -> what it is in a row that has no value of it.
    """

    examples: tuple[bytes, ...]
    origin: str
    are_real: bool
    defaults: Mapping[str, Any]


def serving_rows(job: TrainJob, count: int, *, transformed_will_do: bool) -> ServingRows:
    """Finds rows: the raw eval examples, else what is next best.

    Args:
        job: What was asked for.
        count: How many rows at most.
        transformed_will_do: Whether the receiver takes Transform's features and not raw ones.

    Returns:
        The rows, one at least.

    Raises:
        ValueError: The raw examples have no rows, or are no tf.Examples.
    """
    if transformed_will_do:
        return ServingRows(
            examples=_records(job.eval_files, count),
            origin="transformed eval examples",
            are_real=True,
            defaults={},
        )
    spec = tft.TFTransformOutput(job.transform_graph_path).raw_feature_spec()
    defaults = {
        name: feature.default_value
        for name, feature in spec.items()
        if isinstance(feature, tf.io.FixedLenFeature) and feature.default_value is not None
    }
    if job.raw_eval_files:
        examples = _records(job.raw_eval_files, count)
        _check_examples(examples, job.raw_eval_files)
        return ServingRows(
            examples=examples, origin="raw eval examples", are_real=True, defaults=defaults
        )
    return ServingRows(
        examples=(_made_up(spec),) * 2, origin="made-up rows", are_real=False, defaults=defaults
    )


def _records(patterns: Sequence[str], count: int) -> tuple[bytes, ...]:
    paths = sorted(path for pattern in patterns for path in tf.io.gfile.glob(pattern))
    return tuple(read_tfrecords(paths, limit=count))


def _check_examples(examples: Sequence[bytes], patterns: Sequence[str]) -> None:
    fix = "give raw_examples=example_gen.outputs['examples'], the ones that Transform has read"
    if not examples:
        raise ValueError(f"raw_examples have no rows in {', '.join(patterns)}; {fix}")
    try:
        features = tf.train.Example.FromString(examples[0]).features.feature
    except Exception as error:
        raise ValueError(f"raw_examples are no tf.Examples ({error}); {fix}") from error
    if not features:
        raise ValueError(f"raw_examples are no tf.Examples, or empty ones; {fix}")


def _made_up(spec: Mapping[str, Any]) -> bytes:
    """A row with a zero, or a short text, for each value that a row has."""
    example = tf.train.Example()
    for name, feature in spec.items():
        if not isinstance(feature, (tf.io.FixedLenFeature, tf.io.VarLenFeature)):
            continue
        shape = feature.shape if isinstance(feature, tf.io.FixedLenFeature) else ()
        count = tf.TensorShape(shape).num_elements()
        values = example.features.feature[name]
        if feature.dtype == tf.string:
            # Not the empty text, which is a value in a tf.Example and a missing one in predict_raw.
            values.bytes_list.value.extend([b"?"] * count)
        elif feature.dtype.is_floating:
            values.float_list.value.extend([0.0] * count)
        else:
            values.int64_list.value.extend([0] * count)
    return example.SerializeToString()
