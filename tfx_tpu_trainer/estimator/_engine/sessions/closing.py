"""Sessions that close at once, whatever the iterators of their input or lost hosts still wait for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.sessions.patient_session import PatientSession

v1 = tf.compat.v1
_logger = tf.get_logger()

# Closing takes milliseconds but where a thread of tf.data sleeps.
_PATIENCE_SECONDS = 0.1
# Closing takes so long where a host is stopped and not gone.
_HOSTS_PATIENCE_SECONDS = 10.0


@contextlib.contextmanager
def closed_aside(
    session: v1.train.MonitoredSession, calls: PatientSession, *, master: str
) -> Iterator[None]:
    """Leaves a session after the block, and lets it go on closing in a separate thread.

    The thread with which tf.data tunes a dataset can miss that its iterator ends, and sleep on for
    up to a minute (see `engine.feeding.autotuning`). The session has read its last row by then.

    A session of several hosts that ends with its last step is closed as ever. One that ends with an error has ten
    seconds: after a call that failed because a host was gone, closing waits for that host, and the error would never
    be seen.
    """
    try:
        with session:
            try:
                yield
            except GeneratorExit:
                raise
            except BaseException as error:
                _close_aside(calls.latest, master, error)
                raise
            _close_aside(calls.latest, master)
    finally:
        # One that was lost is closed already. It would be closed once more as the interpreter ends, when no thread
        # starts and who starts one waits forever.
        if calls.latest is not None:
            calls.latest.__dict__.pop("close", None)


def _close_aside(
    session: v1.Session | None, master: str, error: BaseException | None = None
) -> None:
    """Has a session close in a thread, for which whoever closes it waits for some seconds only."""
    if session is None or (master and error is None):
        return
    seconds = _HOSTS_PATIENCE_SECONDS if master else _PATIENCE_SECONDS

    def close() -> None:
        # Its own method again: the thread's last reference to the session may end it.
        del session.close
        closing = threading.Thread(target=session.close, name="session-close", daemon=bool(master))
        closing.start()
        closing.join(seconds)
        if master and closing.is_alive():
            _logger.warning(
                "The session has not closed within %g s: a host that it needs may be gone. Going on without, to its "
                "error (%s: %s).",
                seconds,
                type(error).__name__,
                error,
            )

    session.close = close
