"""The base of all heads, and the names of metrics, predictions and signatures."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.estimator._estimator_spec import EstimatorSpec
from tfx_tpu_trainer.estimator._modes import ModeKeys, is_on_cores
from tfx_tpu_trainer.estimator.tpu._tpu_estimator_spec import TPUEstimatorSpec

v1 = tf.compat.v1


class MetricKeys:
    """Names of metrics and summaries; a `%` is replaced by a threshold, class id or class name."""

    LOSS: Final = "loss"
    LOSS_MEAN: Final = "average_loss"
    LOSS_REGULARIZATION: Final = "regularization_loss"
    ACCURACY: Final = "accuracy"
    PRECISION: Final = "precision"
    RECALL: Final = "recall"
    ACCURACY_BASELINE: Final = "accuracy_baseline"
    AUC: Final = "auc"
    AUC_PR: Final = "auc_precision_recall"
    LABEL_MEAN: Final = "label/mean"
    PREDICTION_MEAN: Final = "prediction/mean"
    ACCURACY_AT_THRESHOLD: Final = "accuracy/positive_threshold_%g"
    PRECISION_AT_THRESHOLD: Final = "precision/positive_threshold_%g"
    RECALL_AT_THRESHOLD: Final = "recall/positive_threshold_%g"
    PROBABILITY_MEAN_AT_CLASS: Final = "probability_mean/class%d"
    AUC_AT_CLASS: Final = "auc/class%d"
    AUC_PR_AT_CLASS: Final = "auc_precision_recall/class%d"
    PROBABILITY_MEAN_AT_NAME: Final = "probability_mean/%s"
    AUC_AT_NAME: Final = "auc/%s"
    AUC_PR_AT_NAME: Final = "auc_precision_recall/%s"


class PredictionKeys:
    """Names of predictions."""

    CLASSES: Final = "classes"
    CLASS_IDS: Final = "class_ids"
    ALL_CLASSES: Final = "all_classes"
    ALL_CLASS_IDS: Final = "all_class_ids"
    LOGISTIC: Final = "logistic"
    LOGITS: Final = "logits"
    PREDICTIONS: Final = "predictions"
    PROBABILITIES: Final = "probabilities"


class SignatureKeys:
    """Names of signatures; TensorFlow Serving defines the first, the others are a convention."""

    DEFAULT: Final = "serving_default"
    CLASSIFY: Final = "classification"
    REGRESS: Final = "regression"
    PREDICT: Final = "predict"


def check_head(head: Any, name: str = "head") -> None:
    """Checks that a value has the interface of a head."""
    if isinstance(head, type):
        raise TypeError(f"{name} must be a Head, and {head!r} is a class: call it.")
    if not hasattr(head, "logits_dimension"):
        raise AttributeError(
            f"{type(head).__name__!r} object has no attribute 'logits_dimension': {name} must be a "
            f"Head, such as RegressionHead(); got {head!r}."
        )


class Head(abc.ABC):
    """The top of a model; mirrors `tf.estimator.Head`.

    A head turns logits into predictions, a loss, metrics and signatures, so a model_fn only makes the logits. One
    head serves any number of calls of model_fn. In a custom loop, `loss` and `metrics` work eagerly too.

    Example:
    ```python
    def model_fn(features, labels, mode):
        head = RegressionHead()
        logits = features["x"] @ tf.compat.v1.get_variable("w", [4, head.logits_dimension])
        return head.create_estimator_spec(
            features=features, mode=mode, logits=logits, labels=labels,
            optimizer="Adam", trainable_variables=tf.compat.v1.trainable_variables(),
        )
    ```

    Your own subclass implements the abstract methods, and `create_estimator_spec` or `_create_tpu_estimator_spec`.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str | None:
        """Name of the head, the suffix of its metrics and summaries."""
        raise NotImplementedError("Calling an abstract method.")

    @property
    @abc.abstractmethod
    def logits_dimension(self) -> int:
        """The last axis of the logits that the head takes."""
        raise NotImplementedError("Calling an abstract method.")

    @property
    @abc.abstractmethod
    def loss_reduction(self) -> str:
        """How the losses of the rows are reduced to one: a constant of `tf.losses.Reduction`."""
        raise NotImplementedError("Calling an abstract method.")

    @abc.abstractmethod
    def loss(
        self,
        labels: Any,
        logits: Any,
        features: Mapping[str, Any] | None = None,
        mode: str | None = None,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> tf.Tensor:
        """Returns the loss to minimize.

        Args:
            labels: The labels, in the form that the head expects.
            logits: [D0, ... DN, logits_dimension].
            features: The features, with the weights of the rows. Defaults to `None`.
            mode: One of `ModeKeys`; these heads ignore it. Defaults to `None`.
            regularization_losses: Scalars to add. Defaults to `None`.

        Returns:
            A scalar.
        """
        raise NotImplementedError("Calling an abstract method.")

    @abc.abstractmethod
    def predictions(self, logits: Any, keys: Sequence[str] | None = None) -> dict[Any, tf.Tensor]:
        """Returns predictions.

        Args:
            logits: [D0, ... DN, logits_dimension].
            keys: Keys of the predictions to return. Defaults to `None`, all.

        Returns:
            The predictions by prediction key.
        """
        raise NotImplementedError("Calling an abstract method.")

    @abc.abstractmethod
    def metrics(self, regularization_losses: Sequence[tf.Tensor] | None = None) -> dict[str, Any]:
        """Makes metrics without data.

        Args:
            regularization_losses: Adds a metric of their sum. Defaults to `None`.

        Returns:
            Keras 2 metrics by name.
        """
        raise NotImplementedError("Calling an abstract method.")

    @abc.abstractmethod
    def update_metrics(
        self,
        eval_metrics: dict[str, Any],
        features: Mapping[str, Any] | None,
        logits: Any,
        labels: Any,
        mode: str | None = None,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> dict[str, Any]:
        """Updates metrics with a batch.

        Args:
            eval_metrics: The metrics from `metrics`.
            features: The features, with the weights of the rows.
            logits: [D0, ... DN, logits_dimension].
            labels: The labels, in the form that the head expects.
            mode: One of `ModeKeys`; these heads ignore it. Defaults to `None`.
            regularization_losses: As given to `metrics`. Defaults to `None`.

        Returns:
            The updated metrics.
        """
        raise NotImplementedError("Calling an abstract method.")

    def create_estimator_spec(
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
    ) -> EstimatorSpec | TPUEstimatorSpec:
        """Returns the spec for a model_fn of an Estimator.

        Args:
            features: The features.
            mode: One of `ModeKeys`.
            logits: [D0, ... DN, logits_dimension].
            labels: The labels; needed in modes `"train"` and `"eval"`. Defaults to `None`.
            optimizer: A Keras optimizer, a `tf.compat.v1.train.Optimizer`, one of the names 'Adagrad', 'Adam', 'Ftrl',
                'RMSProp' and 'SGD', or a function without arguments that returns an optimizer. Defaults to `None`.
            trainable_variables: Variables that the optimizer trains. Defaults to `None`: for a v1
                optimizer, all trainable variables of the graph; a Keras optimizer needs them.
            train_op_fn: Takes the loss and returns the train op; training needs either this or `optimizer`. Defaults to
                `None`.
            update_ops: Ops that run with every step, such as those of batch normalization.
                Defaults to `None`.
            regularization_losses: Scalars to add to the loss. Defaults to `None`.

        Returns:
            The spec; inside `on_cores()`, a `TPUEstimatorSpec`.

        Raises:
            ValueError: If an argument that the mode needs is missing or invalid.
            NotImplementedError: If your own subclass does not implement it.
        """
        try:
            spec = self._create_tpu_estimator_spec(
                features=features,
                mode=mode,
                logits=logits,
                labels=labels,
                optimizer=optimizer,
                trainable_variables=trainable_variables,
                train_op_fn=train_op_fn,
                update_ops=update_ops,
                regularization_losses=regularization_losses,
            )
        except NotImplementedError as error:
            raise NotImplementedError(
                "Subclasses of Head must implement `create_estimator_spec()` or "
                f"_create_tpu_estimator_spec(). {type(self).__name__} has neither."
            ) from error
        # Summaries of the v1 API can't be read from cores.
        if mode == ModeKeys.TRAIN and not is_on_cores():
            written = self._summaries(spec.loss, features, logits, labels, regularization_losses)
            with v1.name_scope(""):
                for name, value in written.items():
                    v1.summary.scalar(name, value)
        return spec if is_on_cores() else spec.as_estimator_spec()

    def create_tpu_estimator_spec(self, *args: Any, **kwargs: Any) -> TPUEstimatorSpec:
        """Returns the spec for a model_fn of a TPUEstimator.

        The arguments are those of `create_estimator_spec`. Metrics are a function and its tensors,
        so they measure the rows of all cores, and there are no summaries. An `optimizer` for
        cores is a `CrossShardOptimizer`, or any optimizer inside `on_cores()`.

        Returns:
            The spec.

        Raises:
            ValueError: As `create_estimator_spec`.
        """
        return self._create_tpu_estimator_spec(*args, **kwargs)

    def _create_tpu_estimator_spec(self, *args: Any, **kwargs: Any) -> TPUEstimatorSpec:
        """Returns the spec of either kind of estimator; your own heads may override it."""
        raise NotImplementedError(
            "TPUEstimatorSpec not available for this model head. "
            f"{type(self).__name__} has no _create_tpu_estimator_spec()."
        )

    def _summaries(
        self,
        loss: tf.Tensor,
        features: Any,
        logits: Any,
        labels: Any,
        regularization_losses: Sequence[tf.Tensor] | None,
    ) -> dict[str, tf.Tensor]:
        """Returns the scalar summaries of a training step on one host, by name."""
        del loss, features, logits, labels, regularization_losses
        return {}

    def _features_of_metrics(self, features: Any) -> Any:
        """Returns the features that `update_metrics` needs; each costs transfer time from TPU cores."""
        return features

    def _summary_key(self, key: str) -> str:
        return f"{key}/{self.name}" if self.name else key
