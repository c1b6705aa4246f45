"""Evaluates the newest checkpoint and lets the exporters have it."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.evaluating.evaluation_plan import GLOBAL_STEP
from tfx_tpu_trainer.estimator.schedule._specs import EvalSpec

_logger = tf.get_logger()

_WARNING_SECONDS = 600


@dataclasses.dataclass(frozen=True)
class EvaluatedCheckpoint:
    """One evaluation of `train_and_evaluate`.

    Attributes:
        checkpoint_path: The checkpoint.
        metrics: What `evaluate` returned.
        exports: What each exporter returned, in their order.
    """

    checkpoint_path: str
    metrics: Mapping[str, Any]
    exports: list[bytes | None]

    @property
    def global_step(self) -> int:
        """Global step of the checkpoint."""
        return int(self.metrics[GLOBAL_STEP])


class EvaluationListener:
    """May stop `train_and_evaluate` before or after an evaluation."""

    def before_eval(self) -> bool:
        """Tells whether to go on; `False` skips the evaluation and stops."""
        return True

    def after_eval(self, evaluated: EvaluatedCheckpoint | None) -> bool:
        """Tells whether to go on.

        Args:
            evaluated: The evaluation; `None` where there was no new checkpoint.
        """
        del evaluated
        return True


class CheckpointEvaluator:
    """Evaluates each checkpoint once."""

    def __init__(
        self,
        estimator: Any,
        eval_spec: EvalSpec,
        *,
        max_steps: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes what to evaluate.

        Args:
            estimator: The estimator.
            eval_spec: How to evaluate it.
            max_steps: Global step that training goes to; evaluating it is the final time.
            clock: Returns the time in seconds. Defaults to `time.monotonic`.
        """
        self._estimator = estimator
        self._eval_spec = eval_spec
        self._max_steps = max_steps
        self._clock = clock
        self._seen: str | None = None
        self._warned_at: float | None = None

    def awaited(self) -> str | None:
        """Returns in words the checkpoint that is waited for; `None` where there is one to evaluate."""
        path = self._estimator.latest_checkpoint()
        if path and path != self._seen:
            return None
        after = f"after {os.path.basename(path)}" if path else "the first one"
        return f"a new checkpoint in {self._estimator.model_dir}, {after}"

    def evaluate_newest(self) -> EvaluatedCheckpoint | None:
        """Evaluates the newest checkpoint and calls the exporters.

        Returns:
            The evaluation, or `None` if there is no checkpoint, or none that is new.

        Raises:
            TypeError: If `evaluate` returned no dict.
            ValueError: If it returned an empty one, or one without a global step.
        """
        path = self._estimator.latest_checkpoint()
        if not path:
            self._warn(
                "Estimator is not trained yet. Will start an evaluation when a checkpoint is ready."
            )
            return None
        if path == self._seen:
            self._warn(
                "No new checkpoint ready for evaluation. Skip the current evaluation pass: %s was "
                "evaluated.",
                path,
            )
            return None
        spec = self._eval_spec
        metrics = _check_metrics(
            self._estimator.evaluate(
                input_fn=spec.input_fn,
                steps=spec.steps,
                hooks=list(spec.hooks),
                checkpoint_path=path,
                name=spec.name,
            )
        )
        final = self._max_steps is not None and int(metrics[GLOBAL_STEP]) >= self._max_steps
        exports = [
            exporter.export(
                estimator=self._estimator,
                export_path=os.path.join(self._estimator.model_dir, "export", exporter.name),
                checkpoint_path=path,
                eval_result=metrics,
                is_the_final_export=final,
            )
            for exporter in spec.exporters
        ]
        if final:
            _logger.debug("Calling exporter with the `is_the_final_export=True`.")
        self._seen, self._warned_at = path, None
        return EvaluatedCheckpoint(path, metrics, exports)

    def _warn(self, message: str, *values: Any) -> None:
        """Warns, once in ten minutes."""
        now = self._clock()
        if self._warned_at is None or now - self._warned_at > _WARNING_SECONDS:
            _logger.warning(message, *values)
            self._warned_at = now


def _check_metrics(metrics: Any) -> Mapping[str, Any]:
    if not metrics:
        raise ValueError(
            f"`Estimator.evaluate` should never return empty metrics; got {metrics!r}."
        )
    if not isinstance(metrics, Mapping):
        raise TypeError(f"`Estimator.evaluate` should return dict. Given {type(metrics)}.")
    if GLOBAL_STEP not in metrics:
        raise ValueError(
            f"`Estimator.evaluate` result should have `{GLOBAL_STEP}` in result. Given {metrics}"
        )
    return metrics
