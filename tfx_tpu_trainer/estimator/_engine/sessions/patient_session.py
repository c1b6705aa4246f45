"""Session calls that are made again when a worker was lost, though not forever."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.sessions.stall_watch import StallWatch

v1 = tf.compat.v1
_logger = tf.get_logger()

RETRIES = 10

LOST = (tf.errors.AbortedError, tf.errors.UnavailableError)
"""Errors that a MonitoredSession takes for a lost worker."""

# What gRPC makes of a connection that breaks depends on when it does.
_PERHAPS_LOST = (
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)


class PatientSession:
    """A MonitoredSession that gives up when it is lost too often in a row.

    A MonitoredSession takes AbortedError and UnavailableError for a lost worker: it opens a new
    session, from the latest checkpoint, and makes the call again, without end and without a word.
    An input whose files are gone would hang the run.

    Other errors that a broken connection may end in count too, if a host that the session needs does not answer.

    Attributes:
        latest: The TensorFlow session of the latest call; `None` before the first.
    """

    def __init__(
        self, session: v1.train.MonitoredSession, watch: StallWatch, *, retries: int = RETRIES
    ) -> None:
        self._session = session
        self._watch = watch
        self._retries = retries
        self._lost = 0
        self.latest: v1.Session | None = None

    def should_stop(self) -> bool:
        """Tells whether a hook or the end of the input has stopped the session."""
        return self._session.should_stop()

    def run(
        self,
        fetches: Any,
        feed_dict: Any = None,
        options: v1.RunOptions | None = None,
    ) -> Any:
        """Runs a call with the session's hooks; see `MonitoredSession.run`."""
        return self.run_step_fn(
            lambda step_context: step_context.run_with_hooks(
                fetches, feed_dict=feed_dict, options=options
            )
        )

    def run_step_fn(self, step_fn: Callable[[Any], Any]) -> Any:
        """Runs a function of a step context; see `MonitoredSession.run_step_fn` and `run`."""

        def watched(step_context: Any) -> Any:
            self.latest = step_context.session
            try:
                with self._lost_hosts_named(), self._watch.call(step_context.session):
                    result = step_fn(step_context)
            except LOST as error:
                self._lost += 1
                if self._lost > self._retries:
                    self._close_lost(step_context.session)
                    raise _RetriesEnded(error) from error
                _logger.warning(
                    "The session was lost (%s: %s). Opening another one, attempt %d of %d.",
                    type(error).__name__,
                    error.message,
                    self._lost,
                    self._retries,
                )
                self._close_lost(step_context.session)
                raise
            self._lost = 0
            return result

        try:
            return self._session.run_step_fn(watched)
        except _RetriesEnded as ended:
            raise ended.error from None

    @contextlib.contextmanager
    def _lost_hosts_named(self) -> Iterator[None]:
        try:
            yield
        except _PERHAPS_LOST as error:
            silence = self._watch.silence()
            if not silence:
                raise
            raise tf.errors.UnavailableError(
                error.node_def, error.op, f"{silence}: {type(error).__name__}: {error.message}"
            ) from error

    def _close_lost(self, session: v1.Session) -> None:
        """Closes a lost session of several hosts while it is watched.

        A MonitoredSession closes it next, without a word: closing waits for a host that is gone until it is back.
        """
        if not session.sess_str:
            return
        with self._watch.call(session), contextlib.suppress(tf.errors.OpError):
            session.close()


class _RetriesEnded(Exception):  # noqa: N818
    """Takes an error past the MonitoredSession, which would retry on the error itself."""

    def __init__(self, error: tf.errors.OpError) -> None:
        super().__init__(str(error))
        self.error = error
