"""Wide and deep estimators: the sum of a linear and a deep model, each with its optimizer."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.estimator._estimator import Estimator
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator.canned._dnn import (
    Deep,
    check_hidden_units,
    dnn_logits,
    summarize_layer,
    v1_dnn_logits,
)
from tfx_tpu_trainer.estimator.canned._linear import Linear, summarize_weights
from tfx_tpu_trainer.estimator.canned._shared import (
    ModelFn,
    Trained,
    V1Optimizer,
    check_features,
    hidden_partitioner,
    input_partitioner,
    linear_rate,
    train_op_fn_of,
    trainable_variables,
    v1_train_op_fn_of,
)
from tfx_tpu_trainer.estimator.heads import Head, RegressionHead, _v1
from tfx_tpu_trainer.estimator.heads._classification import classification_head
from tfx_tpu_trainer.estimator.heads._head import check_head
from tfx_tpu_trainer.estimator.heads._losses import SUM_OVER_BATCH_SIZE
from tfx_tpu_trainer.estimator.heads._training import optimizer_instance, v1_optimizer_instance

v1 = tf.compat.v1

_DNN_RATE: Final = 0.001
_LINEAR_RATE_LIMIT: Final = 0.005


def _halves(linear: Linear, deep: Deep, *, allow_v1: bool) -> tuple[Linear | None, Deep | None]:
    """Checks both halves; a half without columns is `None`."""
    if not linear.columns and not deep.columns:
        raise ValueError(
            "Either linear_feature_columns or dnn_feature_columns must be defined; given: "
            f"{linear.columns!r} and {deep.columns!r}."
        )
    linear_half = linear.checked(allow_v1=allow_v1) if linear.columns else None
    if not deep.columns:
        return linear_half, None
    units = check_hidden_units(deep.units or ())
    if not units:
        raise ValueError(
            "dnn_hidden_units must be defined when dnn_feature_columns is specified; given: "
            f"{units!r}. Give the width of each hidden layer, such as [64, 32]."
        )
    return linear_half, deep.checked(allow_v1=allow_v1, prefix="dnn_")


def _combined_model_fn(head: Any, linear: Linear, deep: Deep) -> ModelFn:
    """Returns the model_fn of the combined estimators of `tf.estimator`."""
    linear_half, deep_half = _halves(linear, deep, allow_v1=False)
    check_head(head)

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        check_features(features)
        units = head.logits_dimension
        logits: list[tf.Tensor] = []
        updates: list[tf.Operation] = []
        trained: list[Trained] = []
        # An optimizer for both halves is one object that counts the steps of both, as in the original.
        copies: dict[Any, Any] = {}

        def optimizer_of(given: Any, rate: float) -> Any:
            is_trained = mode == ModeKeys.TRAIN
            return optimizer_instance(given, rate, copies=copies) if is_trained else None

        if deep_half:
            optimizer = optimizer_of(deep_half.optimizer, _DNN_RATE)
            with v1.variable_scope("dnn", use_resource=True) as scope:
                of_dnn, updates = dnn_logits(features, mode, deep_half, units)
            logits.append(of_dnn)
            trained.append(Trained(optimizer, trainable_variables(scope)))
        if linear_half:
            optimizer = optimizer_of(linear_half.optimizer, _linear_rate(linear_half))
            with v1.variable_scope("linear", use_resource=True, auxiliary_name_scope=False):
                of_linear, variables = linear_half.logits(features, units)
            summarize_weights(variables, units)
            summarize_layer(of_linear, "linear")
            logits.append(of_linear)
            trained.append(Trained(optimizer, variables))
        return head.create_estimator_spec(
            features=features,
            mode=mode,
            labels=labels,
            logits=tf.add_n(logits),
            train_op_fn=train_op_fn_of(head, trained, updates),
        )

    return model_fn


def _v1_combined_model_fn(head: Any, linear: Linear, deep: Deep, partitioner: Any) -> ModelFn:
    """Returns the model_fn of the combined estimators of `tf.compat.v1.estimator`."""
    linear_half, deep_half = _halves(linear, deep, allow_v1=True)
    check_head(head)

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        check_features(features)
        units = head.logits_dimension
        of_inputs = input_partitioner(config, partitioner)
        logits: list[tf.Tensor] = []
        trained: list[Trained] = []
        if deep_half:
            optimizer = _v1_optimizer(deep_half.optimizer, _DNN_RATE)
            with v1.variable_scope("dnn", partitioner=hidden_partitioner(config)) as scope:
                logits.append(v1_dnn_logits(features, mode, deep_half, units, of_inputs))
                trained.append(Trained(optimizer, trainable_variables(scope)))
        if linear_half:
            optimizer = _v1_optimizer(linear_half.optimizer, _linear_rate(linear_half))
            with v1.variable_scope("linear", partitioner=of_inputs) as scope:
                of_linear, variables = linear_half.logits(features, units)
                summarize_weights(variables, units)
                summarize_layer(of_linear, scope.name)
                logits.append(of_linear)
                trained.append(Trained(optimizer, trainable_variables(scope)))
        train_op_fn = v1_train_op_fn_of(head, trained)
        total = tf.add_n(logits)
        return head.create_estimator_spec(
            features=features, mode=mode, labels=labels, logits=total, train_op_fn=train_op_fn
        )

    return model_fn


def _v1_optimizer(given: Any, rate: float) -> v1.train.Optimizer:
    optimizer = v1_optimizer_instance(given, rate)
    if isinstance(optimizer, v1.train.SyncReplicasOptimizer):
        raise ValueError(
            "SyncReplicasOptimizer does not support multi optimizers case. Therefore, it is not "
            f"supported in DNNLinearCombined model; given: {optimizer!r}. If you want to use this "
            "optimizer, please use either DNN or Linear model."
        )
    return optimizer


def _linear_rate(linear: Linear) -> float:
    return linear_rate(_LINEAR_RATE_LIMIT, len(linear.columns))


class DNNLinearCombinedClassifier(Estimator):
    """Predicts the class of each row by the sum of a linear and a deep model.

    Mirrors `tf.estimator.DNNLinearCombinedClassifier`.

    Examples:
        >>> from tfx_tpu_trainer.estimator import DNNLinearCombinedClassifier, inputs
        >>> import numpy as np
        >>> import tensorflow as tf
        >>> towns = np.array(["Ulm", "Bonn", "Ulm", "Bonn"])
        >>> input_fn = inputs.numpy_input_fn(
        ...     {"town": towns}, np.array([0, 1, 0, 1]), num_epochs=None, shuffle=False
        ... )
        >>> town = tf.feature_column.categorical_column_with_vocabulary_list("town", ["Bonn", "Ulm"])
        >>> estimator = DNNLinearCombinedClassifier(
        ...     linear_feature_columns=[town],
        ...     dnn_feature_columns=[tf.feature_column.embedding_column(town, 2)],
        ...     dnn_hidden_units=[4],
        ...     model_dir="runs/linear_half-and-deep",
        ... )
        >>> estimator = estimator.train(input_fn, max_steps=5)
        >>> sorted({name.split("/")[0] for name in estimator.get_variable_names()})
        ['dnn', 'global_step', 'linear', 'training']
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        linear_feature_columns: Iterable[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Iterable[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Any = tf.nn.relu,
        dnn_dropout: float | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = SUM_OVER_BATCH_SIZE,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        """Checks the arguments of a classifier.

        Args:
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else to a temporary folder.
            linear_feature_columns: Columns of the linear half. Defaults to `None`, no linear half.
            linear_optimizer: Optimizer of the linear half; as `dnn_optimizer`. Defaults to 'Ftrl'.
            dnn_feature_columns: Dense columns of the deep half. Defaults to `None`, no deep half.
            dnn_optimizer: Optimizer of the deep half: legacy Keras, 'Adagrad', 'Adam', 'Ftrl', 'RMSProp', 'SGD', or
                a function that returns one. Defaults to 'Adagrad'.
            dnn_hidden_units: Width of each of its hidden layers; needed with `dnn_feature_columns`.
            dnn_activation_fn: Activation of its hidden layers. Defaults to ReLU.
            dnn_dropout: Share of its values that training drops, in [0, 1). Defaults to `None`.
            n_classes: Number of classes. Defaults to 2.
            weight_column: Name or numeric column of the feature that weights each row's loss. Defaults to `None`.
            label_vocabulary: Names of the classes, for string labels. Defaults to `None`: labels are integers.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            warm_start_from: A checkpoint, a SavedModel or `WarmStartSettings` for initial values. Defaults to `None`.
            loss_reduction: A constant of `tf.losses.Reduction`. Defaults to the mean over the rows.
            batch_norm: Whether each hidden layer's output is normalized over the batch. Defaults to `False`.
            linear_sparse_combiner: How several values in one row are combined: "mean", "sqrtn" or "sum", the default.

        Raises:
            ValueError: If an argument is invalid, such as `n_classes` below 2.
        """
        head = classification_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        linear = Linear(linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        layers = (dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
        deep = Deep(dnn_feature_columns, dnn_optimizer, *layers)
        model_fn = _combined_model_fn(head, linear, deep)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNLinearCombinedRegressor(Estimator):
    """Predicts numbers for each row by the sum of a linear and a deep model.

    Mirrors `tf.estimator.DNNLinearCombinedRegressor`.

    Arguments are those of `DNNLinearCombinedClassifier`, with `label_dimension`, the numbers in the label of a
    row, 1 by default, instead of `n_classes` and `label_vocabulary`.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        linear_feature_columns: Iterable[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Iterable[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Any = tf.nn.relu,
        dnn_dropout: float | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = SUM_OVER_BATCH_SIZE,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        linear = Linear(linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        layers = (dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
        deep = Deep(dnn_feature_columns, dnn_optimizer, *layers)
        model_fn = _combined_model_fn(head, linear, deep)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNLinearCombinedEstimator(Estimator):
    """The sum of a linear and a deep model, with your own head.

    Mirrors `tf.estimator.DNNLinearCombinedEstimator`.

    Arguments are those of `DNNLinearCombinedClassifier`, with `head`, a `Head`, which defines loss, metrics,
    predictions and signatures, instead of those about labels and their loss.
    """

    def __init__(
        self,
        head: Head,
        model_dir: str | os.PathLike[str] | None = None,
        linear_feature_columns: Iterable[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Iterable[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Any = tf.nn.relu,
        dnn_dropout: float | None = None,
        config: RunConfig | None = None,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        linear = Linear(linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        layers = (dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
        deep = Deep(dnn_feature_columns, dnn_optimizer, *layers)
        model_fn = _combined_model_fn(head, linear, deep)
        super().__init__(model_fn, model_dir, config)


class V1DNNLinearCombinedClassifier(Estimator):
    """Predicts the class of each row by the sum of a linear and a deep model.

    Mirrors `tf.compat.v1.estimator.DNNLinearCombinedClassifier`. The arguments are those of
    `tfx_tpu_trainer.estimator.DNNLinearCombinedClassifier`, except for optimizers of `tf.compat.v1.train`; a
    `loss_reduction` of `tf.compat.v1.losses.Reduction`, by default the sum; and `input_layer_partitioner`, which cuts
    the variables of the columns over parameter servers, by default into slices of at least 64 MB.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        linear_feature_columns: Iterable[Any] | None = None,
        linear_optimizer: V1Optimizer = "Ftrl",
        dnn_feature_columns: Iterable[Any] | None = None,
        dnn_optimizer: V1Optimizer = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Any = tf.nn.relu,
        dnn_dropout: float | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        input_layer_partitioner: Callable[..., Any] | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = v1.losses.Reduction.SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        head = _v1.classification_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        linear = Linear(linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        layers = (dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
        deep = Deep(dnn_feature_columns, dnn_optimizer, *layers)
        model_fn = _v1_combined_model_fn(head, linear, deep, input_layer_partitioner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class V1DNNLinearCombinedRegressor(Estimator):
    """Predicts numbers for each row by the sum of a linear and a deep model.

    Mirrors `tf.compat.v1.estimator.DNNLinearCombinedRegressor`. The arguments differ from those of
    `tfx_tpu_trainer.estimator.DNNLinearCombinedRegressor` as those of `estimator.v1.DNNLinearCombinedClassifier` do.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        linear_feature_columns: Iterable[Any] | None = None,
        linear_optimizer: V1Optimizer = "Ftrl",
        dnn_feature_columns: Iterable[Any] | None = None,
        dnn_optimizer: V1Optimizer = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Any = tf.nn.relu,
        dnn_dropout: float | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        input_layer_partitioner: Callable[..., Any] | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = v1.losses.Reduction.SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        head = _v1.RegressionHead(label_dimension, weight_column, loss_reduction=loss_reduction)
        linear = Linear(linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        layers = (dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
        deep = Deep(dnn_feature_columns, dnn_optimizer, *layers)
        model_fn = _v1_combined_model_fn(head, linear, deep, input_layer_partitioner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class V1DNNLinearCombinedEstimator(Estimator):
    """The sum of a linear and a deep model, with your own head.

    Mirrors `tf.compat.v1.estimator.DNNLinearCombinedEstimator`. The arguments differ from those of
    `tfx_tpu_trainer.estimator.DNNLinearCombinedEstimator` as those of `estimator.v1.DNNLinearCombinedClassifier` do.
    """

    def __init__(
        self,
        head: Head,
        model_dir: str | os.PathLike[str] | None = None,
        linear_feature_columns: Iterable[Any] | None = None,
        linear_optimizer: V1Optimizer = "Ftrl",
        dnn_feature_columns: Iterable[Any] | None = None,
        dnn_optimizer: V1Optimizer = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Any = tf.nn.relu,
        dnn_dropout: float | None = None,
        input_layer_partitioner: Callable[..., Any] | None = None,
        config: RunConfig | None = None,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        linear = Linear(linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        layers = (dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
        deep = Deep(dnn_feature_columns, dnn_optimizer, *layers)
        model_fn = _v1_combined_model_fn(head, linear, deep, input_layer_partitioner)
        super().__init__(model_fn, model_dir, config)
