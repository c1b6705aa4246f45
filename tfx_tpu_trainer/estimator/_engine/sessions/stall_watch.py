"""Logs session calls that do not return, and ends them after `stall_timeout_secs`."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.waiting import (
    FIRST_NOTICE_SECONDS,
    NOTICE_SECONDS,
    named,
    without_answer,
)

v1 = tf.compat.v1
_logger = tf.get_logger()

# A call gets a log line when it lasts this many times as long as the longest call before it.
_UNUSUAL = 3

_LONGEST_NAP_SECONDS = 5.0
_CLOSE_SECONDS = 10.0
# TensorFlow gives the threads of queues 120 s when it closes a session.
_END_SECONDS = 150.0

_WHEN_TASKS_ARE_AWAY = (
    "Start what is missing or repair the network, then restart this: it resumes from its last "
    "checkpoint"
)

EXIT_CODE = os.EX_TEMPFAIL
"""Exit code of a process that ends because a stalled call can't be cancelled."""

_innermost = threading.local()


class StalledError(RuntimeError):
    """A session has made no step for `stall_timeout_secs`; start it again to continue."""


@dataclasses.dataclass
class _Call:
    session: Any
    started: float
    next_notice: float
    steps: Any = None


# How a call that hangs is ended. The problem: it waits in C++, in the main thread, where neither an
# exception nor a signal's handler reaches it, and other calls of its session may hang as well. So a
# thread ends it, with the mildest means first:
#   1. `_stalled` is set: the call raises StalledError, even if it returns a result now;
#   2. all Python threads' stacks are logged, and the session is closed, in a thread that nothing
#      waits for: that cancels ops that can be cancelled;
#   3. the call has 10 s to return, and the training 150 s more to leave its `with` blocks;
#   4. if it does not, because it waits for a Python generator, the process ends with EXIT_CODE, on
#      which a supervisor tries again.
# The clock is that of a call. While a call of many steps runs, the number of steps that it has made
# is read, and each change resets the clock (`_look`).
class StallWatch:
    """Logs calls of one session that take unusually long, and ends one without a step within the timeout."""

    def __init__(
        self,
        what: str,
        *,
        timeout_secs: float | None,
        steps_done: Any = None,
        unit: str = "step",
        tasks: Mapping[str, str] | None = None,
        first_notice_secs: float = FIRST_NOTICE_SECONDS,
        notice_secs: float = NOTICE_SECONDS,
        close_secs: float = _CLOSE_SECONDS,
        end_process: Callable[[int], Any] = os._exit,
    ) -> None:
        self._what = what
        self._timeout = timeout_secs
        self._steps_done = steps_done
        self._unit = unit
        self._tasks = tasks or {}
        self._first_notice = first_notice_secs
        self._notice = notice_secs
        self._close_secs = close_secs
        self._end_process = end_process
        self._call: _Call | None = None
        self._longest = 0.0
        self._looker: threading.Thread | None = None
        self._stalled = ""
        self._left = threading.Event()
        self._ended = threading.Event()

    def __enter__(self) -> StallWatch:
        naps = (_LONGEST_NAP_SECONDS, self._first_notice / 2, (self._timeout or self._notice) / 4)
        threading.Thread(
            target=self._watch, args=(min(naps),), daemon=True, name="stall-watch"
        ).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()

    @contextlib.contextmanager
    def call(self, session: Any) -> Iterator[None]:
        """Watches the block, a call of a session; the watch around it pauses for as long."""
        outer: StallWatch | None = getattr(_innermost, "watch", None)
        outer_call = None if outer is None else outer._call
        if outer is not None:
            outer._call = None
        _innermost.watch = self
        call = self._begin(session)
        try:
            yield
        except Exception as error:
            if self._stalled:
                raise StalledError(self._stalled) from error
            raise
        finally:
            self._longest = max(self._longest, time.monotonic() - call.started)
            self._call = None
            self._left.set()
            _innermost.watch = outer
            if outer is not None and outer_call is not None:
                outer._begin(outer_call.session)
        if self._stalled:
            raise StalledError(self._stalled)

    def silence(self) -> str:
        """Describes the tasks that do not answer; `""` if all do."""
        silent = without_answer(self._tasks)
        return f"no answer from {named(silent)}" if silent else ""

    def _begin(self, session: Any) -> _Call:
        call = _Call(session, time.monotonic(), max(self._first_notice, _UNUSUAL * self._longest))
        self._call = call
        return call

    def _watch(self, nap: float) -> None:
        while not self._ended.wait(nap):
            call = self._call
            if call is None:
                continue
            waited = time.monotonic() - call.started
            if self._timeout is not None and waited >= self._timeout:
                self._end(call.session, waited)
                return
            if waited >= call.next_notice:
                call.next_notice += self._notice
                self._log_wait(waited)
            if waited >= nap:
                self._look(call)

    def _look(self, call: _Call) -> None:
        """Reads how many steps a call has made, and resets the clock if there are more."""
        # In its own thread, and one at a time: if a task is gone, this read hangs, too.
        if self._steps_done is None or (self._looker is not None and self._looker.is_alive()):
            return

        def look() -> None:
            # The session may be closed meanwhile.
            with contextlib.suppress(tf.errors.OpError, RuntimeError):
                steps = call.session.run(self._steps_done)
                if call.steps is not None and steps != call.steps:
                    call.started, call.next_notice = time.monotonic(), self._first_notice
                call.steps = steps

        self._looker = _start(look)

    def _log_wait(self, waited: float) -> None:
        ends = (
            f"The time limit is stall_timeout_secs={self._timeout:g}."
            if self._timeout
            else "This has no time limit: stall_timeout_secs is not set."
        )
        reason = self.silence() or f"it waits for its input, or its {self._unit} takes that long"
        _logger.warning(
            "%s has finished no %s for %.0f s: %s. %s", self._what, self._unit, waited, reason, ends
        )

    def _end(self, session: Any, waited: float) -> None:
        if silence := self.silence():
            reason = f"{silence}. {_WHEN_TASKS_ARE_AWAY}"
        else:
            reason = (
                f"its input delivers nothing, or its {self._unit} takes that long. Restart it, and "
                "it resumes from its last checkpoint; if nothing is wrong, give a larger "
                "stall_timeout_secs, or fewer iterations_per_loop"
            )
        self._stalled = (
            f"{self._what} has finished no {self._unit} for {waited:.0f} s "
            f"(stall_timeout_secs={self._timeout:g}): {reason}"
        )
        _logger.error("%s. All Python threads:\n%s", self._stalled, _all_stacks())
        self._left.clear()
        # The call may have returned since the clock was read.
        if self._call is None:
            self._left.set()
        _start(session.close)
        if not self._left.wait(self._close_secs) or not self._ended.wait(_END_SECONDS):
            _end_process(f"StalledError: {self._stalled}", self._end_process)


@contextlib.contextmanager
def ended_without_tasks(
    what: str,
    tasks: Mapping[str, str],
    *,
    seconds: float | None,
    setting: str,
    end_process: Callable[[int], Any] = os._exit,
) -> Iterator[None]:
    """Ends the process if tasks that the block needs do not answer for some time."""
    # TensorFlow waits forever for a task that goes away while a session opens, in a call that
    # nothing cancels.
    if seconds is None or not tasks:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        since: float | None = None
        while not ended.wait(min(_LONGEST_NAP_SECONDS, seconds / 4)):
            silent, now = without_answer(tasks), time.monotonic()
            since = (since or now) if silent else None
            if since is not None and now - since >= seconds:
                _end_process(
                    f"HostsMissingError: {what} waits for {named(silent)}, which has not answered for "
                    f"{now - since:.0f} s ({setting}={seconds:g}). {_WHEN_TASKS_ARE_AWAY}",
                    end_process,
                )
                return

    threading.Thread(target=watch, daemon=True, name="hosts-watch").start()
    try:
        yield
    finally:
        ended.set()


def _end_process(error: str, end_process: Callable[[int], Any]) -> None:
    _logger.error(
        "%s. The call can't be cancelled: the process ends with exit code %d.", error, EXIT_CODE
    )
    logging.shutdown()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    end_process(EXIT_CODE)


def _start(function: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True, name="stall-watch-helper")
    thread.start()
    return thread


def _all_stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(number, 'without a name')!r} ({number}):\n"
        + "".join(traceback.format_stack(frame)).rstrip()
        for number, frame in sys._current_frames().items()
    )
