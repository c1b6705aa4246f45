"""How a program of a package runs: in its own process, edited in the way that its case says."""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.programs.fetching import REPOSITORY, package_folder
from tfx_tpu_trainer.workbench.prove.comparison import Difference
from tfx_tpu_trainer.workbench.prove.records import Entry

DRIVERS = pathlib.Path(__file__).parent / "drivers"
RUN_SECONDS = 400
# Twice on each side if something differs.
PROOF_SECONDS = 850
# Messages that protoc wrote before 3.19 are read by protobuf's Python code alone since protobuf 4.
OLD_MESSAGES = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
# What the command sets itself, and what would choose for it.
_OWN = (
    "TF_USE_LEGACY_KERAS",
    "TFX_TPU_TRAINER_EMULATE",
    "TFX_TPU_TRAINER_EMULATED_REPLICAS",
    "TF_CONFIG",
)


@dataclasses.dataclass(frozen=True)
class HandEdit:
    """A few lines of a package that are replaced.

    Attributes:
        file: The file, below the package's folder.
        search: The existing text, which occurs once.
        replace: The new text.
    """

    file: str
    search: str
    replace: str


def edited_copy(
    package: str, folder: pathlib.Path, *, fix: Sequence[str] = (), edits: Sequence[HandEdit] = ()
) -> pathlib.Path:
    """Copies a package's files and edits the copy.

    Args:
        package: Name and version.
        folder: The copy's folder; it must not exist.
        fix: The files and folders below it on which `tfx-tpu-trainer doctor --fix` runs.
        edits: Edits by hand after that.

    Returns:
        The folder of the copy.
    """
    shutil.copytree(package_folder(package), folder)
    for below in fix:
        doctor = [
            sys.executable,
            "-m",
            "tfx_tpu_trainer.workbench.cli.main",
            "doctor",
            "--fix",
            below,
        ]
        ended = _run(doctor, folder, {})
        # 1 means that something must be done by hand.
        assert ended.returncode in (0, 1), ended.stderr[-4000:]
    for edit in edits:
        path = folder / edit.file
        text = path.read_text(encoding="utf-8")
        assert text.count(edit.search) == 1, (
            f"{edit.file}: {edit.search!r}: {text.count(edit.search)} times"
        )
        path.write_text(text.replace(edit.search, edit.replace), encoding="utf-8")
    return folder


def run_compat(
    words: Sequence[str],
    *,
    packages: Sequence[str | pathlib.Path] = (),
    environment: Mapping[str, str] | None = None,
    cwd: pathlib.Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m tfx_tpu_trainer.compat WORDS`.

    Args:
        words: The command's.
        packages: Packages of the list by name and version, or folders.
        environment: More variables.
        cwd: The process's folder.

    Returns:
        The completed process with its output.
    """
    command = [sys.executable, "-m", "tfx_tpu_trainer.compat", *words]
    return _run(command, cwd, {**_path_of(packages), **(environment or {})})


def run_prove(
    words: Sequence[str],
    *,
    original: pathlib.Path,
    packages: Sequence[str | pathlib.Path],
    environment: Mapping[str, str],
    cwd: pathlib.Path,
) -> str:
    """Runs `tfx-tpu-trainer prove WORDS` with this interpreter as the original's; see `run_compat`.

    Returns:
        The verdict: `"equal"`, `"up to rounding, 1.5 ulps"`, `"different: step 3, loss"`,
        `"not reproducible: the original's second run ..."` or `"not run: the program fails ..."`.
    """
    file = cwd / "proof.json"
    command = [sys.executable, "-m", "tfx_tpu_trainer.workbench.cli.main", "prove"]
    command += ["--json", str(file), "--original", str(original), *words]
    ended = _run(command, cwd, {**_path_of(packages), **environment}, seconds=PROOF_SECONDS)
    if ended.returncode == 2:
        return "not run: " + ended.stderr.strip().splitlines()[-1].removeprefix("Error: ")
    assert ended.returncode in (0, 1), f"{ended.stdout[-1500:]}\n{ended.stderr[-5000:]}"
    proof = json.loads(file.read_text(encoding="utf-8"))
    if proof["verdict"] == "equal up to rounding":
        return f"up to rounding, {max(each['ulps'] for each in proof['subjects']):.3g} ulps"
    for each in proof["unheld"]:
        if each.startswith("the original's second run differs"):
            return f"not reproducible: {each}"
    if (first := proof["first"]) is None:
        return str(proof["verdict"])
    difference = Difference(**{**first, "entry": Entry(*first["entry"])})
    return f"{proof['verdict']}: {difference.title}"


def _path_of(packages: Sequence[str | pathlib.Path]) -> dict[str, str]:
    folders = [
        package_folder(package) if isinstance(package, str) else package for package in packages
    ]
    return {"PYTHONPATH": os.pathsep.join(map(str, [REPOSITORY, *folders]))}


def _run(
    command: Sequence[str],
    cwd: pathlib.Path | None,
    environment: Mapping[str, str],
    *,
    seconds: int = RUN_SECONDS,
) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in _OWN}
    return subprocess.run(
        command,
        cwd=cwd,
        env={**inherited, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
