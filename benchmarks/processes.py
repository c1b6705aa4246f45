"""Runs the benchmarks' processes: their environment, turns, results and errors."""

import contextlib
import dataclasses
import glob
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import IO, cast

from benchmarks.contenders import CONTENDERS
from benchmarks.oracle_environment import oracle_python
from benchmarks.plan import Measurement, Request

REPOSITORY = Path(__file__).parents[1]

# Without one of these devices there is no GPU, which TensorFlow would need seconds to find out: NVIDIA's, Windows' for
# Linux, AMD's.
_GPU_DEVICES = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/kfd")


@dataclasses.dataclass(frozen=True)
class Failed:
    """A process without a result; the message is one line."""

    reason: str


def write_records(folder: Path, *, threads: int) -> None:
    """Writes the shared records in a separate process, which keeps this one small."""
    code = f"from benchmarks import data; data.write_records({str(folder)!r})"
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env=environment_of(threads=threads, legacy_keras=True),
        check=True,
    )


def result_of(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    timeout: float,
) -> str | Failed:
    """Runs a module of the benchmarks in a separate process."""
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        output, errors = Path(scratch) / "result", Path(scratch) / "errors"
        with errors.open("wb") as stderr:
            try:
                ended = subprocess.run(
                    [sys.executable, "-m", *arguments, str(output)],
                    cwd=REPOSITORY,
                    env=environment,
                    stdout=stderr,
                    stderr=stderr,
                    timeout=timeout,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return Failed(f"took longer than {timeout:g} s")
        if ended.returncode or not output.exists():
            return Failed(reason_of(errors.read_text(errors="replace"), ended.returncode))
        return output.read_text(encoding="utf-8")


def take_turns(
    request: Request, *, threads: int, timeout: float, gpu: bool = False
) -> Generator[Measurement | Failed | None, None, None]:
    """Measures one contender on one model in a new process, one activity per turn.

    A turn is one step of this iterator: the process starts and makes its first step, then trains, then evaluates, then
    predicts, and is idle until the next turn is requested. It is stopped if the iterator is closed before its end.
    """
    contender = CONTENDERS[request.contender]
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        errors = Path(scratch) / "errors"
        # Otherwise the previous process's files would be flushed during this turn.
        os.sync()
        request = dataclasses.replace(
            request, model_dir=str(Path(scratch) / "model"), started=time.monotonic()
        )
        with (
            errors.open("wb") as stderr,
            subprocess.Popen(
                [
                    str(oracle_python()) if contender.of_original else sys.executable,
                    "-m",
                    "benchmarks.measure",
                    request.to_json(),
                ],
                cwd=REPOSITORY,
                env=environment_of(threads=threads, legacy_keras=contender.legacy_keras, gpu=gpu),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            ) as process,
        ):
            try:
                while (answer := _answer(process, timeout)) == b"\n":
                    yield None
                    os.sync()
                    _ask(process)
                # The process ends after its answer.
                if process.wait(timeout) or not answer:
                    yield Failed(reason_of(errors.read_text(errors="replace"), process.returncode))
                else:
                    yield Measurement.from_json(answer.decode())
            except subprocess.TimeoutExpired:
                yield Failed(f"took longer than {timeout:g} s")
            finally:
                process.kill()


def _answer(process: subprocess.Popen[bytes], timeout: float) -> bytes:
    """Returns the process's next line; empty if it ended."""
    answers = cast(IO[bytes], process.stdout)
    ready, _, _ = select.select([answers], [], [], timeout)
    if not ready:
        raise subprocess.TimeoutExpired(process.args, timeout)
    return answers.readline()


def _ask(process: subprocess.Popen[bytes]) -> None:
    # If the process ended while waiting, its missing answer shows that next.
    with contextlib.suppress(BrokenPipeError):
        requests = cast(IO[bytes], process.stdin)
        requests.write(b"\n")
        requests.flush()


def reason_of(errors: str, exit_code: int) -> str:
    """Returns in one line why a process failed."""
    if exit_code < 0:
        return f"ended by signal {-exit_code}"
    lines = errors.strip().splitlines()
    # The error is the traceback's last unindented line; advice may follow it.
    starts = [index for index, line in enumerate(lines) if line.startswith("Traceback (most")]
    after = lines[starts[-1] + 1 :] if starts else lines[-1:]
    own = [line for line in after if line and not line.startswith(" ")]
    return own[0] if own else f"exit code {exit_code}"


def gpus_of(python: str) -> list[str]:
    """Returns the names of the GPUs that an environment's TensorFlow finds on this machine."""
    if not any(glob.glob(pattern) for pattern in _GPU_DEVICES):
        return []
    code = (
        "import tensorflow as tf\n"
        "for gpu in tf.config.list_physical_devices('GPU'):\n"
        "    print('GPU:', tf.config.experimental.get_device_details(gpu).get('device_name'))"
    )
    ended = subprocess.run(
        [python, "-c", code],
        cwd=REPOSITORY,
        env=environment_of(threads=1, legacy_keras=False, gpu=True),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = ended.stdout.splitlines()
    return [line.removeprefix("GPU: ") for line in lines if line.startswith("GPU: ")]


def environment_of(*, threads: int, legacy_keras: bool, gpu: bool = False) -> dict[str, str]:
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    }
    environment.pop("TF_USE_LEGACY_KERAS", None)
    environment.pop("TF_CONFIG", None)
    environment |= {
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "KERAS_BACKEND": "tensorflow",
    }
    if gpu:
        # The Makefile hides them from all its processes.
        del environment["CUDA_VISIBLE_DEVICES"]
    if legacy_keras:
        environment["TF_USE_LEGACY_KERAS"] = "1"
    return environment
