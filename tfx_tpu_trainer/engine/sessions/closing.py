"""Sessions that close at once, whatever the iterators of their input still wait for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

from tfx_tpu_trainer.engine.sessions.patient_session import PatientSession

v1 = tf.compat.v1

# Closing takes milliseconds but where a thread of tf.data sleeps.
_PATIENCE_SECONDS = 0.1


@contextlib.contextmanager
def closed_aside(calls: PatientSession, *, master: str) -> Iterator[None]:
    """Lets a session that ends after the block go on closing in a separate thread.

    The thread with which tf.data tunes a dataset can miss that its iterator ends, and sleep on for
    up to a minute (see `engine.feeding.autotuning`). The session has read its last row by then.

    Args:
        calls: The session. One that a generator leaves early is closed as ever: that may be the
            garbage collector's doing, in which no thread can be started.
        master: Address of its master; that of another process is closed as ever.
    """
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException:
        _close_aside(calls.latest, master)
        raise
    _close_aside(calls.latest, master)


def _close_aside(session: v1.Session | None, master: str) -> None:
    if session is None or master:
        return

    def close() -> None:
        # Its own method again: the thread's last reference to the session may end it.
        del session.close
        closing = threading.Thread(target=session.close, name="session-close")
        closing.start()
        closing.join(_PATIENCE_SECONDS)

    session.close = close
