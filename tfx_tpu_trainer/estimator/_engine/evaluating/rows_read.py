"""How much an evaluation has read so far: an input may have no end."""

from __future__ import annotations

import time
from collections.abc import Callable

import tensorflow as tf

from tfx_tpu_trainer._support.progress import Progress
from tfx_tpu_trainer._support.waiting import FIRST_NOTICE_SECONDS, NOTICE_SECONDS
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation_plan import sums_so_far
from tfx_tpu_trainer.estimator._engine.loops.pace import LoopEndHook

v1 = tf.compat.v1
_logger = tf.get_logger()

_LOOK_SECONDS = 1.0


class RowsReadHook(LoopEndHook):
    """Looks from time to time how many batches and rows an evaluation has read."""

    def __init__(self, first_secs: float, every_secs: float) -> None:
        self._first = first_secs
        self._every = every_secs

    def begin(self) -> None:
        """Finds the sums of the evaluation in the default graph."""
        self._sums = sums_so_far()

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Starts the clock."""
        del session, coord
        self._started = time.monotonic()
        self._due = self._started + self._first

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs | None:
        """Asks for the sums when a look is due."""
        del run_context
        return v1.train.SessionRunArgs(self._sums) if time.monotonic() >= self._due else None

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Looks at them."""
        del run_context
        if run_values.results is not None:
            now = time.monotonic()
            self._due = now + self._every
            batches, rows = run_values.results
            self.look(int(batches), int(rows), now - self._started)

    def look(self, batches: int, rows: int, seconds: float) -> None:
        """Is told what has been read."""


class SayRowsRead(RowsReadHook):
    """Says each minute how much an evaluation to the end of its input has read."""

    def __init__(
        self, first_secs: float = FIRST_NOTICE_SECONDS, every_secs: float = NOTICE_SECONDS
    ) -> None:
        super().__init__(first_secs, every_secs)

    def look(self, batches: int, rows: int, seconds: float) -> None:
        """Says it."""
        _logger.warning(
            "Evaluation has read %d batches (%d rows) in %.0f s. It ends when its input ends; if "
            "the input is endless, give evaluate(steps=...), EvalSpec(steps=...) or "
            "eval_args.num_steps.",
            batches,
            rows,
            seconds,
        )


class TellBatches(RowsReadHook):
    """Tells a `Progress` of an evaluation's batches, when it is due."""

    def __init__(self, progress: Progress, *, steps: int | None) -> None:
        super().__init__(0.0, 0.0)
        self._progress = progress
        self._steps = steps

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs | None:
        """Asks for the sums when it is due."""
        return super().before_run(run_context) if self._progress.is_due() else None

    def look(self, batches: int, rows: int, seconds: float) -> None:
        """Tells."""
        del seconds
        self._progress.counted(batches, total=self._steps, rows=rows)


class RefuseMoreRows(RowsReadHook):
    """Ends an evaluation that has read more rows than there can be."""

    def __init__(
        self, most: int, error: Callable[[int], Exception], *, every_secs: float = _LOOK_SECONDS
    ) -> None:
        """Takes the limit.

        Args:
            most: The most rows.
            error: Makes the error from the rows that were read.
            every_secs: Seconds from one look to the next. Defaults to 1.
        """
        super().__init__(every_secs, every_secs)
        self._most = most
        self._error = error

    def look(self, batches: int, rows: int, seconds: float) -> None:
        """Raises the error where there are more."""
        del seconds
        if max(batches, rows) > self._most:
            raise self._error(max(batches, rows))
