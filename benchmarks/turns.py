"""A contender's process, which waits for its turn at each activity: others have theirs in between."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import IO, cast

from benchmarks.contenders import CONTENDERS
from benchmarks.oracle_environment import oracle_python
from benchmarks.plan import Measurement, Request
from benchmarks.processes import REPOSITORY, Failed, environment_of, reason_of


def take_turns(
    request: Request, *, threads: int, timeout: float, gpu: bool = False
) -> Generator[Measurement | Failed | None, None, None]:
    """Measures one contender on one model in a new process, one activity at each turn.

    A turn is one step of this iterator: the process starts and makes its first step, then trains, then evaluates, then
    predicts, and is idle until it is asked for the next. It is stopped where the iterator is closed before its end.
    """
    contender = CONTENDERS[request.contender]
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        errors = Path(scratch) / "errors"
        # What another one has written would else be written to the disk during this one's turn.
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
                # It ends after its answer.
                if process.wait(timeout) or not answer:
                    yield Failed(reason_of(errors.read_text(errors="replace"), process.returncode))
                else:
                    yield Measurement.from_json(answer.decode())
            except subprocess.TimeoutExpired:
                yield Failed(f"took longer than {timeout:g} s")
            finally:
                process.kill()


def _answer(process: subprocess.Popen[bytes], timeout: float) -> bytes:
    """Returns the process's next line, which is empty where it has ended."""
    answers = cast(IO[bytes], process.stdout)
    ready, _, _ = select.select([answers], [], [], timeout)
    if not ready:
        raise subprocess.TimeoutExpired(process.args, timeout)
    return answers.readline()


def _ask(process: subprocess.Popen[bytes]) -> None:
    # One that was ended while it waited is told by its missing answer next.
    with contextlib.suppress(BrokenPipeError):
        requests = cast(IO[bytes], process.stdin)
        requests.write(b"\n")
        requests.flush()
