"""The heads of `tf.compat.v1.estimator`'s canned estimators.

They differ from the heads of `tf.estimator`: losses are summed by default, metrics are those of
`tf.compat.v1.metrics`, optimizers those of `tf.compat.v1.train`, each step also runs the graph's
`UPDATE_OPS`, and the average loss is among the summaries.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.heads import _classification, _losses, _regression
from tfx_tpu_trainer.estimator.heads._head import MetricKeys
from tfx_tpu_trainer.estimator.heads._metrics import MeasuredBatch
from tfx_tpu_trainer.estimator.heads._single_head import SingleHead
from tfx_tpu_trainer.estimator.heads._training import (
    check_one_is_given,
    minimize,
    v1_optimizer_instance,
)

v1 = tf.compat.v1

SUM = v1.losses.Reduction.SUM
_REDUCTIONS = tuple(
    reduction for reduction in v1.losses.Reduction.all() if reduction != v1.losses.Reduction.NONE
)


class _V1Head(SingleHead):
    """The differences that all V1 heads share."""

    def __init__(self, *arguments: Any, loss_reduction: str = SUM, **named: Any) -> None:
        """Takes the arguments of the head of `tf.estimator`; `loss_reduction` by keyword only."""
        super().__init__(*arguments, loss_reduction=loss_reduction, **named)

    def _check_loss_reduction(self, reduction: Any) -> str:
        return _losses.check_reduction(reduction, _REDUCTIONS)

    def _reduce(self, rows: tf.Tensor, weights: tf.Tensor | None) -> tf.Tensor:
        return v1.losses.compute_weighted_loss(
            rows, 1.0 if weights is None else weights, reduction=self._loss_reduction
        )

    def _train_op(
        self,
        loss: tf.Tensor,
        optimizer: Any,
        train_op_fn: Callable[[tf.Tensor], Any] | None,
        trainable_variables: Sequence[tf.Variable] | None,
        update_ops: Sequence[Any] | None,
    ) -> Any:
        if check_one_is_given(optimizer, train_op_fn) is train_op_fn:
            op = train_op_fn(loss)
        else:
            op = minimize(
                v1_optimizer_instance(optimizer),
                loss,
                trainable_variables,
                global_step=v1.train.get_global_step(),
                loss_reduction=self._loss_reduction,
            )
        updates = (*(update_ops or ()), *v1.get_collection(v1.GraphKeys.UPDATE_OPS))
        return tf.group(op, *updates) if updates else op

    def _summaries(
        self,
        loss: tf.Tensor,
        features: Any,
        logits: Any,
        labels: Any,
        regularization_losses: Sequence[tf.Tensor] | None,
    ) -> dict[str, tf.Tensor]:
        written = super()._summaries(loss, features, logits, labels, regularization_losses)
        if self._loss_reduction == SUM:
            seen = self._look_at(features, logits, labels, None)
            # Divided by the weights, like the metric of that name, not by the number of rows.
            weights = tf.ones_like(seen.losses)
            weights = weights if seen.weights is None else weights * seen.weights
            total = tf.reduce_sum(seen.losses * weights)
            written[self._summary_key(MetricKeys.LOSS_MEAN)] = total / tf.reduce_sum(weights)
        return written

    def _eval_metrics(
        self,
        features: Any,
        logits: Any,
        labels: Any,
        regularization_losses: Sequence[tf.Tensor] | None,
    ) -> tuple[Callable[..., dict[str, Any]], dict[str, Any]]:
        seen = self._look_at(features, logits, labels, regularization_losses)
        tensors: dict[str, Any] = {
            "losses": seen.losses,
            "labels": seen.labels,
            "predictions": dict(seen.predictions),
        }
        if seen.weights is not None:
            tensors["weights"] = seen.weights
        if seen.regularization_loss is not None:
            # Tensors of cores are concatenated along an axis.
            tensors["regularization_loss"] = tf.reshape(seen.regularization_loss, [1])
        return self._streaming_metrics, tensors

    def _streaming_metrics(
        self,
        losses: tf.Tensor,
        labels: tf.Tensor,
        predictions: Mapping[str, tf.Tensor],
        weights: tf.Tensor | None = None,
        regularization_loss: tf.Tensor | None = None,
    ) -> dict[str, Any]:
        seen = MeasuredBatch(
            losses=losses,
            labels=labels,
            predictions=predictions,
            weights=weights,
            regularization_loss=regularization_loss,
        )
        with v1.name_scope(None, "metrics"):
            return {
                self._summary_key(measure.key): measure.streaming(seen)
                for measure in self._all_measures(regularization_loss is not None)
            }


class BinaryClassHead(_V1Head, _classification.BinaryClassHead):
    """The head of a V1 classifier of two classes; see `heads.BinaryClassHead`."""

    def __init__(self, *arguments: Any, label_vocabulary: Any = None, **named: Any) -> None:
        """Checks the vocabulary, with the TypeError of the original's V1 head."""
        if label_vocabulary is not None and not isinstance(label_vocabulary, (list, tuple)):
            raise TypeError(
                f"label_vocabulary should be a list or tuple. Given type: {type(label_vocabulary)}."
            )
        super().__init__(*arguments, label_vocabulary=label_vocabulary, **named)


class MultiClassHead(_V1Head, _classification.MultiClassHead):
    """The head of a V1 classifier of three classes or more; see `heads.MultiClassHead`."""


class RegressionHead(_V1Head, _regression.RegressionHead):
    """The head of a V1 regressor; see `heads.RegressionHead`."""


classification_head = functools.partial(
    _classification.classification_head, binary=BinaryClassHead, multi=MultiClassHead
)
