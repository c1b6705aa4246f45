"""Lets a model_fn see which rows of a prediction are padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import count_rows

IS_PADDING = "is_padding"


class FeaturesWithPadding(dict):
    """Features whose `features["is_padding"]` tells which rows are padding.

    The key is there for who looks it up, and not for who goes through the features: a model_fn
    that makes a column of every feature must not find one more. The original's documentation
    speaks of the key; its code never had it.
    """

    def __init__(
        self, features: Any = (), *, make_padding: Callable[[], tf.Tensor | None] | None = None
    ) -> None:
        """Wraps features."""
        super().__init__(features)
        self._make_padding = make_padding

    def __missing__(self, key: str) -> tf.Tensor:
        """Returns what is not one of the features."""
        padding = None
        if key == IS_PADDING and self._make_padding is not None:
            padding = self._make_padding()
        if padding is None:
            raise KeyError(key)
        return padding


def with_padding(features: Any, is_padding: tf.Tensor) -> Any:
    """Returns features that know their padding; what is not a plain dict is given back as it is."""
    return _with(features, lambda: is_padding)


def without_padding(features: Any) -> Any:
    """Returns features none of whose rows are padding; what is not a plain dict stays as it is."""

    def none_is_padding() -> tf.Tensor | None:
        rows = count_rows(features)
        return None if rows is None else tf.zeros([rows], tf.bool)

    return _with(features, none_is_padding)


def _with(features: Any, make_padding: Callable[[], tf.Tensor | None]) -> Any:
    if type(features) is not dict:
        return features
    return FeaturesWithPadding(features, make_padding=make_padding)
