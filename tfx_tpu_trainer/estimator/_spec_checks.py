"""Checks that EstimatorSpec and TPUEstimatorSpec share."""

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._mode_keys import ModeKeys

v1 = tf.compat.v1


class NoSpecError(ValueError):
    """A model_fn returned `returned`, which is not a spec."""

    def __init__(self, message: str, *, returned: Any) -> None:
        super().__init__(message)
        self.returned = returned


def check_loss(loss: Any, mode: str | None) -> tf.Tensor | None:
    """Checks a loss and returns it as a scalar tensor."""
    if loss is None:
        if mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            raise ValueError(f"Missing loss. Mode {mode!r} needs one in the spec.")
        return None
    _check_is_tensor(loss, "loss")
    if not (loss.dtype.is_floating or loss.dtype.is_integer):
        raise TypeError(f"loss must be of a type of numbers, such as float32, given: {loss!r}.")
    check_graph(loss, "loss")
    if loss.shape.num_elements() not in (None, 1):
        raise ValueError(f"Loss must be scalar, given: {loss}. Average it over the batch.")
    return loss if loss.shape.rank == 0 else tf.reshape(loss, [])


def check_train_op(train_op: Any, mode: str | None) -> Any:
    """Checks a train_op and returns it."""
    if train_op is None:
        if mode == ModeKeys.TRAIN:
            raise ValueError("Missing train_op. Mode 'train' needs one in the spec.")
        return None
    if isinstance(train_op, tf.Variable):
        train_op = train_op.op
    if not isinstance(train_op, (tf.Operation, tf.Tensor)):
        raise TypeError(f"train_op must be Operation or Tensor, given: {train_op!r}.")
    check_graph(train_op, "train_op")
    return train_op


def check_predictions(predictions: Any, mode: str | None) -> Any:
    """Checks predictions and returns them; a dict is copied, and `None` becomes `{}`."""
    if predictions is None:
        if mode == ModeKeys.PREDICT:
            raise ValueError("Missing predictions. Mode 'infer' needs them in the spec.")
        return {}
    if not isinstance(predictions, Mapping):
        _check_is_tensor(predictions, "predictions")
        check_graph(predictions, "prediction values")
        return predictions
    for name, value in predictions.items():
        _check_is_tensor(value, f"predictions[{name}]")
        check_graph(value, "prediction values", key=name)
    return dict(predictions)


def predictions_of_mode(predictions: Any, mode: str) -> Any:
    """Returns predictions; rejects an empty dict, whose session calls would read no input and never end."""
    if mode == ModeKeys.PREDICT and isinstance(predictions, Mapping) and not predictions:
        raise ValueError("Missing predictions. The spec has none, or an empty dict of them.")
    return predictions


def check_hooks(
    hooks: Iterable[Any] | None, *, message: str = "All hooks must be SessionRunHook instances"
) -> tuple[v1.train.SessionRunHook, ...]:
    """Checks hooks and returns them as a tuple."""
    if hooks is not None and not isinstance(hooks, Iterable):
        raise TypeError(f"{message}, given: {hooks!r}. Give a list of them.")
    hooks = tuple(hooks or ())
    for hook in hooks:
        if not isinstance(hook, v1.train.SessionRunHook):
            raise TypeError(f"{message}, given: {hook!r}")
    return hooks


def hooks_of_mode(spec: Any, mode: str) -> tuple[v1.train.SessionRunHook, ...]:
    """Returns the hooks that a spec has for a mode."""
    return {
        ModeKeys.TRAIN: spec.training_hooks,
        ModeKeys.EVAL: spec.evaluation_hooks,
        ModeKeys.PREDICT: spec.prediction_hooks,
    }[mode]


def check_graph(value: Any, what: str, *, key: Any = None) -> None:
    """Checks that a tensor or op is in the default graph, or in one around it.

    An export for TPUs calls model_fn in a function's graph, where an unchanged feature is a tensor
    of the graph around it.
    """
    if tf.executing_eagerly():
        return
    graph = v1.get_default_graph()
    while graph is not None:
        if value.graph is graph:
            return
        graph = getattr(graph, "outer_graph", None)
    name = value.name if key is None else f"{key}: {value.name}"
    raise ValueError(
        f'{what} with "{name}" must be from the default graph. Possible causes of this error '
        f"include: {what} was created outside model_fn, or in an earlier call of it. Create every "
        "tensor inside model_fn."
    )


def _check_is_tensor(value: Any, what: str) -> None:
    # A sparse or ragged tensor has several tensors, and a session returns no array for it.
    if not isinstance(value, (tf.Tensor, tf.Variable)):
        raise TypeError(f"{what} must be Tensor, given: {value!r}.")
