"""Processes of the benchmarks: their environment, their results, and why they failed."""

from __future__ import annotations

import dataclasses
import glob
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]

# Without one of these there is no GPU, which TensorFlow would take seconds to say: NVIDIA's, Windows' for
# Linux, AMD's.
_GPU_DEVICES = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/kfd")


@dataclasses.dataclass(frozen=True)
class Failed:
    """A process that gave no measurement.

    Attributes:
        reason: One line.
    """

    reason: str


def write_records(folder: Path, *, threads: int) -> None:
    """Writes the records that all processes read, in a separate process: this one stays small."""
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


def reason_of(errors: str, exit_code: int) -> str:
    """Returns one line that says why a process failed."""
    if exit_code < 0:
        return f"ended by signal {-exit_code}"
    lines = errors.strip().splitlines()
    # The error's own line is the last of a traceback that is not indented; advice may follow it.
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
        # The Makefile hides them from whatever it starts.
        del environment["CUDA_VISIBLE_DEVICES"]
    if legacy_keras:
        environment["TF_USE_LEGACY_KERAS"] = "1"
    return environment
