"""The baseline model: one bias for all rows, so it learns what labels are like on average."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.estimator._mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.canned import _columns as checks
from tfx_tpu_trainer.estimator.canned._train_ops import Trained, train_op_fn_of, v1_train_op_fn_of
from tfx_tpu_trainer.estimator.heads._optimizers import optimizer_instance, v1_optimizer_instance

v1 = tf.compat.v1

_RATE: Final = 0.3


def baseline_model_fn(*, head: Any, optimizer: Any, weight_column: Any) -> Callable[..., Any]:
    """Returns the model_fn of the baseline estimators of `tf.estimator`."""
    weight_key = _key_of(weight_column)

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        del config
        logits, bias = _logits(features, head.logits_dimension, weight_key, use_resource=True)
        train_op_fn = None
        if mode == ModeKeys.TRAIN:
            trained = Trained(optimizer_instance(optimizer, _RATE), [bias])
            train_op_fn = train_op_fn_of(head, [trained])
        return head.create_estimator_spec(
            features=features, mode=mode, labels=labels, logits=logits, train_op_fn=train_op_fn
        )

    return model_fn


def v1_baseline_model_fn(*, head: Any, optimizer: Any, weight_column: Any) -> Callable[..., Any]:
    """Returns the model_fn of the baseline estimators of `tf.compat.v1.estimator`."""
    weight_key = _key_of(weight_column)

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        del config
        logits, _ = _logits(features, head.logits_dimension, weight_key, use_resource=None)
        train_op_fn = None
        if mode == ModeKeys.TRAIN:
            trained = Trained(v1_optimizer_instance(optimizer, _RATE), None)
            train_op_fn = v1_train_op_fn_of(head, [trained])
        return head.create_estimator_spec(
            features=features, mode=mode, labels=labels, logits=logits, train_op_fn=train_op_fn
        )

    return model_fn


def _logits(
    features: Any, units: int, weight_key: str | None, *, use_resource: bool | None
) -> tuple[tf.Tensor, tf.Variable]:
    """The bias once for each row, and the bias."""
    checks.check_features(features)
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


def _key_of(weight_column: Any) -> str | None:
    """The feature of the weights: of a name itself, of a numeric column its key."""
    return getattr(weight_column, "key", weight_column)
