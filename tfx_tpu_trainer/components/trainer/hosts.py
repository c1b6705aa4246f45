"""Defines this process's part in a training on several hosts, and how the chief reports its progress."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.waiting import said_while_waiting
from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.estimator import Estimator, EvalSpec, TrainSpec
from tfx_tpu_trainer.estimator.extending import (
    EvaluatedCheckpoint,
    EvaluationListener,
    TaskType,
    read_task_environment,
    run_schedule,
    start_server,
)

_TPU_HOSTS = "TPU_WORKER_HOSTNAMES"
_TPU_HOST = "TPU_WORKER_ID"


class Role(enum.Enum):
    """The role of a process in a training."""

    CHIEF = "chief"
    WORKER = "worker"
    PS = "ps"
    EVALUATOR = "evaluator"
    TPU_HOST = "host of a TPU slice"


@dataclasses.dataclass(frozen=True)
class Host:
    """This process's part in a training."""

    role: Role = Role.CHIEF  # Only the chief writes artifacts.
    is_alone: bool = True  # Whether this is the only process.
    # Whether TF_CONFIG describes a cluster, with variables on parameter servers.
    in_cluster: bool = False
    reader: int = 0  # This process's index among those that read the training's input.
    readers: int = 1  # The number of those processes.

    @property
    def is_chief(self) -> bool:
        """Whether this process evaluates, exports and writes artifacts."""
        return self.role is Role.CHIEF


ONLY_HOST = Host()

ALONE: Mapping[str, Any] = {}
"""The cluster (`RunConfig`'s `tf_config`) of calls that run only in this process.

The chief evaluates and exports that way, from a checkpoint: its parameter servers may be gone.
"""


def read_host() -> Host:
    """Reads the environment: TF_CONFIG of a cluster, or the variables of a multi-host TPU slice."""
    place = read_task_environment()
    if place.task_type == TaskType.EVALUATOR:
        return Host(Role.EVALUATOR, is_alone=False, in_cluster=True)
    tasks = place.num_worker_replicas + place.num_ps_replicas
    if tasks > 1:
        if place.num_worker_replicas > 1 and not place.num_ps_replicas:
            raise ValueError(
                f"TF_CONFIG has {place.num_worker_replicas} workers, the chief included, and no "
                '"ps": each would train its own variables. Add at least one "ps" task to its '
                '"cluster", or train on one host.'
            )
        # All other types, "chief" and "master", lead.
        roles = {TaskType.PS: Role.PS, TaskType.WORKER: Role.WORKER}
        role = roles.get(place.task_type, Role.CHIEF)
        if role is Role.PS:
            return Host(role, is_alone=False, in_cluster=True)
        return Host(
            role,
            is_alone=False,
            in_cluster=True,
            reader=place.global_id_in_cluster or 0,
            readers=place.num_worker_replicas,
        )
    return _tpu_host()


def _tpu_host() -> Host:
    names = [name for name in os.environ.get(_TPU_HOSTS, "").split(",") if name.strip()]
    if len(names) < 2:
        return ONLY_HOST
    text = os.environ.get(_TPU_HOST, "")
    if not text.isdecimal() or int(text) >= len(names):
        raise ValueError(
            f"{_TPU_HOST}={text!r} is not the number of one of the {len(names)} hosts in "
            f"{_TPU_HOSTS}; set it to this host's number, from 0"
        )
    # Host 0 draws the input for all hosts.
    role = Role.TPU_HOST if int(text) else Role.CHIEF
    return Host(role, is_alone=False)


_logger = logging.getLogger(__name__)

STATUS_FILE = "chief_status.json"
"""Name of the chief's report in the ModelRun artifact, the one folder that all hosts of an execution know."""

TRAINING, FINISHING, SUCCEEDED, FAILED = "training", "finishing", "succeeded", "failed"

_BEAT_SECONDS, _SILENT_SECONDS, _START_SECONDS = 10.0, 300.0, 7200.0
# Three beats without news; a helper then logs the silence.
_QUIET_SECONDS = 30.0
_POLL_SECONDS = 1.0
_LONGEST_NAP_SECONDS = 1.0

EVALUATE_EVERY_SECONDS = 10
"""The interval at which a cluster's evaluator looks for a new checkpoint."""


class ChiefFailedError(RuntimeError):
    """The chief has failed, or has been silent for too long."""


class ChiefStatus:
    """The chief's side: reports its progress and that it is alive.

    Reports go through the file system, the only channel that works for hosts that start late, restart, or outlive the
    chief's own server.
    """

    def __init__(self, model_run: str, *, beat_secs: float = _BEAT_SECONDS) -> None:
        self._path = os.path.join(model_run, STATUS_FILE)
        self._beat_secs = beat_secs
        self._attempt = uuid.uuid4().hex
        self._started = time.time()
        self._replaced = False
        self._beat = 0
        self._state = TRAINING
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def reported(self) -> Iterator[ChiefStatus]:
        """Reports `training` until the block ends, and then how it ended."""
        ended = threading.Event()
        self._write(TRAINING)
        beats = threading.Thread(target=self._keep_fresh, args=(ended,), daemon=True)
        beats.start()
        try:
            yield self
        except BaseException as error:
            self._end(beats, ended, FAILED, f"{type(error).__name__}: {error}")
            raise
        self._end(beats, ended, SUCCEEDED)

    def finishing(self) -> None:
        """Reports the end of training; checkpoints may be removed from now on."""
        self._write(FINISHING)

    def _end(
        self, beats: threading.Thread, ended: threading.Event, state: str, message: str = ""
    ) -> None:
        # The thread ends first, so no beat follows the last status.
        ended.set()
        with said_while_waiting(
            f"{self._path} to be written",
            change="The file system decides how long that takes.",
        ):
            beats.join()
            self._write(state, message)

    def _keep_fresh(self, ended: threading.Event) -> None:
        while not ended.wait(self._beat_secs):
            try:
                self._write(self._state)
            except tf.errors.OpError as error:
                _logger.warning("%s can't be written at the moment: %s", self._path, error.message)

    def _write(self, state: str, message: str = "") -> None:
        with self._lock:
            # A counter makes each report differ from the last one. A waiting host counts any change as a sign of life,
            # by its own clock: two machines' clocks may differ.
            self._state = state
            self._beat += 1
            self._replaced = self._replaced or self._is_replaced()
            if self._replaced:
                return
            status = {
                "state": state,
                "attempt": self._attempt,
                "started": self._started,
                "beat": self._beat,
            }
            write_whole(self._path, json.dumps({**status, "message": message}))

    def _is_replaced(self) -> bool:
        """Returns whether a newer attempt is the chief now, so this one's end no longer matters."""
        # A chief that counts as lost may come back next to its successor, and both would write this file in turns. The
        # one that started later continues; the other one stops reporting for good, so a late FAILED of a replaced
        # attempt ends no host.
        there = _read(self._path)
        if there is None or there.get("attempt") == self._attempt:
            return False
        if _started(there) <= self._started:
            return False
        _logger.warning(
            "Another attempt at this training now writes %s; this one has stopped writing it",
            self._path,
        )
        return True


def _read(path: str) -> dict[str, Any] | None:
    try:
        with tf.io.gfile.GFile(path, "r") as file:
            status = json.loads(file.read())
    except (tf.errors.OpError, ValueError):
        # The file does not exist yet, is being replaced in an object store, or the store is unavailable.
        return None
    return status if isinstance(status, dict) and "state" in status else None


def _started(status: Mapping[str, Any]) -> float:
    started = status.get("started")
    return started if isinstance(started, float) else 0.0


class ChiefWatch:
    """The other hosts' side: the chief's progress, and whether it is alive."""

    def __init__(
        self,
        model_run: str,
        *,
        silent_secs: float = _SILENT_SECONDS,
        start_secs: float = _START_SECONDS,
        quiet_secs: float = _QUIET_SECONDS,
        poll_secs: float = _POLL_SECONDS,
    ) -> None:
        self._path = os.path.join(model_run, STATUS_FILE)
        self._silent_secs = silent_secs
        self._start_secs = start_secs
        self._quiet_secs = quiet_secs
        self._poll_secs = poll_secs
        # A failure reported before this host started belongs to an earlier attempt.
        self._old = _read(self._path)
        self._seen: dict[str, Any] | None = None
        self._changed = time.monotonic()

    def state(self) -> str | None:
        """Returns the chief's status, `None` before it starts; raises if it failed or has been silent for too long."""
        status = _read(self._path)
        if status is not None and status == self._old and status["state"] != SUCCEEDED:
            status = None
        if (
            status is not None
            and self._seen is not None
            and _started(status) < _started(self._seen)
        ):
            # The last status of a replaced attempt.
            status = None
        if status != self._seen and status is not None:
            self._seen, self._changed = status, time.monotonic()
        if self._seen is None:
            self._check_patience(self._start_secs, "has not started (start_timeout_secs)")
            return None
        state = self._seen["state"]
        if state == FAILED:
            raise ChiefFailedError(
                f"The chief of this training has failed ({self._seen.get('message')}); see its "
                "log. This host ends too."
            )
        if state != SUCCEEDED:
            self._check_patience(self._silent_secs, "has given no sign of life")
        return state

    @property
    def bounds(self) -> str:
        """Describes in a sentence what ends the waiting."""
        return (
            f"This host ends {self._start_secs:g} s after its start if no chief has started "
            f"(start_timeout_secs), and {self._silent_secs:g} s after the chief's last sign of "
            "life."
        )

    def awaited(self) -> str | None:
        """Describes what this host waits for; `None` while the chief trains."""
        if self._seen is None:
            return f"the chief of this training to start, which writes {self._path}"
        quiet = time.monotonic() - self._changed
        if quiet > self._quiet_secs:
            return f"a sign of life of the chief in {self._path}; the last one is {quiet:.0f} s old"
        if self._seen["state"] == FINISHING:
            return "the chief, which has trained, to evaluate, export and write the artifacts"
        return None

    def is_training(self) -> bool:
        """Returns whether the chief is still training."""
        return self.state() in (None, TRAINING)

    def wait_for_end(self) -> None:
        """Waits until the chief has succeeded."""
        while self.state() != SUCCEEDED:
            time.sleep(self._poll_secs)

    @contextlib.contextmanager
    def ending_this_process(self, grace_secs: float = 60) -> Iterator[None]:
        """Ends the process if the block still runs some time after the chief ended.

        TensorFlow can't be interrupted while it waits for missing hosts.
        """
        ended = threading.Event()
        guard = threading.Thread(target=self._guard, args=(ended, grace_secs), daemon=True)
        guard.start()
        try:
            yield
        finally:
            ended.set()
            guard.join()

    def _guard(self, ended: threading.Event, grace_secs: float) -> None:
        try:
            while self.is_training():
                if ended.wait(self._poll_secs):
                    return
            code = 0
        except ChiefFailedError as error:
            _logger.error("%s", error)
            code = 1
        if not ended.wait(grace_secs):
            _logger.warning("The chief has ended; this host stops waiting for the others and ends.")
            logging.shutdown()
            os._exit(code)

    def _check_patience(self, seconds: float, what: str) -> None:
        waited = time.monotonic() - self._changed
        if waited > seconds:
            raise ChiefFailedError(
                f"The chief of this training {what} for {waited:.0f} seconds ({self._path}). This "
                "host ends. Start the training again: it resumes from its last checkpoint."
            )


def help_chief(
    role: Role, estimator: Estimator, train: TrainSpec, evaluation: EvalSpec, watch: ChiefWatch
) -> None:
    """Does this host's part; returns when the chief has written the artifacts."""
    _logger.info("This host takes part as %s; only the chief writes artifacts.", role.value)
    with said_while_waiting(watch.awaited, change=watch.bounds):
        if watch.is_training():
            if role in (Role.PS, Role.WORKER):
                server = start_server(estimator.config)
                if role is Role.PS:
                    # A parameter server only has to exist until the chief is done. The server's own join() would never
                    # return.
                    watch.wait_for_end()
                else:
                    with watch.ending_this_process():
                        estimator.train(train.input_fn, max_steps=train.max_steps)
                # The server runs as long as this reference exists.
                del server
            elif role is Role.EVALUATOR:
                _evaluate(estimator, train, evaluation, watch)
            # The TPU's own runtime serves its cores to the chief's session.
        watch.wait_for_end()


def _evaluate(
    estimator: Estimator, train: TrainSpec, evaluation: EvalSpec, watch: ChiefWatch
) -> None:
    try:
        run_schedule(
            estimator,
            train,
            evaluation,
            listener=_WhileTraining(watch),
            sleep=lambda seconds: _sleep(seconds, watch.is_training),
        )
    except (tf.errors.OpError, ValueError):
        # The chief evaluates the last checkpoint itself, and removes all of them.
        if watch.is_training():
            raise
        _logger.info("The chief has finished training: the current evaluation is abandoned.")


class _WhileTraining(EvaluationListener):
    """Ends the evaluations when the chief stops training."""

    def __init__(self, watch: ChiefWatch) -> None:
        self._watch = watch

    def before_eval(self) -> bool:
        return self._watch.is_training()

    def after_eval(self, evaluated: EvaluatedCheckpoint | None) -> bool:
        del evaluated
        return self._watch.is_training()


def _sleep(seconds: float, while_true: Callable[[], bool]) -> None:
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0 and while_true():
        time.sleep(min(left, _LONGEST_NAP_SECONDS))
