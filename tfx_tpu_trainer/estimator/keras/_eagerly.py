"""Runs what needs eager execution while a graph is the default one."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any, TypeVar

from tfx_tpu_trainer.estimator.keras import _tf_private

_Result = TypeVar("_Result")


def eagerly(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Calls a function eagerly, wherever this is: in a graph, or with eager execution off.

    A model_fn is called with a graph as the default one, and no scope leads out of that. A thread
    of its own has no graph, no `tf.distribute` strategy and no name scope.
    """

    def call() -> _Result:
        with _tf_private.eager_mode():
            return function(*arguments)

    with concurrent.futures.ThreadPoolExecutor(1) as outside:
        return outside.submit(call).result()
