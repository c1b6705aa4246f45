"""How a run ends that is asked to stop."""

from __future__ import annotations

import signal
import sys
from types import FrameType

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
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, self._interrupt)

    def ended(self) -> None:
        """Says that the run has ended: what follows is not interrupted any more."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.reason = self.reason or f"stopped by {signal.Signals(number).name}"
        # Whoever trains has it imported.
        training = sys.modules.get("tfx_tpu_trainer.engine.sessions.polite_stop")
        if training is not None and training.ask_to_stop(number):
            return
        signal.setitimer(signal.ITIMER_REAL, REMIND_SECONDS)
        raise RunStoppedError(self.reason)
