"""The wide and deep model: a linear and a deep one, each with its optimizer, summed up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.estimator._mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.canned import _columns as checks
from tfx_tpu_trainer.estimator.canned import _dnn_model, _linear_model
from tfx_tpu_trainer.estimator.canned._dnn_model import Deep
from tfx_tpu_trainer.estimator.canned._linear_model import Linear
from tfx_tpu_trainer.estimator.canned._partitions import hidden_partitioner, input_partitioner
from tfx_tpu_trainer.estimator.canned._train_ops import (
    Trained,
    linear_rate,
    train_op_fn_of,
    trainable_variables,
    v1_train_op_fn_of,
)
from tfx_tpu_trainer.estimator.heads._optimizers import optimizer_instance, v1_optimizer_instance

v1 = tf.compat.v1

_DNN_RATE: Final = 0.001
_LINEAR_RATE_LIMIT: Final = 0.005


def combined_model_fn(*, head: Any, linear: Linear | None, deep: Deep | None) -> Callable[..., Any]:
    """Returns the model_fn of the combined estimators of `tf.estimator`."""

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        del config
        checks.check_features(features)
        units = head.logits_dimension
        logits: list[tf.Tensor] = []
        updates: list[tf.Operation] = []
        trained: list[Trained] = []
        # One object for both halves counts the steps of both, as in the original.
        copies: dict[Any, Any] = {}
        if deep:
            optimizer = _keras_optimizer(deep.optimizer, _DNN_RATE, mode, copies)
            of_dnn = _dnn_model.dnn_logits(features, mode, deep=deep, units=units)
            logits.append(of_dnn.logits)
            updates += of_dnn.updates
            trained.append(Trained(optimizer, of_dnn.variables))
        if linear:
            optimizer = _keras_optimizer(linear.optimizer, _linear_rate(linear), mode, copies)
            with v1.variable_scope("linear", use_resource=True, auxiliary_name_scope=False):
                of_linear = linear.logits(features, units)
            _linear_model.summarize_weights(of_linear, units)
            _dnn_model.summarize_layer(of_linear.logits, "linear")
            logits.append(of_linear.logits)
            trained.append(Trained(optimizer, of_linear.variables))
        return head.create_estimator_spec(
            features=features,
            mode=mode,
            labels=labels,
            logits=tf.add_n(logits),
            train_op_fn=train_op_fn_of(head, trained, updates),
        )

    return model_fn


def v1_combined_model_fn(
    *, head: Any, linear: Linear | None, deep: Deep | None, partitioner: Any
) -> Callable[..., Any]:
    """Returns the model_fn of the combined estimators of `tf.compat.v1.estimator`."""

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        checks.check_features(features)
        units = head.logits_dimension
        of_inputs = input_partitioner(config, partitioner)
        logits: list[tf.Tensor] = []
        trained: list[Trained] = []
        if deep:
            optimizer = _v1_optimizer(deep.optimizer, _DNN_RATE)
            with v1.variable_scope("dnn", partitioner=hidden_partitioner(config)) as scope:
                logits.append(
                    _dnn_model.v1_dnn_logits(
                        features,
                        mode,
                        columns=deep.columns,
                        hidden=deep.hidden,
                        units=units,
                        partitioner=of_inputs,
                    )
                )
                trained.append(Trained(optimizer, trainable_variables(scope)))
        if linear:
            optimizer = _v1_optimizer(linear.optimizer, _linear_rate(linear))
            with v1.variable_scope("linear", partitioner=of_inputs) as scope:
                of_linear = linear.logits(features, units)
                _linear_model.summarize_weights(of_linear, units)
                _dnn_model.summarize_layer(of_linear.logits, scope.name)
                logits.append(of_linear.logits)
                trained.append(Trained(optimizer, trainable_variables(scope)))

        return head.create_estimator_spec(
            features=features,
            mode=mode,
            labels=labels,
            logits=tf.add_n(logits),
            train_op_fn=v1_train_op_fn_of(head, trained),
        )

    return model_fn


def _keras_optimizer(given: Any, rate: float, mode: str, copies: dict[Any, Any]) -> Any:
    return optimizer_instance(given, rate, copies=copies) if mode == ModeKeys.TRAIN else None


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
