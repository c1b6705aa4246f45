"""Base classes of the heads: they make specs from logits, and have the shared parts of heads of one objective."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator.export._outputs import ExportOutput
from tfx_tpu_trainer.estimator.heads import _losses, _training
from tfx_tpu_trainer.estimator.heads._head import Head, MetricKeys
from tfx_tpu_trainer.estimator.heads._losses import WeightColumn
from tfx_tpu_trainer.estimator.heads._metrics import Measure, MeasuredBatch
from tfx_tpu_trainer.estimator.tpu._tpu_estimator_spec import TPUEstimatorSpec

v1 = tf.compat.v1

_REGULARIZATION = Measure(
    key=MetricKeys.LOSS_REGULARIZATION,
    kind="regularization",
    values=lambda seen: seen.regularization_loss,
)


class BuiltInHead(Head):
    """A head of this package: makes the spec of each mode from the logits."""

    # Name of the scope of all ops, and the default name.
    _scope: tuple[str | None, str]

    @abc.abstractmethod
    def _export_outputs(
        self, predictions: dict[Any, tf.Tensor], features: Any, logits: Any
    ) -> dict[str, ExportOutput]:
        """Returns the export outputs by signature name."""

    def _split_logits(self, logits: Any) -> Any:
        """Returns the logits in the form that `predictions` and `loss` take."""
        return logits

    def _create_tpu_estimator_spec(
        self,
        features: Any,
        mode: str,
        logits: Any,
        labels: Any = None,
        optimizer: Any = None,
        trainable_variables: Sequence[tf.Variable] | None = None,
        train_op_fn: Callable[[tf.Tensor], Any] | None = None,
        update_ops: Sequence[Any] | None = None,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> TPUEstimatorSpec:
        with v1.name_scope(*self._scope):
            logits = self._split_logits(logits)
            predictions = self.predictions(logits)
            if mode == ModeKeys.PREDICT:
                outputs = self._export_outputs(predictions, features, logits)
                return TPUEstimatorSpec(mode, predictions, export_outputs=outputs)
            loss = self.loss(
                labels=labels,
                logits=logits,
                features=features,
                mode=mode,
                regularization_losses=regularization_losses,
            )
            if mode == ModeKeys.EVAL:
                eval_metrics = self._eval_metrics(features, logits, labels, regularization_losses)
                return TPUEstimatorSpec(mode, predictions, loss, eval_metrics=eval_metrics)
            if mode != ModeKeys.TRAIN:
                raise ValueError(
                    f"mode={mode} unrecognized; it must be one of tf.estimator.ModeKeys."
                )
            op = self._train_op(loss, optimizer, train_op_fn, trainable_variables, update_ops)
            return TPUEstimatorSpec(mode, predictions, loss, train_op=op)

    def _train_op(
        self,
        loss: tf.Tensor,
        optimizer: Any,
        train_op_fn: Callable[[tf.Tensor], Any] | None,
        trainable_variables: Sequence[tf.Variable] | None,
        update_ops: Sequence[Any] | None,
    ) -> Any:
        if update_ops is not None and not isinstance(update_ops, (list, tuple)):
            raise ValueError(
                f"update_ops should be a list or a tuple. Given type: {type(update_ops)}."
            )
        # In checkpoints of the original, names of an optimizer's variables begin with this scope.
        with v1.name_scope(""), v1.name_scope("training"):
            if _training.check_one_is_given(optimizer, train_op_fn) is train_op_fn:
                op = train_op_fn(loss)
            else:
                optimizer = _training.optimizer_instance(optimizer, word="optimizer")
                if isinstance(optimizer, v1.train.Optimizer):
                    _training.check_variables_of_v1(optimizer, trainable_variables)
                else:
                    loss = _training.per_replica(loss, self.loss_reduction)
                op = _training.minimize(
                    optimizer,
                    loss,
                    trainable_variables,
                    global_step=v1.train.get_or_create_global_step(),
                    loss_reduction=self.loss_reduction,
                )
            return op if update_ops is None else tf.group(op, *update_ops)

    def _eval_metrics(
        self,
        features: Any,
        logits: Any,
        labels: Any,
        regularization_losses: Sequence[tf.Tensor] | None,
    ) -> tuple[Callable[..., dict[str, Any]], dict[str, Any]]:
        """Returns the metrics of a TPUEstimatorSpec: a function and its tensors."""
        # On cores, the function is called on the host with the concatenated tensors of all cores, so it must use no
        # other tensor.
        tensors = {"logits": logits, "labels": labels}
        needed = self._features_of_metrics(features)
        if needed:
            tensors["features"] = needed
        regularization = _losses.total_regularization(regularization_losses)
        if regularization is not None:
            # Tensors of cores are concatenated along an axis.
            tensors["regularization"] = tf.reshape(regularization, [1])

        def metric_fn(
            logits: Any, labels: Any, features: Any = None, regularization: tf.Tensor | None = None
        ) -> dict[str, Any]:
            # Regularization depends only on variables, so all cores send the same number, which is
            # also the mean.
            total = None if regularization is None else [tf.reduce_mean(regularization)]
            return self.update_metrics(
                eval_metrics=self.metrics(regularization_losses=total),
                features={} if features is None else features,
                logits=logits,
                labels=labels,
                regularization_losses=total,
            )

        return metric_fn, tensors


class SingleHead(BuiltInHead):
    """A head of one objective; subclasses define labels, losses, predictions, metrics and exports."""

    # Whether each logit may have its own weight.
    _weights_per_logit = False

    def __init__(
        self,
        *,
        weight_column: Any,
        loss_reduction: str,
        loss_fn: Callable[..., Any] | None,
        name: str | None,
    ) -> None:
        """Checks and keeps the arguments of all heads."""
        self._weights = None if weight_column is None else WeightColumn(weight_column)
        self._loss_reduction = self._check_loss_reduction(loss_reduction)
        _losses.check_loss_fn(loss_fn)
        self._loss_fn = loss_fn
        self._name = name
        self._scope = (name, "head")

    @property
    def name(self) -> str | None:
        """Name of the head, or `None`."""
        return self._name

    @property
    def loss_reduction(self) -> str:
        """How the losses of the rows are reduced to one."""
        return self._loss_reduction

    @abc.abstractmethod
    def _processed_labels(self, logits: tf.Tensor, labels: Any) -> tf.Tensor:
        """Returns labels in the form that the loss takes."""

    @abc.abstractmethod
    def _own_losses(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each row, [D0, ... DN, loss dimension], without a loss_fn."""

    @abc.abstractmethod
    def _measures(self) -> tuple[Measure, ...]:
        """Returns the measures, to which regularization is added."""

    @abc.abstractmethod
    def _predictions_to_measure(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the predictions that the measures read."""

    @property
    def _loss_dimension(self) -> int:
        """The last axis of the rows' losses."""
        return 1

    def _check_loss_reduction(self, reduction: Any) -> str:
        return _losses.check_reduction(reduction)

    def _reduce(self, rows: tf.Tensor, weights: tf.Tensor | None) -> tf.Tensor:
        return _losses.reduce_loss(rows, weights, self._loss_reduction)

    def loss(
        self,
        labels: Any,
        logits: Any,
        features: Mapping[str, Any] | None = None,
        mode: str | None = None,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> tf.Tensor:
        """Returns the loss to minimize; see `Head.loss`."""
        del mode
        with v1.name_scope(None, "losses"):
            logits = _losses.check_logits(logits, self.logits_dimension)
            rows, weights, _ = self._rows(logits, labels, features)
            loss = self._reduce(rows, weights)
            regularization = _losses.total_regularization(regularization_losses)
            return loss if regularization is None else loss + regularization

    def metrics(self, regularization_losses: Sequence[tf.Tensor] | None = None) -> dict[str, Any]:
        """Makes metrics without data; see `Head.metrics`."""
        with v1.name_scope(None, "metrics"):
            return {
                self._summary_key(measure.key): measure.keras()
                for measure in self._all_measures(bool(regularization_losses))
            }

    # Like the original's, these heads take no mode.
    def update_metrics(  # type: ignore[override]
        self,
        eval_metrics: dict[str, Any],
        features: Mapping[str, Any] | None,
        logits: Any,
        labels: Any,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> dict[str, Any]:
        """Updates metrics with a batch; see `Head.update_metrics`."""
        seen = self._look_at(features, logits, labels, regularization_losses)
        for measure in self._all_measures(seen.regularization_loss is not None):
            measure.update(eval_metrics[self._summary_key(measure.key)], seen)
        return eval_metrics

    def _summaries(
        self,
        loss: tf.Tensor,
        features: Any,
        logits: Any,
        labels: Any,
        regularization_losses: Sequence[tf.Tensor] | None,
    ) -> dict[str, tf.Tensor]:
        """Returns the loss and its regularization."""
        del features, logits, labels
        regularization = _losses.total_regularization(regularization_losses)
        written = {self._summary_key(MetricKeys.LOSS): loss}
        if regularization is not None:
            written[self._summary_key(MetricKeys.LOSS_REGULARIZATION)] = regularization
        return written

    def _features_of_metrics(self, features: Any) -> Any:
        overridden = type(self).update_metrics is not SingleHead.update_metrics
        if overridden or _losses.takes_features(self._loss_fn):
            return features
        return {} if self._weights is None else {self._weights.key: features[self._weights.key]}

    def _rows(
        self, logits: tf.Tensor, labels: Any, features: Mapping[str, Any] | None
    ) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor]:
        """Returns the rows' losses, their weights and the processed labels."""
        processed = self._processed_labels(logits, labels)
        if self._loss_fn is None:
            rows = self._own_losses(logits, processed)
        else:
            rows = _losses.call_loss_fn(
                self._loss_fn,
                processed,
                logits,
                features,
                dimension=self._loss_dimension,
                reduction=self._loss_reduction,
            )
        if self._weights is None:
            return rows, None, processed
        weights = self._weights.read(features, logits, per_logit=self._weights_per_logit)
        return rows, weights, processed

    def _look_at(
        self,
        features: Mapping[str, Any] | None,
        logits: Any,
        labels: Any,
        regularization_losses: Sequence[tf.Tensor] | None,
    ) -> MeasuredBatch:
        logits = _losses.check_logits(logits, self.logits_dimension)
        rows, weights, processed = self._rows(logits, labels, features)
        return MeasuredBatch(
            losses=rows,
            weights=weights,
            labels=processed,
            predictions=self._predictions_to_measure(logits),
            regularization_loss=_losses.total_regularization(regularization_losses),
        )

    def _all_measures(self, regularized: bool) -> tuple[Measure, ...]:
        return (*self._measures(), _REGULARIZATION) if regularized else self._measures()
