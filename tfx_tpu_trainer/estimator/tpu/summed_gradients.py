"""Gradients summed over TPU cores, for a model_fn that knows nothing of cores."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal

import tensorflow as tf

from tfx_tpu_trainer.engine.copying.cross_replica_ops import SUM
from tfx_tpu_trainer.estimator.keras.in_model_fn import legacy_bases, todays_bases

v1 = tf.compat.v1

Combination = Literal["mean", "sum"]
_COMBINATIONS: Final = ("mean", "sum")


def check_combination(gradients: str) -> None:
    """Checks how cores are to put gradients together.

    Raises:
        ValueError: If it is neither `"mean"` nor `"sum"`.
    """
    if gradients not in _COMBINATIONS:
        raise ValueError(
            f"gradients should be one of {_COMBINATIONS}; got {gradients!r}. Give 'mean' for a "
            "loss that is a mean over rows, 'sum' for one that is a sum."
        )


@contextlib.contextmanager
def summed_gradients(*, replicas: int, gradients: Combination) -> Iterator[None]:
    """Makes all optimizers that are used inside put their gradients together over the cores.

    What `CrossShardOptimizer` does, where nobody can wrap one: a model_fn makes its optimizer
    itself. While this lasts, `apply_gradients` of the bases of all graph optimizers is another one,
    in the whole process; gradients that were summed already are left as they are.

    Args:
        replicas: How many there are.
        gradients: `"mean"` or `"sum"`.
    """
    with contextlib.ExitStack() as stack:
        for base in _bases():
            stack.enter_context(_replaced(base, replicas, gradients))
        yield


def _bases() -> list[Any]:
    return [v1.train.Optimizer, *legacy_bases(), *todays_bases()]


@contextlib.contextmanager
def _replaced(base: Any, replicas: int, gradients: Combination) -> Iterator[None]:
    inherited = "apply_gradients" not in vars(base)
    own: Callable[..., Any] = base.apply_gradients

    def apply_gradients(
        self: Any, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any
    ) -> Any:
        pairs = [
            (_summed(gradient, replicas, gradients), variable)
            for gradient, variable in grads_and_vars
        ]
        return own(self, pairs, *args, **kwargs)

    base.apply_gradients = apply_gradients
    try:
        yield
    finally:
        if inherited:
            del base.apply_gradients
        else:
            base.apply_gradients = own


def _summed(gradient: Any, replicas: int, gradients: Combination) -> Any:
    if gradient is None:
        return None
    tensor = tf.convert_to_tensor(gradient)
    if tensor.op.type == SUM:
        return gradient
    return v1.tpu.cross_replica_sum(tensor / replicas if gradients == "mean" else tensor)
