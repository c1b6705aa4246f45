"""What the canned estimators are made of, in the two forms that they have.

`V2` makes those of `tf.estimator`, `V1` those of `tf.compat.v1.estimator`: the same models, with other
heads, optimizers and variable scopes, so that each form's checkpoints have the original's names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from tfx_tpu_trainer.estimator.canned._baseline_model import baseline_model_fn, v1_baseline_model_fn
from tfx_tpu_trainer.estimator.canned._columns import check_dense_columns, check_linear_columns
from tfx_tpu_trainer.estimator.canned._combined_model import combined_model_fn, v1_combined_model_fn
from tfx_tpu_trainer.estimator.canned._dnn_model import (
    Deep,
    check_hidden_units,
    dnn_model_fn,
    hidden_layers,
    v1_dnn_model_fn,
)
from tfx_tpu_trainer.estimator.canned._linear_model import (
    Linear,
    linear_model_fn,
    v1_linear_model_fn,
)
from tfx_tpu_trainer.estimator.heads import (
    BinaryClassHead,
    Head,
    MultiClassHead,
    RegressionHead,
    _v1,
)
from tfx_tpu_trainer.estimator.heads._head import check_head

SUM_OVER_BATCH_SIZE: Final = "sum_over_batch_size"

ModelFn = Callable[..., Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
    """One form of the canned estimators.

    Attributes:
        classification_head: From the number of classes, the weight column, the label vocabulary and
            the loss reduction to the head of a classifier.
        regression_head: From the label's dimension, the weight column and the loss reduction to the
            head of a regressor.
        allows_v1_columns: Whether columns of `tf.compat.v1.feature_column` will do.
        baseline_model_fn: From head, optimizer and weight column to a model_fn.
        linear_model_fn: Makes the model_fn of `linear`.
        dnn_model_fn: Makes the model_fn of `dnn`.
        combined_model_fn: Makes the model_fn of `combined`.
    """

    classification_head: Callable[[int, Any, Sequence[str] | None, str], Head]
    regression_head: Callable[[int, Any, str], Head]
    allows_v1_columns: bool
    baseline_model_fn: Callable[..., ModelFn]
    linear_model_fn: Callable[..., ModelFn]
    dnn_model_fn: Callable[..., ModelFn]
    combined_model_fn: Callable[..., ModelFn]

    def baseline(self, head: Head, *, optimizer: Any, weight_column: Any = None) -> ModelFn:
        """Returns the model_fn of a baseline estimator."""
        check_head(head)
        return self.baseline_model_fn(head=head, optimizer=optimizer, weight_column=weight_column)

    def linear(
        self,
        head: Head,
        columns: Iterable[Any],
        *,
        optimizer: Any,
        sparse_combiner: str,
        **options: Any,
    ) -> ModelFn:
        """Returns the model_fn of a linear estimator."""
        check_head(head)
        linear = self._linear_half(columns, optimizer, sparse_combiner)
        return self.linear_model_fn(head=head, linear=linear, **options)

    def dnn(
        self,
        head: Head,
        columns: Iterable[Any],
        *,
        hidden_units: Sequence[int],
        activation_fn: Any,
        dropout: float | None,
        batch_norm: bool,
        optimizer: Any,
        **options: Any,
    ) -> ModelFn:
        """Returns the model_fn of a deep estimator."""
        check_head(head)
        columns = check_dense_columns(columns, allow_v1=self.allows_v1_columns)
        hidden = hidden_layers(hidden_units, activation_fn, dropout, batch_norm)
        return self.dnn_model_fn(head=head, deep=Deep(columns, optimizer, hidden), **options)

    def halves(
        self,
        *,
        linear_columns: Iterable[Any] | None,
        linear_optimizer: Any,
        linear_sparse_combiner: str,
        dnn_columns: Iterable[Any] | None,
        dnn_optimizer: Any,
        dnn_hidden_units: Sequence[int] | None,
        dnn_activation_fn: Any,
        dnn_dropout: float | None,
        batch_norm: bool,
    ) -> tuple[Linear | None, Deep | None]:
        """Checks what the combined estimators are given and sorts it."""
        if not linear_columns and not dnn_columns:
            raise ValueError(
                "Either linear_feature_columns or dnn_feature_columns must be defined; given: "
                f"{linear_columns!r} and {dnn_columns!r}."
            )
        linear = deep = None
        if linear_columns:
            linear = self._linear_half(linear_columns, linear_optimizer, linear_sparse_combiner)
        if dnn_columns:
            units = check_hidden_units(dnn_hidden_units or ())
            if not units:
                raise ValueError(
                    "dnn_hidden_units must be defined when dnn_feature_columns is specified; given: "
                    f"{units!r}. Give the width of each hidden layer, such as [64, 32]."
                )
            columns = check_dense_columns(dnn_columns, allow_v1=self.allows_v1_columns)
            hidden = hidden_layers(units, dnn_activation_fn, dnn_dropout, batch_norm, prefix="dnn_")
            deep = Deep(columns, dnn_optimizer, hidden)
        return linear, deep

    def combined(
        self, head: Head, halves: tuple[Linear | None, Deep | None], **options: Any
    ) -> ModelFn:
        """Returns the model_fn of a combined estimator."""
        check_head(head)
        linear, deep = halves
        return self.combined_model_fn(head=head, linear=linear, deep=deep, **options)

    def _linear_half(self, columns: Iterable[Any], optimizer: Any, sparse_combiner: str) -> Linear:
        checked = check_linear_columns(columns, allow_v1=self.allows_v1_columns)
        return Linear(checked, optimizer, sparse_combiner)


def _classification_head(
    n_classes: int, weight_column: Any, label_vocabulary: Sequence[str] | None, loss_reduction: str
) -> Head:
    options: dict[str, Any] = {
        "weight_column": weight_column,
        "label_vocabulary": label_vocabulary,
        "loss_reduction": loss_reduction,
    }
    if n_classes == 2:
        return BinaryClassHead(**options)
    return MultiClassHead(n_classes, **options)


V2: Final = Form(
    classification_head=_classification_head,
    regression_head=RegressionHead,
    allows_v1_columns=False,
    baseline_model_fn=baseline_model_fn,
    linear_model_fn=linear_model_fn,
    dnn_model_fn=dnn_model_fn,
    combined_model_fn=combined_model_fn,
)
"""Makes the estimators of `tf.estimator`."""

V1: Final = Form(
    classification_head=_v1.binary_or_multi_class_head,
    regression_head=_v1.RegressionHead,
    allows_v1_columns=True,
    baseline_model_fn=v1_baseline_model_fn,
    linear_model_fn=v1_linear_model_fn,
    dnn_model_fn=v1_dnn_model_fn,
    combined_model_fn=v1_combined_model_fn,
)
"""Makes the estimators of `tf.compat.v1.estimator`."""
