"""Predictions of classes: their ids, their names, and all there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.tf_private import kept_outside
from tfx_tpu_trainer.estimator._number_checks import as_items, holds
from tfx_tpu_trainer.estimator.export._outputs import ClassificationOutput


def check_keys(keys: Iterable[str] | None, valid: Sequence[str]) -> tuple[str, ...]:
    """Returns the predictions to make."""
    keys = tuple(keys or ())
    for key in keys:
        if key not in valid:
            raise ValueError(
                f"Prediction key must be in PredictionKeys, given: {key!r}. Valid prediction keys "
                f"include {list(valid)}."
            )
    return keys or tuple(valid)


def best_class_ids(logits: tf.Tensor) -> tf.Tensor:
    """Returns the class of the greatest logit, int64 [D0, ... DN, 1]."""
    return tf.expand_dims(tf.argmax(logits, axis=-1, name="class_ids"), axis=-1)


def class_names(
    class_ids: tf.Tensor, n_classes: int, vocabulary: Sequence[str] | None
) -> tf.Tensor:
    """Returns the names of classes; without a vocabulary, their ids as strings.

    Classes that a vocabulary is too short for are called "UNK". No TPU holds strings, so they are made on its
    host.
    """
    if vocabulary:
        names = [*vocabulary, *["UNK"] * (n_classes - len(vocabulary))]
        return kept_outside(lambda ids: tf.gather(tf.constant(names), ids), class_ids)
    return kept_outside(lambda ids: tf.strings.as_string(ids, name="str_classes"), class_ids)


def all_class_ids(logits: tf.Tensor, n_classes: int) -> tf.Tensor:
    """Returns the ids of all classes for every row, int32 [batch, n_classes]."""
    return tf.tile(tf.expand_dims(tf.range(n_classes), 0), [tf.shape(logits)[0], 1])


def all_classes(logits: tf.Tensor, n_classes: int, vocabulary: Sequence[str] | None) -> tf.Tensor:
    """Returns the names of all classes for every row, string [batch, n_classes]."""
    names = vocabulary or [str(class_id) for class_id in range(n_classes)]
    return kept_outside(
        lambda rows: tf.tile(tf.constant([list(names)]), [rows, 1]), tf.shape(logits)[0]
    )


def classification_output(
    scores: tf.Tensor, n_classes: int, vocabulary: Sequence[str] | None
) -> ClassificationOutput:
    """Returns what a classify signature answers: a score for each class."""
    return ClassificationOutput(scores=scores, classes=all_classes(scores, n_classes, vocabulary))


def check_thresholds(
    thresholds: Iterable[float] | None, message: str = "thresholds must be in (0, 1) range."
) -> tuple[float, ...]:
    """Returns thresholds as a tuple."""
    checked = as_items("thresholds", thresholds, "[0.3, 0.7]")
    for threshold in checked:
        if not holds("thresholds", threshold, lambda number: 0.0 < number < 1.0):
            raise ValueError(f"{message} Given: {threshold} of {checked}.")
    return checked


def check_n_classes(n_classes: Any, *, least: int, message: str) -> int:
    """Returns a number of classes back if a head can do with it."""
    if isinstance(n_classes, (str, bytes)):
        raise TypeError(
            f"'<' not supported between instances of {type(n_classes).__name__!r} and 'int': "
            f"n_classes is a number. Given: {n_classes!r}."
        )
    if n_classes is None or n_classes < least:
        raise ValueError(message)
    if int(n_classes) != n_classes:
        raise TypeError(f"n_classes must be a whole number. Given: {n_classes!r}.")
    return int(n_classes)
