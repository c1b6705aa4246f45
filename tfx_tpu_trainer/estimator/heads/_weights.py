"""The weight of each row, from a feature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.heads import _shapes

v1 = tf.compat.v1


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
