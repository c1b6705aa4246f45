"""Waits for the tasks that a session needs, and repeats calls of lost sessions, with log lines and limits."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.waiting import (
    FIRST_NOTICE_SECONDS,
    named,
    said_while_waiting,
    wait_for_tasks,
    without_answer,
)
from tfx_tpu_trainer.estimator._engine.checkpointing.async_saves import wait_for_writes
from tfx_tpu_trainer.estimator._engine.sessions.run_errors import opening_errors_explained
from tfx_tpu_trainer.estimator._engine.sessions.stall_watch import StallWatch, ended_without_tasks
from tfx_tpu_trainer.estimator._engine.template import SessionSettings

v1 = tf.compat.v1
_logger = tf.get_logger()

RETRIES = 10

LOST = (tf.errors.AbortedError, tf.errors.UnavailableError)
"""Errors that a MonitoredSession treats as a lost worker."""

# Errors of gRPC that a broken connection may cause, depending on when it breaks.
_PERHAPS_LOST = (
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)


class ReconnectingSession:
    """A MonitoredSession that gives up when it is lost too often in a row."""

    # On AbortedError and UnavailableError, a MonitoredSession opens a new session from the latest
    # checkpoint and makes the call again, forever and silently: an input whose files are gone would
    # hang the run. Other errors of a broken connection count too, if a task that the session needs
    # does not answer.

    def __init__(
        self, session: v1.train.MonitoredSession, watch: StallWatch, *, retries: int = RETRIES
    ) -> None:
        self._session = session
        self._watch = watch
        self._retries = retries
        self._lost = 0
        # The TensorFlow session of the latest call; `None` before the first.
        self.latest: v1.Session | None = None

    def should_stop(self) -> bool:
        """Returns whether a hook or the end of the input has stopped the session."""
        return self._session.should_stop()

    def run(self, fetches: Any, feed_dict: Any = None, options: v1.RunOptions | None = None) -> Any:
        """Runs a call with the session's hooks; see `MonitoredSession.run`."""
        return self.run_step_fn(
            lambda step_context: step_context.run_with_hooks(
                fetches, feed_dict=feed_dict, options=options
            )
        )

    def run_step_fn(self, step_fn: Callable[[Any], Any]) -> Any:
        """Runs a function of a step context; see `MonitoredSession.run_step_fn`."""

        def watched(step_context: Any) -> Any:
            # The MonitoredSession calls this again with each session that replaces a lost one, so errors of a loss
            # go to it and not to the caller.
            self.latest = step_context.session
            try:
                with self._lost_tasks_named(), self._watch.call(step_context.session):
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
    def _lost_tasks_named(self) -> Iterator[None]:
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
        """Closes a lost session of several tasks under watch, since closing waits for a task that is gone."""
        if not session.sess_str:
            return
        with self._watch.call(session), contextlib.suppress(tf.errors.OpError):
            session.close()


class _RetriesEnded(Exception):  # noqa: N818
    """Carries an error past the MonitoredSession, which would retry on the error itself."""

    def __init__(self, error: tf.errors.OpError) -> None:
        super().__init__(str(error))
        self.error = error


_SETTING = "session_creation_timeout_secs"
_PAUSE_SECONDS = 1.0
_REPEAT_SECONDS = 60.0
_LONGEST_PAUSE_SECONDS = 30.0
_CHIEFS = ("chief", "master", "worker")


class WorkerCreator(v1.train.SessionCreator):
    """Opens a worker's sessions as soon as the chief has initialized the variables."""

    # TensorFlow's `WorkerSessionCreator` checks every 30 s, and gives up if less time is left.

    def __init__(
        self,
        *,
        scaffold: v1.train.Scaffold,
        master: str,
        config: v1.ConfigProto | None,
        max_wait_secs: float | None,
    ) -> None:
        self._scaffold = scaffold
        self._master = master
        self._config = config
        self._max_wait_secs = max_wait_secs

    def create_session(self) -> v1.Session:
        """Opens a session whose variables are ready."""
        scaffold, most = self._scaffold.finalize(), self._max_wait_secs
        started, told = time.monotonic(), False
        while True:
            waited = time.monotonic() - started
            # Less often if the chief restores for minutes, since each check sends it the graph.
            pause = min(max(_PAUSE_SECONDS, waited / 5), _LONGEST_PAUSE_SECONDS)
            if most is not None:
                pause = min(pause, max(_PAUSE_SECONDS, most - waited))
            tells = not told and waited >= FIRST_NOTICE_SECONDS
            manager = v1.train.SessionManager(
                local_init_op=scaffold.local_init_op,
                local_init_feed_dict=scaffold.local_init_feed_dict,
                ready_op=scaffold.ready_op,
                ready_for_local_init_op=scaffold.ready_for_local_init_op,
                graph=v1.get_default_graph(),
                recovery_wait_secs=pause,
            )
            try:
                # Without time to wait, it checks once; with time for two checks, it logs the missing
                # variables in between.
                return manager.wait_for_session(
                    self._master, self._config, max_wait_secs=1.5 * pause if tells else 0
                )
            except tf.errors.DeadlineExceededError as error:
                if most is not None and waited >= most:
                    raise tf.errors.DeadlineExceededError(
                        error.node_def,
                        error.op,
                        f"Session was not ready after waiting {most:g} secs.",
                    ) from error
            if tells:
                told = True
            else:
                time.sleep(pause)


# Why opening a session is wrapped. The problem: where a task of the cluster is away, TensorFlow
# waits in C++ forever: no exception, no log line, and no Ctrl-C. And a MonitoredSession that loses
# a session while it opens tries again at once, endlessly. So, in this order:
#   1. wait for a thread that may still be writing the checkpoint to restore;
#   2. connect to each task that the session needs, until all answer or the time is over;
#   3. open the session, while one thread logs what it waits for and another ends the process if a
#      task goes away meanwhile (nothing else can end that call);
#   4. on a loss, pause a second and pass the error on: the MonitoredSession calls this again; the
#      time counts from the first loss (`_failed`) until a session opens.
class ReconnectingCreator(v1.train.SessionCreator):
    """Opens another creator's sessions once the tasks that they need answer."""

    def __init__(
        self,
        creator: v1.train.SessionCreator,
        *,
        settings: SessionSettings,
        master: str,
        for_chief: bool = False,
        folder: str | None = None,
    ) -> None:
        self._creator = creator
        self._settings = settings
        self._master = master
        self._for_chief = for_chief
        self._folder = folder
        self._failed: float | None = None
        self._logged_at = 0.0
        self._opened = False

    def create_session(self) -> v1.Session:
        if self._folder is not None:
            wait_for_writes(self._folder)
        away, setting = self._limit()
        tasks = needed_tasks(self._settings, self._master)
        wait_for_tasks(tasks, seconds=away, setting=setting)
        seconds = self._settings.session_creation_timeout_secs
        bound = "This has no time limit" if seconds is None else f"The time limit is {seconds} s"
        try:
            with (
                said_while_waiting(self._what, change=f"{bound} ({_SETTING})."),
                ended_without_tasks("Opening a session", tasks, seconds=away, setting=setting),
                opening_errors_explained(),
            ):
                session = self._creator.create_session()
        except LOST as error:
            self._note(error)
            raise
        except tf.errors.DeadlineExceededError as error:
            if not self._for_chief:
                raise
            raise tf.errors.DeadlineExceededError(
                error.node_def,
                error.op,
                f"{error.message} {_capitalized(_chief(self._settings))} has not initialized the "
                f"variables: its log has the reason. Start it, or wait longer with {_SETTING}.",
            ) from error
        self._failed = None
        self._opened = True
        return session

    def _limit(self) -> tuple[float | None, str]:
        """Returns how many seconds tasks may be away, and the setting that limits it."""
        seconds = self._settings.session_creation_timeout_secs
        # A session that replaces a lost one interrupts the run, as a stalled step does.
        stall = self._settings.stall_timeout_secs if self._opened else None
        if stall is not None and (seconds is None or stall < seconds):
            return stall, "stall_timeout_secs"
        return seconds, _SETTING

    def _what(self) -> str:
        if self._for_chief:
            return f"{_chief(self._settings)} to initialize the variables"
        where = f"through {self._master}" if self._master else "on this host"
        return (
            f"a session {where} to open: variables are initialized, or restored from a checkpoint"
        )

    def _note(self, error: tf.errors.OpError) -> None:
        """Logs a session that was lost while it opened; raises when the time for retries is over."""
        (seconds, setting), now = self._limit(), time.monotonic()
        if self._failed is None:
            self._failed = now
        if seconds is not None and now - self._failed > seconds:
            raise RuntimeError(
                f"no session could be opened for {seconds:g} s ({setting}): {type(error).__name__}: "
                f"{error.message}"
            ) from error
        if not self._logged_at or now - self._logged_at > _REPEAT_SECONDS:
            self._logged_at = now
            bound = "forever" if seconds is None else f"for up to {seconds:g} s"
            _logger.warning(
                "A session was lost while opening (%s: %s). Retrying %s (%s).",
                type(error).__name__,
                error.message,
                bound,
                setting,
            )
        time.sleep(_PAUSE_SECONDS)


def needed_tasks(settings: SessionSettings, master: str) -> dict[str, str]:
    """Returns task -> address, for the tasks that a session needs: those that its device filters include."""
    scheme, _, own = master.rpartition("://")
    if scheme != "grpc":
        return {}
    config = settings.session_config
    filters = [
        tf.DeviceSpec.from_string(each) for each in (config.device_filters if config else ())
    ]

    def is_seen(job: str, task: int) -> bool:
        return not filters or any(
            each.job in (None, job) and each.task in (None, task) for each in filters
        )

    tasks = _tasks(settings.cluster_spec)
    # With a master outside of the cluster, such as a TPU's, a session needs no other task.
    if own not in tasks.values():
        return {"the master": own}
    return {
        f"{job} {task}": address
        for (job, task), address in tasks.items()
        if address != own and is_seen(job, task)
    }


def _tasks(cluster: Any) -> dict[tuple[str, int], str]:
    return {
        (job, task): cluster.task_address(job, task)
        for job in (cluster.jobs if cluster else ())
        for task in cluster.task_indices(job)
    }


def _chief(settings: SessionSettings) -> str:
    tasks = _tasks(settings.cluster_spec)
    address = next((tasks[job, 0] for job in _CHIEFS if (job, 0) in tasks), None)
    if address is None:
        return "the chief"
    chief = {"the chief": address}
    return named(chief) + (", which does not answer," if without_answer(chief) else "")


def _capitalized(words: str) -> str:
    return words[0].upper() + words[1:]
