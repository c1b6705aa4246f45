"""Baseline estimators: one bias for all rows, which learns the average label."""

import os
from collections.abc import Sequence
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.estimator._estimator import Estimator
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator.canned._shared import (
    ModelFn,
    Trained,
    V1Optimizer,
    check_features,
    train_op_fn_of,
    v1_train_op_fn_of,
)
from tfx_tpu_trainer.estimator.heads import Head, RegressionHead, _v1
from tfx_tpu_trainer.estimator.heads._classification import classification_head
from tfx_tpu_trainer.estimator.heads._head import check_head
from tfx_tpu_trainer.estimator.heads._losses import SUM_OVER_BATCH_SIZE
from tfx_tpu_trainer.estimator.heads._training import optimizer_instance, v1_optimizer_instance

v1 = tf.compat.v1

_RATE: Final = 0.3


def _baseline_model_fn(
    head: Any, optimizer: Any, weight_column: Any = None, *, is_v1: bool = False
) -> ModelFn:
    """Returns the model_fn of the baseline estimators of `tf.estimator` or `tf.compat.v1.estimator`."""
    check_head(head)

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        use_resource = None if is_v1 else True
        logits, bias = _logits(features, head.logits_dimension, weight_column, use_resource)
        train_op_fn = None
        if mode == ModeKeys.TRAIN and is_v1:
            trained = Trained(v1_optimizer_instance(optimizer, _RATE), None)
            train_op_fn = v1_train_op_fn_of(head, [trained])
        elif mode == ModeKeys.TRAIN:
            trained = Trained(optimizer_instance(optimizer, _RATE), [bias])
            train_op_fn = train_op_fn_of(head, [trained])
        return head.create_estimator_spec(
            features=features, mode=mode, labels=labels, logits=logits, train_op_fn=train_op_fn
        )

    return model_fn


def _logits(
    features: Any, units: int, weight_column: Any, use_resource: bool | None
) -> tuple[tf.Tensor, tf.Variable]:
    """Returns the bias repeated for each row, and the bias."""
    check_features(features)
    # A numeric column's feature has another name than the column.
    weight_key = getattr(weight_column, "key", weight_column)
    lengths = {
        name: v1.shape(feature)[0] for name, feature in features.items() if name != weight_key
    }
    if not lengths:
        raise ValueError(
            f"A baseline needs a feature from which to count the rows; got {list(features)}."
        )
    (first, batch_size), *others = lengths.items()
    same = [
        v1.debugging.assert_equal(
            batch_size, length, message=f"Features {first!r} and {name!r} differ in rows."
        )
        for name, length in others
    ]
    with tf.control_dependencies(same), v1.variable_scope("baseline", use_resource=use_resource):
        bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
        return tf.multiply(bias, tf.ones([batch_size, units])), bias


class BaselineClassifier(Estimator):
    """Predicts the class of each row from one bias that all rows share.

    Mirrors `tf.estimator.BaselineClassifier`.

    Examples:
        Three rows of four are of class 1, so it predicts 1 for each:

        >>> from tfx_tpu_trainer.estimator import BaselineClassifier, inputs
        >>> import numpy as np
        >>> input_fn = inputs.numpy_input_fn(
        ...     {"x": np.zeros(4)}, np.array([0, 1, 1, 1]), num_epochs=None, shuffle=False
        ... )
        >>> estimator = BaselineClassifier(model_dir="runs/baseline")
        >>> metrics = estimator.train(input_fn, max_steps=20).evaluate(input_fn, steps=1)
        >>> print(metrics["accuracy"], metrics["label/mean"])
        0.75 0.75
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = SUM_OVER_BATCH_SIZE,
    ) -> None:
        """Checks the arguments of a classifier.

        Args:
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else to a temporary folder.
            n_classes: Number of classes. Defaults to 2.
            weight_column: Name or numeric column of the feature that weights each row's loss. Defaults to `None`.
            label_vocabulary: Names of the classes, for string labels. Defaults to `None`: labels are integers.
            optimizer: A legacy Keras optimizer, 'Adagrad', 'Adam', 'Ftrl', 'RMSProp', 'SGD', or a function that returns
                one. Defaults to 'Ftrl'.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            loss_reduction: A constant of `tf.losses.Reduction`. Defaults to the mean over the rows.

        Raises:
            ValueError: If an argument is invalid, such as `n_classes` below 2.
        """
        head = classification_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        model_fn = _baseline_model_fn(head, optimizer, weight_column)
        super().__init__(model_fn, model_dir, config)


class BaselineRegressor(Estimator):
    """Predicts numbers for each row from one bias that all rows share.

    Mirrors `tf.estimator.BaselineRegressor`.

    Arguments are those of `BaselineClassifier`, with `label_dimension`, the numbers in the label of a
    row, 1 by default, instead of `n_classes` and `label_vocabulary`.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = SUM_OVER_BATCH_SIZE,
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        model_fn = _baseline_model_fn(head, optimizer, weight_column)
        super().__init__(model_fn, model_dir, config)


class BaselineEstimator(Estimator):
    """A model of one bias for all rows, with your own head.

    Mirrors `tf.estimator.BaselineEstimator`.

    Arguments are those of `BaselineClassifier`, with `head`, a `Head`, which defines loss, metrics,
    predictions and signatures, instead of those about labels and their loss.
    """

    def __init__(
        self,
        head: Head,
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
    ) -> None:
        model_fn = _baseline_model_fn(head, optimizer)
        super().__init__(model_fn, model_dir, config)


class V1BaselineClassifier(Estimator):
    """Predicts the class of each row from one bias that all rows share.

    Mirrors `tf.compat.v1.estimator.BaselineClassifier`. The arguments are those of
    `tfx_tpu_trainer.estimator.BaselineClassifier`, except for an `optimizer` of `tf.compat.v1.train`, and a
    `loss_reduction` of `tf.compat.v1.losses.Reduction`, by default the sum.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: V1Optimizer = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = v1.losses.Reduction.SUM,
    ) -> None:
        head = _v1.classification_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        model_fn = _baseline_model_fn(head, optimizer, weight_column, is_v1=True)
        super().__init__(model_fn, model_dir, config)


class V1BaselineRegressor(Estimator):
    """Predicts numbers for each row from one bias that all rows share.

    Mirrors `tf.compat.v1.estimator.BaselineRegressor`. The arguments differ from those of
    `tfx_tpu_trainer.estimator.BaselineRegressor` as those of `estimator.v1.BaselineClassifier` do.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: V1Optimizer = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = v1.losses.Reduction.SUM,
    ) -> None:
        head = _v1.RegressionHead(label_dimension, weight_column, loss_reduction=loss_reduction)
        model_fn = _baseline_model_fn(head, optimizer, weight_column, is_v1=True)
        super().__init__(model_fn, model_dir, config)


class V1BaselineEstimator(Estimator):
    """A model of one bias for all rows, with your own head.

    Mirrors `tf.compat.v1.estimator.BaselineEstimator`. The arguments differ from those of
    `tfx_tpu_trainer.estimator.BaselineEstimator` as those of `estimator.v1.BaselineClassifier` do.
    """

    def __init__(
        self,
        head: Head,
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: V1Optimizer = "Ftrl",
        config: RunConfig | None = None,
    ) -> None:
        model_fn = _baseline_model_fn(head, optimizer, is_v1=True)
        super().__init__(model_fn, model_dir, config)
