"""What a model_fn leaves behind after it was traced: the template that places run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
_logger = tf.get_logger()


@dataclasses.dataclass(frozen=True)
class HostFunction:
    """A function that runs outside of the model, once a step, on tensors of it.

    The engine's form of `eval_metrics` and `host_call`: the function is not called while the
    model is traced, so a place can first gather the tensors of all replicas.

    Attributes:
        name: What the user called it: `"eval_metrics"` or `"host_call"`.
        function: Takes the tensors, positionally from a sequence, by keyword from a mapping.
        tensors: The tensors, a sequence or a mapping.
    """

    name: str
    function: Callable[..., Any]
    tensors: Sequence[Any] | Mapping[str, Any]

    def __call__(self) -> Any:
        """Calls the function on its tensors."""
        if not isinstance(self.tensors, Mapping):
            return self.function(*self.tensors)
        try:
            return self.function(**self.tensors)
        except TypeError as error:
            _logger.warning(
                "Exception while calling %s: %s. It is likely the tensors (%s[1]) do not match the "
                "function's arguments: the keys %s must be the argument names of %r.",
                self.name,
                error,
                self.name,
                sorted(self.tensors),
                self.function,
            )
            raise


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelTemplate:
    """A model traced once, at the top level of a v1 graph.

    Attributes:
        graph: The graph that holds everything below.
        mode: `"train"`, `"eval"` or `"infer"`.
        features: What model_fn was given: a nested structure of tensors. A placement that runs
            the template more than once replaces these and the labels.
        labels: Nested structure of tensors, or `None`.
        loss: Scalar tensor; `None` in mode `"infer"`.
        train_op: The op or tensor that makes one step; `None` outside mode `"train"`.
        predictions: A tensor or a mapping of tensors.
        eval_metrics: Metrics not yet built: the function returns name -> (value, update op).
        eval_metric_ops: Metrics that the model built itself: name -> (value, update op).
        host_call: Function that runs outside of the model once a step.
        make_scaffold: Returns the `Scaffold` of the session; called once, after tracing.
        hooks: The session hooks of this mode that model_fn asked for.
        chief_hooks: The same, for the chief only.
        table_update: Function that trains what the model's own optimizer does not, once a step,
            from the tensors of all replicas: embedding tables.
    """

    graph: tf.Graph
    mode: str
    features: Any
    labels: Any
    loss: tf.Tensor | None
    train_op: tf.Operation | tf.Tensor | None
    predictions: Any
    eval_metrics: HostFunction | None
    eval_metric_ops: Mapping[str, Any]
    host_call: HostFunction | None
    make_scaffold: Callable[[], v1.train.Scaffold]
    hooks: tuple[v1.train.SessionRunHook, ...]
    chief_hooks: tuple[v1.train.SessionRunHook, ...]
    table_update: HostFunction | None = None

    @property
    def loss_dtype(self) -> tf.DType:
        """Dtype of the loss.

        Raises:
            ValueError: If the template has none.
        """
        if self.loss is None:
            raise ValueError(f"A template of mode {self.mode!r} has no loss.")
        return self.loss.dtype
