"""From the loss and the weight of each row to one number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.estimator._callables import argument_names, call_with, unexpected_arguments
from tfx_tpu_trainer.estimator.heads import _shapes

v1 = tf.compat.v1

SUM: Final = "sum"
SUM_OVER_BATCH_SIZE: Final = "sum_over_batch_size"

_REDUCTIONS = ("auto", SUM, SUM_OVER_BATCH_SIZE)
_LOSS_FN_ARGUMENTS = ("labels", "logits", "features", "loss_reduction")


def check_reduction(reduction: Any, valid: Sequence[str] = _REDUCTIONS) -> str:
    """Returns a loss reduction back if it is one that a head can use."""
    if reduction not in valid:
        raise ValueError(
            f"Invalid loss_reduction: {reduction}. See `tf.losses.Reduction` for valid options: "
            f"{', '.join(map(repr, valid))}."
        )
    return reduction


def reduce_loss(losses: tf.Tensor, weights: tf.Tensor | None, reduction: str) -> tf.Tensor:
    """Sums weighted losses, or averages them over their number (not over the weights)."""
    # A loss_fn may give any number type; as in the original it is reduced as float32.
    weighted = tf.cast(losses, tf.float32)
    if weights is not None:
        weighted *= weights
    total = tf.reduce_sum(weighted)
    if reduction != SUM:
        total = tf.math.divide_no_nan(total, tf.cast(tf.size(weighted), tf.float32))
    return tf.cast(total, losses.dtype)


def check_loss_fn(loss_fn: Callable[..., Any] | None) -> None:
    """Checks the arguments of a loss function."""
    if loss_fn is None:
        return
    if not callable(loss_fn):
        raise TypeError(f"unsupported callable: loss_fn must be a function; got {loss_fn!r}.")
    names = argument_names(loss_fn)
    for required in ("labels", "logits"):
        if required not in names:
            raise ValueError(
                f"loss_fn must contain argument: {required}. Given arguments: {names} of {loss_fn!r}."
            )
    unexpected = unexpected_arguments(loss_fn, _LOSS_FN_ARGUMENTS)
    if unexpected:
        raise ValueError(
            f"loss_fn has unexpected args: {unexpected}. It may take {', '.join(_LOSS_FN_ARGUMENTS)}."
        )


def takes_features(loss_fn: Callable[..., Any] | None) -> bool:
    """Tells whether a loss function wants the features."""
    return loss_fn is not None and "features" in argument_names(loss_fn)


def call_loss_fn(
    loss_fn: Callable[..., Any],
    labels: tf.Tensor,
    logits: tf.Tensor,
    features: Mapping[str, Any] | None,
    *,
    dimension: int,
    reduction: str,
) -> tf.Tensor:
    """Calls a user's loss function and checks what it returns."""
    available = {
        "labels": labels,
        "logits": logits,
        "features": features,
        "loss_reduction": reduction,
    }
    with v1.name_scope(None, "call_loss_fn"):
        losses = tf.convert_to_tensor(call_with(loss_fn, available))
        return _shapes.matching_logits(
            losses,
            logits,
            dimensions=(dimension,),
            message=f"loss_fn must return Tensor of shape [D0, D1, ... DN, {dimension}]. ",
            what="loss",
        )


def total_regularization(regularization_losses: Sequence[tf.Tensor] | None) -> tf.Tensor | None:
    """Adds up regularization losses; `None` where there are none."""
    return tf.math.add_n(list(regularization_losses)) if regularization_losses else None


class WeightColumn:
    """The feature that holds the weights of the rows, as a head's `weight_column` says."""

    def __init__(self, column: Any) -> None:
        """Checks the column."""
        if isinstance(column, str):
            self._key, self._normalizer_fn = column, None
        elif hasattr(column, "key") and hasattr(column, "normalizer_fn"):
            self._key, self._normalizer_fn = column.key, column.normalizer_fn
        else:
            raise TypeError(
                "Weight column must be either a string or NumericColumn. Given type: "
                f"{type(column)}, {column!r}."
            )

    @property
    def key(self) -> str:
        """Name of the feature."""
        return self._key

    def read(
        self, features: Mapping[str, Any] | None, logits: tf.Tensor, *, per_logit: bool
    ) -> tf.Tensor:
        """Returns the weights."""
        feature = self._feature(features)
        with v1.name_scope(None, "weights"):
            weights = tf.cast(feature, tf.float32)
            # A column adds an axis to a lone number of each row.
            if weights.shape.rank == 1:
                weights = tf.expand_dims(weights, -1)
            given, weights = weights, _shapes.with_last_axis(weights, logits)
            allowed: list[int | None] = [1]
            shape = "[D0, D1, ... DN] or [D0, D1, ... DN, 1]"
            if per_logit:
                allowed.append(logits.shape[-1])
                shape = (
                    "[D0, D1, ... DN], [D0, D1, ... DN, 1] or [D0, D1, ... DN, logits_dimension]"
                )
            return _shapes.matching_logits(
                weights,
                logits,
                dimensions=allowed,
                message=f"weights shape must be {shape}, ",
                what="weights",
                hint=f"They are the feature {self.key!r}.",
                broadcast=True,
                given=given,
            )

    def _feature(self, features: Mapping[str, Any] | None) -> tf.Tensor:
        if not isinstance(features, Mapping) or self.key not in features:
            known = sorted(map(str, features)) if isinstance(features, Mapping) else features
            raise ValueError(
                f"Feature {self.key} is not in features dictionary: it is the head's "
                f"weight_column, but the features are {known}."
            )
        feature = features[self.key]
        if isinstance(feature, (tf.SparseTensor, v1.SparseTensorValue)):
            raise ValueError(
                "The corresponding Tensor of numerical column must be a Tensor. SparseTensor is "
                f"not supported. key: {self.key}. The weights must be dense: convert them in "
                f"input_fn with tf.sparse.to_dense. Given: {feature}."
            )
        feature = tf.convert_to_tensor(feature)
        no_rows = (
            f"Feature (key: {self.key}) cannot have rank 0. Given: {feature}. Give each row its "
            "weight."
        )
        if feature.shape.rank is None:
            feature = _shapes.required(feature, tf.rank(feature) > 0, no_rows, {})
        elif feature.shape.rank == 0:
            raise ValueError(no_rows)
        if self._normalizer_fn is not None:
            feature = self._normalizer_fn(feature)
        if not (feature.dtype.is_floating or feature.dtype.is_integer or feature.dtype.is_bool):
            raise ValueError(
                f"Weight column should be castable to float. Given dtype: {feature.dtype} of "
                f"the feature {self.key!r}."
            )
        return feature
