"""What `train_and_evaluate` is told of training and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer.estimator import _spec_checks
from tfx_tpu_trainer.estimator._callables import check_input_fn
from tfx_tpu_trainer.estimator._construction import check_listeners
from tfx_tpu_trainer.estimator._number_checks import check_positive, holds
from tfx_tpu_trainer.estimator.schedule._exporters import Exporter

v1 = tf.compat.v1

_HOOKS = "All hooks must be `SessionRunHook` instances"
_LISTENERS = "All saving_listeners must be `CheckpointSaverListener` instances"


class _TrainFields(NamedTuple):
    input_fn: Callable[..., Any]
    max_steps: int | None
    hooks: tuple[v1.train.SessionRunHook, ...]
    saving_listeners: tuple[v1.train.CheckpointSaverListener, ...]


class TrainSpec(_TrainFields):
    """How to train; mirrors `tf.estimator.TrainSpec`.

    Examples:
        >>> from tfx_tpu_trainer.estimator import TrainSpec, inputs
        >>> import numpy as np
        >>> rows = np.arange(8.0)
        >>> input_fn = inputs.numpy_input_fn({"x": rows}, 2 * rows, num_epochs=None, shuffle=True)
        >>> spec = TrainSpec(input_fn, max_steps=1000)
        >>> spec.max_steps, spec.hooks
        (1000, ())
    """

    __slots__ = ()

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        max_steps: int | None = None,
        hooks: Iterable[v1.train.SessionRunHook] | None = None,
        saving_listeners: Iterable[v1.train.CheckpointSaverListener] | None = None,
    ) -> TrainSpec:
        """Checks the arguments."""
        check_input_fn(input_fn)
        check_positive("max_steps", max_steps)
        return super().__new__(
            cls,
            input_fn,
            max_steps,
            _spec_checks.check_hooks(hooks, message=_HOOKS),
            check_listeners(saving_listeners, message=_LISTENERS),
        )


class _EvalFields(NamedTuple):
    input_fn: Callable[..., Any]
    steps: int | None
    name: str | None
    hooks: tuple[v1.train.SessionRunHook, ...]
    exporters: tuple[Exporter, ...]
    start_delay_secs: float
    throttle_secs: float


class EvalSpec(_EvalFields):
    """How to evaluate and what to export; mirrors `tf.estimator.EvalSpec`.

    Examples:
        All rows, after each checkpoint:

        >>> from tfx_tpu_trainer.estimator import EvalSpec, inputs
        >>> import numpy as np
        >>> rows = np.arange(8.0)
        >>> input_fn = inputs.numpy_input_fn({"x": rows}, 2 * rows, shuffle=False)
        >>> spec = EvalSpec(input_fn, steps=None, throttle_secs=0)
        >>> spec.steps, spec.throttle_secs, spec.exporters
        (None, 0, ())
    """

    __slots__ = ()

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        steps: int | None = 100,
        name: str | None = None,
        hooks: Iterable[v1.train.SessionRunHook] | None = None,
        exporters: Exporter | Iterable[Exporter] | None = None,
        start_delay_secs: float = 120,
        throttle_secs: float = 600,
    ) -> EvalSpec:
        """Checks the arguments."""
        check_input_fn(input_fn)
        check_positive("steps", steps)
        if name is not None and not isinstance(name, str):
            raise TypeError(f"`name` must be string, given: {name!r}.")
        for delay_name, delay in (
            ("start_delay_secs", start_delay_secs),
            ("throttle_secs", throttle_secs),
        ):
            if not holds(delay_name, delay, lambda secs: secs >= 0):
                raise ValueError(f"Must specify {delay_name} >= 0, given: {delay}")
        return super().__new__(
            cls,
            input_fn,
            steps,
            name,
            _spec_checks.check_hooks(hooks, message=_HOOKS),
            _check_exporters(exporters),
            start_delay_secs,
            throttle_secs,
        )


def _check_exporters(exporters: Any) -> tuple[Exporter, ...]:
    if not exporters:
        return ()
    several = [exporters] if isinstance(exporters, Exporter) else exporters
    if not isinstance(several, Iterable) or isinstance(several, str):
        raise TypeError(
            f"`exporters` must be an Exporter, an iterable of Exporter, or `None`; got {exporters!r}."
        )
    several = tuple(several)
    for exporter in several:
        if not isinstance(exporter, Exporter):
            raise TypeError(
                "`exporters` must be an Exporter, an iterable of Exporter, or `None`; got "
                f"{exporter!r} among them."
            )
    names = [exporter.name for exporter in several]
    for name in names:
        if not name:
            raise ValueError(
                f"An Exporter cannot have a name that is `None` or empty. All exporter names: {names}"
            )
        if not isinstance(name, str):
            raise ValueError(f"An Exporter must have a string name. Given: {name!r}")
    if len(set(names)) < len(names):
        raise ValueError(
            "`exporters` must have unique names. Such a name cannot be `None`. All exporter "
            f"names: {names}"
        )
    return several
