"""Stops a training on a signal, after its loop, and writes a checkpoint before the process ends.

Kubernetes ends an evicted pod with SIGTERM and kills it after `terminationGracePeriodSeconds`, 30 by default;
preempted TPUs and machines give similar notice; an operator presses Ctrl-C.
"""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType
from typing import NoReturn

import tensorflow as tf

GRACE_VARIABLE = "TFX_TPU_TRAINER_GRACE_SECS"
"""Environment variable: the seconds from the signal to the end of the process, finished or not."""

_GRACE_SECONDS = 25.0
# The part of the grace period in which a loop may end by itself; the rest is for its last step and the checkpoint.
_FOR_LOOPS = 0.25
SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""The signals that stop a process."""

_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)

_logger = tf.get_logger()


class StoppedBySignal(SystemExit):
    """Ends a process after a signal, with the exit code that a shell gives the signal."""

    def __init__(self, number: int) -> None:
        """Sets the exit code.

        Args:
            number: The signal's number.
        """
        super().__init__(128 + number)


# How a training is stopped. The problem: Python runs a signal's handler in the main thread between
# two of its instructions, so only after a session call, which may last minutes; and an exception
# raised in between may leave half a checkpoint. The idea: the handler only sets `number`, which the
# training reads after each call, and another thread, which sees the signal at once, keeps time.
# With a grace of 25 s and a loop of 60 s:
#    0.00 s  the signal; the watching thread starts two timers
#    6.25 s  `_cut_short` ends the loop after the step under way; the handler runs, the training
#            sees `number`, writes its checkpoint, and leaves `postponed`, which raises
#   25.00 s  if it still runs, the process ends, without a checkpoint
class Preemption:
    """A possible request to stop this process; see `listening`."""

    def __init__(self) -> None:
        # The signal received; `None` until there is one.
        self.number: int | None = None
        # Whether it was raised; then it ends the process, even if other code has turned it into an error.
        self.was_raised = False
        self._postponed = 0
        self._end_loop: Callable[[], None] | None = None
        self._timers: list[threading.Timer] = []

    @contextlib.contextmanager
    def postponed(self, end_loop: Callable[[], None] | None = None) -> Iterator[None]:
        """Keeps signals from interrupting the block, which reads `number` where it can stop."""
        self._postponed += 1
        outer, self._end_loop = self._end_loop, end_loop
        try:
            yield
        finally:
            self._postponed -= 1
            self._end_loop = outer
        if self.number is not None and not self._postponed:
            self._end(self.number)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Lets a signal end the block at once, although it is inside a `postponed` one."""
        postponed, self._postponed = self._postponed, 0
        try:
            yield
        finally:
            self._postponed = postponed

    def ask(self, number: int) -> None:
        """Requests a stop; a second request stops at once."""
        if self.number is not None:
            self._end(number)
        self.number = number
        if not self._postponed:
            self._end(number)
        _logger.warning(
            "%s: training stops after this loop and its checkpoint, within %g s (%s). A second signal "
            "ends it at once.",
            signal.Signals(number).name,
            grace_seconds(),
            GRACE_VARIABLE,
        )

    def start_grace(self, number: int) -> None:
        """Starts the timers that end the process; a second signal ends it now."""
        if self._timers:
            _end_now(number)
        self._start_timer(grace_seconds(), self._grace_is_over, number)
        self._start_timer(grace_seconds() * _FOR_LOOPS, self._cut_short)

    def close(self) -> None:
        """Stops the timers of a training that has ended in time."""
        for timer in self._timers:
            timer.cancel()

    def _start_timer(self, seconds: float, function: Callable[..., None], *args: int) -> None:
        timer = threading.Timer(seconds, function, args)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def _cut_short(self) -> None:
        if self._end_loop is not None:
            self._end_loop()

    def _grace_is_over(self, number: int) -> None:
        _logger.error(
            "The loop of steps did not finish within the %g s of %s: the process ends without a "
            "checkpoint, and the next attempt resumes from the previous one.",
            grace_seconds(),
            GRACE_VARIABLE,
        )
        _end_now(number)

    def _end(self, number: int) -> NoReturn:
        self.was_raised = True
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise StoppedBySignal(number)


_listening: Preemption | None = None


@contextlib.contextmanager
def listening() -> Iterator[Preemption]:
    """Handles SIGTERM and SIGINT while the block runs.

    Outside of `postponed` blocks they raise at once, also in a container's first process, for which the kernel ignores
    a SIGTERM without a handler. A signal that the program handles itself is left to the program, and so are both
    signals outside of the main thread, where Python handles none.

    Yields:
        The request to stop; within another `listening` block, the request of that block.

    Raises:
        ValueError: If the environment variable of the grace period is not a number of seconds; raised now, since during
            a signal it would cost the checkpoint.
    """
    global _listening
    if _listening is not None:
        yield _listening
        return
    grace_seconds()
    stop = _listening = Preemption()
    in_main = threading.current_thread() is threading.main_thread()
    before = {n: signal.getsignal(n) for n in SIGNALS if in_main}
    taken = {n: handler for n, handler in before.items() if handler in _DEFAULTS}

    def handle(number: int, frame: FrameType | None) -> None:
        stop.ask(number)

    for number in taken:
        signal.signal(number, handle)
    try:
        with _noticed_at_once(stop, taken) if taken else contextlib.nullcontext():
            yield stop
    except Exception:
        # Code in between may turn a stop into another error: C++ raises a TypeError without a message, and TensorFlow's
        # context managers find their stacks of graphs in disorder.
        if stop.number is not None and stop.was_raised:
            stop._end(stop.number)
        raise
    finally:
        _listening = None
        stop.close()
        for number, handler in taken.items():
            signal.signal(number, handler)


def signal_received() -> int | None:
    """Returns the signal that this process's training has received, or `None`."""
    return None if _listening is None else _listening.number


def interruptible() -> contextlib.AbstractContextManager[None]:
    """Lets a signal end the block at once: for work during a training that may be cut off anywhere."""
    return contextlib.nullcontext() if _listening is None else _listening.interruptible()


def ask_to_stop(number: int) -> bool:
    """Stops a training in this process, for programs that handle signals themselves.

    Args:
        number: The signal.

    Returns:
        Whether there is a training. If not, nothing happens.
    """
    if _listening is None or not _listening._postponed:
        return False
    if _listening.number is None:
        _listening.ask(number)
    return True


def grace_seconds() -> float:
    """Returns the seconds between a signal and the end of the process."""
    text = os.environ.get(GRACE_VARIABLE)
    if text is None:
        return _GRACE_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ValueError(
            f"{GRACE_VARIABLE}={text!r} is not a number of seconds; give one, such as 25"
        )
    return seconds


@contextlib.contextmanager
def _noticed_at_once(stop: Preemption, taken: Collection[int]) -> Iterator[None]:
    """Starts a thread that sees signals at once, since Python's handlers wait for the main thread's session call."""
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    # The interpreter's own handler, in C, writes a signal's number here at once.
    former = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    if former != -1:
        # An event loop, as in a notebook, uses it.
        signal.set_wakeup_fd(former)
        receiver.close()
        sender.close()
        yield
        return

    def watch() -> None:
        while number := receiver.recv(1):
            if number[0] in taken:
                stop.start_grace(number[0])

    watcher = threading.Thread(target=watch, daemon=True, name="preemption")
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        sender.close()
        watcher.join()
        receiver.close()


def _end_now(number: int) -> NoReturn:
    logging.shutdown()
    os._exit(128 + number)
