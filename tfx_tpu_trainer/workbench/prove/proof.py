"""Runs both sides of a proof, compares their records, and reaches a verdict."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tfx_tpu_trainer._support.messages import PACKAGE_FOLDER
from tfx_tpu_trainer.workbench.prove.comparison import (
    DIFFERENT,
    Difference,
    Subject,
    compare,
    find_first_op,
    first_difference,
    verdict_of,
)
from tfx_tpu_trainer.workbench.prove.records import Entry, Record

FORMAT = "tfx_tpu_trainer.proof/1"
"""Value of `format` in the JSON form."""

# Called with a record's folder, the first side's record, and a call and step to probe.
Run = Callable[[str, str | None, Sequence[Any] | None], None]

_SIDES = ("the original", "tfx_tpu_trainer")
# In a program's arguments, replaced by a different name in each run.
_SIDE = "{side}"
_ERROR = re.compile(r"([\w.]+(Error|Exception|Interrupt)\b|python -m tfx_tpu_trainer\.compat:)")
_SAME_KERNELS = {
    "TF_DETERMINISTIC_OPS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONHASHSEED": "0",
}


class SideFailedError(RuntimeError):
    """A program failed on one side."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A program, as `program_to_run` of `compat` takes it, and the cores that our side emulates."""

    words: Sequence[str]
    module: str | None = None
    repair: bool = False
    packages: Sequence[str] = ()
    emulate: int = 0

    def run(
        self,
        python: str,
        original: bool,
        folder: str,
        start: str | None,
        probe: Sequence[Any] | None,
    ) -> None:
        """Runs one side in an interpreter; see `Run`."""
        given = {
            **dataclasses.asdict(self),
            "words": [word.replace(_SIDE, os.path.basename(folder)) for word in self.words],
            "original": original,
            "recorder": {"folder": folder, "start": start, "probe": probe},
            "package": str(PACKAGE_FOLDER.parent),
            "libraries": [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")],
        }
        environment = {**os.environ, **_SAME_KERNELS}
        if original:
            # TensorFlow 2.15 has its own Keras; the package tf_keras belongs to this environment.
            environment["TF_USE_LEGACY_KERAS"] = "0"
        elif self.emulate:
            environment["TFX_TPU_TRAINER_EMULATED_REPLICAS"] = str(self.emulate)
        command = [python, str(Path(__file__).with_name("side.py")), json.dumps(given)]
        with open(f"{folder}.log", "w", encoding="utf-8") as log:
            ended = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
        if ended.returncode or not os.path.exists(os.path.join(folder, "record.json")):
            name = _SIDES[not original]
            raise SideFailedError(f"the program fails under {name}: {_reason(f'{folder}.log')}")


def _reason(path: str) -> str:
    """Returns the line of a program's output that names its error; the last line if none does."""
    with open(path, encoding="utf-8", errors="replace") as log:
        lines = [line.strip() for line in log if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    return ["", *lines, *errors][-1]


@dataclasses.dataclass(frozen=True)
class Proof:
    """The result of a proof."""

    verdict: str
    first: Difference | None
    # The first op of that step that differs, and the ops before it that only one side's program made.
    op: Difference | None
    missing: Sequence[str]
    added: Sequence[str]
    subjects: Sequence[Subject]
    unheld: Sequence[str]
    partly: Sequence[str]
    steps: int
    versions: Sequence[str]

    @property
    def holds(self) -> bool:
        """Whether both sides agree."""
        return self.verdict != DIFFERENT

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain values."""
        values = {"format": FORMAT, **dataclasses.asdict(self)}
        for subject, each in zip(values["subjects"], self.subjects):
            subject |= {"verdict": each.verdict, "ulps": min(each.ulps, sys.float_info.max)}
        return values


def prove(program: Program, original: str, ours: str, folder: str) -> Proof:
    """Runs a program in two interpreters, with the original and with this package; `folder` must not exist."""
    sides = partial(program.run, original, True), partial(program.run, ours, False)
    # A core's graph differs from the host's.
    return prove_runs(*sides, folder, same_graph=not program.emulate)


def prove_runs(original: Run, ours: Run, folder: str, *, same_graph: bool = True) -> Proof:
    """Compares two runs of a program, and looks for the first op that differs if both make the same graph."""
    os.makedirs(folder)
    paths = [os.path.join(folder, name) for name in ("original", "ours")]
    original(paths[0], None, None)
    ours(paths[1], paths[0], None)
    records = [Record.load(path) for path in paths]
    subjects = compare(*records)
    if not any(each.compared for each in subjects):
        raise SideFailedError(
            "the program makes no call of an estimator: give one that trains, evaluates or predicts"
        )
    first = first_difference(subjects)
    unheld = {each for record in records for each in record.unheld}
    op: Difference | None = None
    missing: Sequence[str] = ()
    added: Sequence[str] = ()
    if same_graph and first is not None and first.entry.step:
        probe = [first.entry.call, first.entry.step]
        probed = [f"{path}-probed" for path in paths]
        original(probed[0], paths[0], probe)
        ours(probed[1], paths[0], probe)
        again = [Record.load(path) for path in probed]
        op, missing, added = find_first_op(
            again[0], again[1], Entry("ops", first.entry.call, first.entry.step)
        )
        for name, record, second in zip(_SIDES, records, again):
            itself = first_difference(compare(record, second))
            if itself is not None:
                unheld.add(
                    f"{name}'s second run differs from its first: {itself.title}; the program races or draws"
                )
    return Proof(
        verdict_of(subjects),
        first,
        op,
        missing,
        added,
        subjects,
        unheld=sorted(unheld),
        partly=sorted({each for record in records for each in record.partly}),
        steps=sum(entry.subject == "losses" for entry in records[1].entries),
        versions=[record.tensorflow for record in records],
    )
