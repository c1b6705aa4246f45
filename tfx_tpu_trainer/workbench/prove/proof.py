"""Runs both sides of a proof, compares their records, and reaches a verdict."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfx_tpu_trainer._support.messages import PACKAGE_FOLDER
from tfx_tpu_trainer.workbench.prove.comparison import (
    DIFFERENT,
    EQUAL,
    Difference,
    FirstOp,
    Record,
    Subject,
    compare,
    compare_answers,
    find_first_op,
    first_difference,
    verdict_of,
)

FORMAT = "tfx_tpu_trainer.proof/1"
"""Value of `format` in the JSON form."""

# Called with a record's folder, the first side's record, and a call and step to probe.
Run = Callable[[str, str | None, Sequence[int] | None], None]

_HERE = Path(__file__).parent
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
    """A program and how it is run.

    Attributes:
        words: Its path and its arguments; only the arguments with `module`.
        module: A module to run instead of a path.
        repair: Whether it runs in its repaired form, on both sides.
        packages: Installed packages to repair, too.
        emulate: The number of cores that our side emulates; 0 for the host.
    """

    words: Sequence[str]
    module: str | None = None
    repair: bool = False
    packages: Sequence[str] = ()
    emulate: int = 0

    def side(self, python: str, *, original: bool) -> Run:
        """Returns the command that runs the program in an interpreter."""

        def run(folder: str, start: str | None, probe: Sequence[int] | None) -> None:
            given = {
                **dataclasses.asdict(self),
                "words": [word.replace(_SIDE, os.path.basename(folder)) for word in self.words],
                "original": original,
                "folder": folder,
                "start": start,
                "probe": probe,
                "package": str(PACKAGE_FOLDER),
                "here": str(_HERE),
                "libraries": [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")],
            }
            environment = {**os.environ, **_SAME_KERNELS}
            if original:
                # TensorFlow 2.15 has its own Keras; the package tf_keras belongs to this environment.
                environment["TF_USE_LEGACY_KERAS"] = "0"
            elif self.emulate:
                environment["TFX_TPU_TRAINER_EMULATED_REPLICAS"] = str(self.emulate)
            command = [python, str(_HERE / "side.py"), json.dumps(given)]
            with open(f"{folder}.log", "w", encoding="utf-8") as log:
                ended = subprocess.run(
                    command, stdout=log, stderr=log, env=environment, check=False
                )
            if ended.returncode or not os.path.exists(os.path.join(folder, "record.json")):
                name = "the original" if original else "tfx_tpu_trainer"
                raise SideFailedError(f"the program fails under {name}: {_reason(folder)}")

        return run


def _reason(folder: str) -> str:
    """Returns the line of a program's output that names its error; the last line if none does."""
    with open(f"{folder}.log", encoding="utf-8", errors="replace") as log:
        lines = [line.strip() for line in log if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    return ["", *lines, *errors][-1]


@dataclasses.dataclass(frozen=True)
class Proof:
    """The result of a proof.

    Attributes:
        verdict: `"equal"`, `"equal up to rounding"` or `"different"`.
        first: The difference that shows first.
        op: The first op whose output differs in that step.
        subjects: The subjects of the comparison.
        unheld: Inputs that could not be made equal.
        partly: Subjects that were compared only in part, and why.
        steps: Steps of all trainings, and those after which the variables were compared.
        versions: TensorFlow's, on either side.
    """

    verdict: str
    first: Difference | None
    op: FirstOp | None
    subjects: Sequence[Subject]
    unheld: Sequence[str]
    partly: Sequence[str]
    steps: tuple[int, int]
    versions: tuple[str, str]

    @property
    def holds(self) -> bool:
        """Whether both sides agree."""
        return self.verdict != DIFFERENT

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain values."""
        subjects = [
            {
                **dataclasses.asdict(each),
                "verdict": each.verdict,
                "ulps": min(each.ulps, sys.float_info.max),
            }
            for each in self.subjects
        ]
        return {"format": FORMAT, **dataclasses.asdict(self), "subjects": subjects}


def prove(program: Program, original: str, ours: str, folder: str) -> Proof:
    """Runs a program under the original and under this package, and once more if they differ.

    Args:
        program: The program.
        original: The interpreter with the original.
        ours: The interpreter with this package.
        folder: The folder of the records; it must not exist.

    Returns:
        The proof.

    Raises:
        SideFailedError: If the program failed on a side.
    """
    sides = program.side(original, original=True), program.side(ours, original=False)
    # A core's graph differs from the host's.
    return prove_runs(*sides, folder, same_graph=not program.emulate)


def prove_runs(original: Run, ours: Run, folder: str, *, same_graph: bool = True) -> Proof:
    """Compares two ways to run a program.

    Args:
        original: The one that comes first.
        ours: The other one, which begins with the same values.
        folder: The folder of the records; it must not exist.
        same_graph: Whether both run the same ops, so the first different one can be found. Defaults to `True`.

    Returns:
        The proof.

    Raises:
        SideFailedError: If the program failed on a side.
    """
    os.makedirs(folder)
    paths = [os.path.join(folder, name) for name in ("original", "ours")]
    original(paths[0], None, None)
    ours(paths[1], paths[0], None)
    records = Record(paths[0]), Record(paths[1])
    subjects = compare(*records)
    exports, partly = _compare_exports(
        *records, exact=all(each.verdict == EQUAL for each in subjects)
    )
    subjects += exports
    if not any(each.compared for each in subjects):
        raise SideFailedError(
            "the program makes no call of an estimator: give one that trains, evaluates or predicts"
        )
    first = first_difference(subjects)
    op = None
    if same_graph and first is not None and first.step and first.call is not None:
        probed = [f"{path}-probed" for path in paths]
        original(probed[0], paths[0], [first.call, first.step])
        ours(probed[1], paths[0], [first.call, first.step])
        op = find_first_op(Record(probed[0]), Record(probed[1]), first.call)
    trainings = records[1].of_kind("train")
    steps = sum(len(each["steps"]) for each in trainings)
    seen = sum(len(each["values"]) - 1 for each in trainings)
    if seen < steps:
        partly.append(
            f"variables: after {seen} of {steps} steps, and in the last checkpoint (they are large)"
        )
    unheld = sorted({*records[0].unheld(), *records[1].unheld()})
    versions = records[0].tensorflow, records[1].tensorflow
    return Proof(verdict_of(subjects), first, op, subjects, unheld, partly, (steps, seen), versions)


def _compare_exports(
    original: Record, ours: Record, *, exact: bool
) -> tuple[list[Subject], list[str]]:
    subjects, unasked = (Subject("exports' signatures"), Subject("exports' answers")), []
    pairs = list(zip(original.of_kind("export"), ours.of_kind("export")))
    if pairs:
        from tfx_tpu_trainer.workbench.prove.exports import ask
    for one, other in pairs:
        asked = [
            ask(os.path.join(record.folder, call["path"]))
            for record, call in ((original, one), (ours, other))
        ]
        compare_answers(*asked, exact=exact, subjects=subjects, call=one["number"])
        unasked += [f"not asked: {each}" for each in asked[0]["unasked"]]
    return list(subjects), unasked
