"""Checks that EstimatorSpec and TPUEstimatorSpec share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.mode_keys import ModeKeys

v1 = tf.compat.v1


def check_loss(loss: Any, mode: str | None) -> tf.Tensor | None:
    """Checks a loss and gives it as a scalar tensor.

    Raises:
        TypeError: If it is no tensor.
        ValueError: If the mode needs one and there is none, if it has more than one element, or
            if it is of another graph.
    """
    if loss is None:
        if mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            raise ValueError(f"Missing loss: mode {mode!r} needs one in the spec.")
        return None
    if not tf.is_tensor(loss) or isinstance(loss, tf.SparseTensor):
        raise TypeError(f"loss must be Tensor, given: {loss!r}.")
    check_graph(loss, "loss")
    if loss.shape.num_elements() not in (None, 1):
        raise ValueError(f"Loss must be scalar, given: {loss}. Average it over the batch.")
    return loss if loss.shape.rank == 0 else tf.reshape(loss, [])


def check_train_op(train_op: Any, mode: str | None) -> Any:
    """Checks a train_op and gives it back.

    Raises:
        TypeError: If it is neither an op nor a tensor.
        ValueError: If the mode needs one and there is none, or if it is of another graph.
    """
    if train_op is None:
        if mode == ModeKeys.TRAIN:
            raise ValueError("Missing train_op: mode 'train' needs one in the spec.")
        return None
    if isinstance(train_op, tf.Variable):
        train_op = train_op.op
    if not (isinstance(train_op, tf.Operation) or tf.is_tensor(train_op)):
        raise TypeError(f"train_op must be Operation or Tensor, given: {train_op!r}.")
    check_graph(train_op, "train_op")
    return train_op


def check_predictions(predictions: Any, mode: str | None) -> Any:
    """Checks predictions and gives them back; absent ones as `{}`.

    Raises:
        TypeError: If they are neither a tensor nor a dict of tensors.
        ValueError: If the mode needs them and there are none, or one is of another graph.
    """
    if predictions is None:
        if mode == ModeKeys.PREDICT:
            raise ValueError("Missing predictions: mode 'infer' needs them in the spec.")
        return {}
    named = predictions if isinstance(predictions, Mapping) else {"predictions": predictions}
    for name, value in named.items():
        if not tf.is_tensor(value) or isinstance(value, tf.SparseTensor):
            raise TypeError(f"predictions[{name!r}] must be Tensor, given: {value!r}.")
        check_graph(value, "predictions")
    return predictions


def check_hooks(hooks: Iterable[Any] | None) -> tuple[v1.train.SessionRunHook, ...]:
    """Checks hooks and gives them as a tuple.

    Raises:
        TypeError: If one is no SessionRunHook.
    """
    hooks = tuple(hooks or ())
    for hook in hooks:
        if not isinstance(hook, v1.train.SessionRunHook):
            raise TypeError(f"All hooks must be SessionRunHook instances, given: {hook!r}")
    return hooks


def hooks_of_mode(spec: Any, mode: str) -> tuple[v1.train.SessionRunHook, ...]:
    """Gives the hooks that a spec has for a mode.

    Args:
        spec: An EstimatorSpec or TPUEstimatorSpec.
        mode: One of `ModeKeys`.
    """
    return {
        ModeKeys.TRAIN: spec.training_hooks,
        ModeKeys.EVAL: spec.evaluation_hooks,
        ModeKeys.PREDICT: spec.prediction_hooks,
    }[mode]


def check_graph(value: Any, what: str) -> None:
    """Checks that a tensor or op is of the default graph, or of one around it.

    An export for TPUs calls model_fn in the graph of a function: a feature that is passed
    through untouched is of the graph around it.

    Raises:
        ValueError: If it is of another graph.
    """
    if tf.executing_eagerly():
        return
    graph = v1.get_default_graph()
    while graph is not None:
        if value.graph is graph:
            return
        graph = getattr(graph, "outer_graph", None)
    raise ValueError(
        f'{what} with "{value.name}" must be from the default graph. Was it made outside of '
        "model_fn, or in an earlier call of it? Make every tensor inside of model_fn."
    )
