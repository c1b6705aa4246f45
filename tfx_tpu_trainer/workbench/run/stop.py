"""How a run ends that is asked to stop, and one whose parent has ended."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask a run to stop; a terminal that is closed sends the last one."""

# Short beside a component that swallowed the first one, long beside what TFX needs to record a failure.
REMIND_SECONDS = 1.0


class RunStoppedError(Exception):
    """The run was asked to stop; an Exception, so that TFX cleans up as after any other failure."""


class Stop:
    """Ends a run that is asked to stop.

    The exception comes up wherever the run is just then. Code that catches all exceptions may swallow it, or make
    another one of it, as an import of a component does; so it is raised again until the run has ended, and the reason
    is kept. A training is let write its checkpoint first.
    """

    def __init__(self) -> None:
        self.reason: str | None = None

    def listen(self) -> None:
        """Takes the signals that ask a process to stop."""
        for number in (*SIGNALS, signal.SIGALRM):
            signal.signal(number, self._interrupt)

    def ended(self) -> None:
        """Says that the run has ended: what follows is not interrupted any more."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in (*SIGNALS, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.reason = self.reason or f"stopped by {signal.Signals(number).name}"
        # Whoever trains has it imported.
        training = sys.modules.get("tfx_tpu_trainer.estimator._engine.sessions.preemption")
        if training is not None and training.ask_to_stop(number):
            return
        signal.setitimer(signal.ITIMER_REAL, REMIND_SECONDS)
        raise RunStoppedError(self.reason)


def end_with_parent() -> None:
    """Kills this process and those that it has started once its parent has ended, even where that was killed.

    The parent has started it in a session of its own, and alone holds the other end of the pipe that is its standard
    input: the system closes it. What reads the standard input from now on finds it empty.
    """
    if os.getsid(0) != os.getpid():
        # Started by hand: the group is the caller's.
        return
    held = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)

    def watch() -> None:
        os.read(held, 1)
        # Not politely: who starts the same command again must not find the root taken for the time of a checkpoint.
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()
