"""Finds and initializes the TPU system behind a session, and explains its absence."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.waiting import said_while_waiting

v1 = tf.compat.v1

_PROBE_SECONDS = 10
_INITIALIZE_SECONDS = 300
_TPU = "TPU"


@dataclasses.dataclass(frozen=True)
class TPUSystem:
    """The TPU cores behind a session."""

    master: str  # Address of the session's master.
    num_cores: int
    num_hosts: int  # Number of hosts that the cores are attached to.
    job: str | None  # Name of the hosts' job; `None` for this process.
    # Where the cores are. Defaults to `None`: not read.
    topology: tf.tpu.experimental.Topology | None = None


def find_tpu_system(
    master: str,
    *,
    session_config: v1.ConfigProto | None = None,
    job: str | None = None,
    with_topology: bool = False,
) -> TPUSystem:
    """Queries a session's master for its TPU cores."""
    listed = list_tpu_cores(master, session_config=session_config)
    cores = [tf.DeviceSpec.from_string(name) for name in listed]
    # A session may see several jobs' cores, but a TPU system belongs to one job. Without a named job, the first core's
    # is used; a session of this process needs no job in device names.
    found = job or cores[0].job
    here = [core for core in cores if core.job == found]
    if not here:
        jobs = sorted({str(core.job) for core in cores})
        raise _no_tpu(
            master, f"no core belongs to the job {job!r} (TPUConfig.tpu_job_name), only to {jobs}"
        )
    remote = found if master else None
    topology = None
    if with_topology:
        topology = _read_topology(master, session_config=session_config, job=remote)
    return TPUSystem(master, len(here), len({core.task for core in here}), remote, topology)


def list_tpu_cores(
    master: str,
    *,
    session_config: v1.ConfigProto | None = None,
    timeout_secs: float = _PROBE_SECONDS,
) -> list[str]:
    """Lists the TPU cores that a session can see."""
    config = v1.ConfigProto()
    if session_config is not None:
        config.CopyFrom(session_config)
    config.operation_timeout_in_ms = int(timeout_secs * 1000)
    with (
        translated_tpu_errors(master),
        v1.Session(master, graph=tf.Graph(), config=config) as session,
    ):
        devices = session.list_devices()
    cores = [device.name for device in devices if device.device_type == _TPU]
    if not cores:
        found = ", ".join(sorted({device.device_type for device in devices})) or "none"
        raise _no_tpu(master, f"it has no TPU cores, only devices of the types {found}")
    return cores


def _read_topology(
    master: str, *, session_config: v1.ConfigProto | None, job: str | None
) -> tf.tpu.experimental.Topology:
    """Initializes the system, which returns its topology; the training session initializes it again."""
    with (
        tf.Graph().as_default(),
        translated_tpu_errors(master),
        said_while_waiting(
            f"the topology of the TPU at {master or 'this host'}",
            change=f"It ends after {_INITIALIZE_SECONDS} s.",
        ),
    ):
        initialized = v1.tpu.initialize_system(job=job)
        with v1.Session(master, config=session_config) as session:
            serialized = session.run(initialized, options=_patient())
    return tf.tpu.experimental.Topology(serialized=serialized)


@contextlib.contextmanager
def translated_tpu_errors(master: str) -> Iterator[None]:
    """Turns TensorFlow's errors for an unreachable TPU into one clear error."""
    try:
        yield
    except (tf.errors.DeadlineExceededError, tf.errors.UnavailableError) as error:
        raise _no_tpu(master, f"it does not answer ({type(error).__name__})") from error
    except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError) as error:
        if "No session factory registered" in str(error):
            raise _no_tpu(
                master, "it is not the address of a session, such as 'grpc://10.0.0.1:8470'"
            ) from error
        if _TPU not in str(error):
            raise
        raise _no_tpu(master, _line_about_tpu(str(error))) from error


class TPUSystemHook(v1.train.SessionRunHook):
    """Initializes the TPU system for a session, and shuts it down at its end."""

    def __init__(self, *, master: str, job: str | None = None, shut_down: bool = True) -> None:
        """Names the system."""
        self._master = master
        self._job = job
        self._shut_down = shut_down

    def begin(self) -> None:
        """Makes the ops before the graph is finalized."""
        self._initialize = v1.tpu.initialize_system(job=self._job)
        self._finalize = v1.tpu.shutdown_system(job=self._job)

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Initializes the system, before which nothing can run on its cores."""
        del coord
        with (
            translated_tpu_errors(self._master),
            said_while_waiting(
                f"the TPU at {self._master or 'this host'} to initialize",
                change=f"The time limit is {_INITIALIZE_SECONDS} s.",
            ),
        ):
            session.run(self._initialize, options=_patient())

    def end(self, session: v1.Session) -> None:
        """Shuts the system down."""
        if self._shut_down:
            session.run(self._finalize, options=_patient())


def _line_about_tpu(message: str) -> str:
    """Returns the line with the reason; the other lines name places in the program."""
    lines = [line.strip() for line in message.splitlines() if _TPU in line]
    places = ("File ", "Node:", "[[", "Detected at node")
    return next((line for line in lines if not line.startswith(places)), lines[0])


def _patient() -> Any:
    return v1.RunOptions(timeout_in_ms=_INITIALIZE_SECONDS * 1000)


def _no_tpu(master: str, reason: str) -> RuntimeError:
    return RuntimeError(
        f"Failed to find TPU cores through the master {master!r}: {reason}. Check the address and "
        "that the TPU is up; or emulate TPU cores on this host with RunConfig(master='emulated') "
        "or TFX_TPU_TRAINER_EMULATE=1; or run without TPU with use_tpu=False."
    )
