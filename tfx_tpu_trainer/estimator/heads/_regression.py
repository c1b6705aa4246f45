"""Heads that predict numbers for each row."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._argument_checks import holds
from tfx_tpu_trainer.estimator.export._outputs import ExportOutput, PredictOutput, RegressionOutput
from tfx_tpu_trainer.estimator.heads import _classes, _losses
from tfx_tpu_trainer.estimator.heads._head import MetricKeys, PredictionKeys, SignatureKeys
from tfx_tpu_trainer.estimator.heads._metrics import Measure
from tfx_tpu_trainer.estimator.heads._single_head import SingleHead

v1 = tf.compat.v1


class RegressionHead(SingleHead):
    """Squared error; mirrors `tf.estimator.RegressionHead`.

    Takes logits and labels [D0, ... DN, label_dimension]; labels of one number may be
    [D0, ... DN]. Weights may be of either shape, or have one weight for each logit.

    Examples:
        The squared errors are 0 and 4:

        >>> from tfx_tpu_trainer.estimator import RegressionHead
        >>> import tensorflow as tf
        >>> head = RegressionHead()
        >>> labels, logits = tf.constant([[1.0], [2.0]]), tf.constant([[1.0], [4.0]])
        >>> print(head.loss(labels, logits).numpy())
        2.0
        >>> sorted(head.predictions(logits))
        ['predictions']
    """

    _weights_per_logit = True

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: Any = None,
        loss_reduction: str = _losses.SUM_OVER_BATCH_SIZE,
        loss_fn: Callable[..., Any] | None = None,
        inverse_link_fn: Callable[[tf.Tensor], tf.Tensor] | None = None,
        name: str | None = None,
    ) -> None:
        """Checks the arguments.

        Args:
            label_dimension: Numbers in the label of a row. Defaults to 1.
            weight_column: Name of the feature that holds the weights, or a
                `tf.feature_column.numeric_column`. Defaults to `None`.
            loss_reduction: `"sum_over_batch_size"` or `"sum"`. Defaults to the former.
            loss_fn: Takes `labels` and `logits`, and `features` and `loss_reduction` if it names
                them; returns the losses, [D0, ... DN, label_dimension]. Defaults to `None`.
            inverse_link_fn: Maps logits to predictions. Defaults to `None`: predictions are logits.
            name: Suffix of the names of metrics and summaries. Defaults to `None`.

        Raises:
            ValueError: If an argument is invalid.
            TypeError: If `weight_column` is neither a name nor a numeric column, `label_dimension` is not
                a whole number, or a function is not callable.
        """
        if not holds("label_dimension", label_dimension, lambda number: number >= 1):
            raise ValueError(f"Invalid label_dimension {label_dimension}: it must be 1 or more.")
        if label_dimension % 1:
            raise TypeError(f"label_dimension must be a whole number; got {label_dimension!r}.")
        if inverse_link_fn is not None and not callable(inverse_link_fn):
            raise TypeError(f"inverse_link_fn must be a function; got {inverse_link_fn!r}.")
        super().__init__(
            weight_column=weight_column, loss_reduction=loss_reduction, loss_fn=loss_fn, name=name
        )
        self._label_dimension = int(label_dimension)
        self._inverse_link_fn = inverse_link_fn

    @property
    def logits_dimension(self) -> int:
        """The label dimension."""
        return self._label_dimension

    @property
    def _loss_dimension(self) -> int:
        return self._label_dimension

    def predictions(self, logits: Any, keys: Sequence[str] | None = None) -> dict[str, tf.Tensor]:
        """Returns predictions and, if a function makes them, logits; see `Head.predictions`."""
        logits = _losses.check_logits(logits, self.logits_dimension)
        with v1.name_scope(None, "predictions"):
            if self._inverse_link_fn is None:
                made = {PredictionKeys.PREDICTIONS: logits}
            else:
                made = {
                    PredictionKeys.PREDICTIONS: self._inverse_link_fn(logits),
                    PredictionKeys.LOGITS: logits,
                }
        wanted = _classes.check_keys(keys, tuple(made))
        return {key: tensor for key, tensor in made.items() if key in wanted}

    def _processed_labels(self, logits: tf.Tensor, given: Any) -> tf.Tensor:
        dense = _losses.dense_labels(given, logits, self._label_dimension)
        if dense.dtype == tf.string:
            raise ValueError(f"Labels dtype should be a number. Instead got {dense}.")
        return tf.cast(dense, tf.float32)

    def _own_losses(self, logits: tf.Tensor, processed: tf.Tensor) -> tf.Tensor:
        return tf.math.squared_difference(logits, processed)

    def _predictions_to_measure(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        return self.predictions(logits)

    def _measures(self) -> tuple[Measure, ...]:
        return (
            Measure(key=MetricKeys.LOSS_MEAN, kind="mean", values=lambda seen: seen.losses),
            Measure(
                key=MetricKeys.PREDICTION_MEAN,
                kind="mean",
                values=lambda seen: seen.predictions[PredictionKeys.PREDICTIONS],
            ),
            Measure(key=MetricKeys.LABEL_MEAN, kind="mean", values=lambda seen: seen.labels),
        )

    def _export_outputs(
        self, predictions: dict[str, tf.Tensor], features: Any, logits: Any
    ) -> dict[str, ExportOutput]:
        value = RegressionOutput(predictions[PredictionKeys.PREDICTIONS])
        return {
            SignatureKeys.DEFAULT: value,
            SignatureKeys.REGRESS: value,
            SignatureKeys.PREDICT: PredictOutput(predictions),
        }


class PoissonRegressionHead(RegressionHead):
    """Poisson loss of counts; mirrors `tf.estimator.PoissonRegressionHead`.

    Logits are the logarithm of the predicted mean.

    Examples:
        >>> from tfx_tpu_trainer.estimator import PoissonRegressionHead
        >>> import tensorflow as tf
        >>> head = PoissonRegressionHead(compute_full_loss=False)
        >>> print(head.predictions(tf.math.log([[3.0]]))["predictions"].numpy().round(3))
        [[3.]]
    """

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: Any = None,
        loss_reduction: str = _losses.SUM_OVER_BATCH_SIZE,
        compute_full_loss: bool = True,
        name: str | None = None,
    ) -> None:
        """Checks the arguments.

        Args:
            label_dimension: Numbers in the label of a row. Defaults to 1.
            weight_column: As in `RegressionHead`. Defaults to `None`.
            loss_reduction: `"sum_over_batch_size"` or `"sum"`. Defaults to the former.
            compute_full_loss: Whether the loss includes the constant term, log(labels!) by Stirling's
                formula. Defaults to `True`.
            name: Suffix of the names of metrics and summaries. Defaults to `None`.

        Raises:
            ValueError: If an argument is invalid.
            TypeError: If `weight_column` is neither a name nor a numeric column.
        """
        super().__init__(
            label_dimension,
            weight_column,
            loss_reduction,
            loss_fn=self._poisson_losses,
            inverse_link_fn=tf.exp,
            name=name,
        )
        self._compute_full_loss = compute_full_loss

    def _poisson_losses(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return tf.nn.log_poisson_loss(
            targets=labels, log_input=logits, compute_full_loss=self._compute_full_loss
        )


class LogisticRegressionHead(RegressionHead):
    """Sigmoid cross entropy of labels from 0 to 1; mirrors `tf.estimator.LogisticRegressionHead`.

    The loss is that of `BinaryClassHead`; predictions, metrics and signatures are those of a
    regression.

    Examples:
        >>> from tfx_tpu_trainer.estimator import LogisticRegressionHead
        >>> import tensorflow as tf
        >>> head = LogisticRegressionHead()
        >>> print(head.predictions(tf.constant([[0.0]]))["predictions"].numpy())
        [[0.5]]
    """

    def __init__(
        self,
        weight_column: Any = None,
        loss_reduction: str = _losses.SUM_OVER_BATCH_SIZE,
        name: str | None = None,
    ) -> None:
        """Checks the arguments.

        Args:
            weight_column: As in `RegressionHead`. Defaults to `None`.
            loss_reduction: `"sum_over_batch_size"` or `"sum"`. Defaults to the former.
            name: Suffix of the names of metrics and summaries. Defaults to `None`.

        Raises:
            ValueError: If an argument is invalid.
            TypeError: If `weight_column` is neither a name nor a numeric column.
        """
        super().__init__(
            1,
            weight_column,
            loss_reduction,
            loss_fn=_logistic_losses,
            inverse_link_fn=tf.sigmoid,
            name=name,
        )


def _logistic_losses(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=_from_0_to_1(labels), logits=logits)


def _from_0_to_1(values: tf.Tensor) -> tf.Tensor:
    return _classes.in_range(values, 2, "Labels must be in range [0, 1].")
