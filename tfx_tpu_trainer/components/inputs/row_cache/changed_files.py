"""Files that change under a training whose rows are kept parsed: noticed between two epochs, and parsed again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfx_tpu_trainer.components.inputs.row_cache.cache import RowCache
from tfx_tpu_trainer.estimator.extending import LoopEndHook

v1 = tf.compat.v1

TIME_SHARE = 0.01
"""How much of a training's time looking may take: few rows make short epochs, and a bucket answers slowly."""


class ChangedFilesHook(LoopEndHook):
    """Ends a session between two epochs where its rows are no longer those of their files.

    Attributes:
        has_found_changes: Whether it has ended its last session.
    """

    def __init__(self, cache: RowCache, *, batch_size: int, time_share: float = TIME_SHARE) -> None:
        """Makes the hook."""
        self.has_found_changes = False
        self._cache, self._batch_size, self._time_share = cache, batch_size, time_share

    def begin(self) -> None:
        """Finds the step in the graph."""
        self.has_found_changes = False
        self._step = v1.train.get_global_step()

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Finds the epoch in which the session begins."""
        del coord
        self._epoch = self._epoch_at(session.run(self._step))
        self._not_before = 0.0

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        """Asks for the step."""
        del run_context
        return v1.train.SessionRunArgs(self._step)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Looks at the files where another epoch has begun."""
        epoch = self._epoch_at(run_values.results)
        began = time.monotonic()
        if epoch == self._epoch or began < self._not_before:
            return
        self._epoch = epoch
        self.has_found_changes = self._cache.is_outdated()
        ended = time.monotonic()
        self._not_before = ended + (ended - began) / self._time_share
        if self.has_found_changes:
            run_context.request_stop()

    def _epoch_at(self, step: int) -> int:
        return int(step) * self._batch_size // max(1, self._cache.count)


def train_on_current_rows(
    train: Callable[[Sequence[v1.train.SessionRunHook]], object],
    cache: RowCache | None,
    *,
    batch_size: int,
    time_share: float = TIME_SHARE,
) -> None:
    """Trains, and trains on with the rows of today's files where they have changed on the way.

    Args:
        train: Trains up to a step with the hooks that it is given, and calls the input function again.
        cache: Keeps the rows; `None` where files are read in each epoch anyway.
        batch_size: Rows of a step, on all cores.
        time_share: How much of the time looking may take. Defaults to `TIME_SHARE`.
    """
    if cache is None:
        train([])
        return
    hook = ChangedFilesHook(cache, batch_size=batch_size, time_share=time_share)
    train([hook])
    while hook.has_found_changes:
        train([hook])
