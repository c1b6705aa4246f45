"""Builds the source distribution and, from it, the wheel; tries the wheel in a fresh environment.

`make dist` runs it. The environment has the light install: the package with the packages of base.lock, by their hashes.
Its longer test, with the package's own tests, is tests/setup/test_light_install.py.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import tfx_tpu_trainer
from tests.listings import OLD_PROGRAM, README, blocks_of, listings_of

ROOT = Path(__file__).parents[1]
PACKAGE = "tfx_tpu_trainer"
# Data files next to the code.
DATA = (".j2", "py.typed")


def missing_or_foreign(names: Iterable[str], root: Path) -> Iterator[str]:
    """Yields a line for each file that a wheel lacks, or should not have."""
    held = set(names)
    for path in sorted((root / PACKAGE).rglob("*")):
        name = path.relative_to(root).as_posix()
        is_template = "/templates/" in name and "__pycache__" not in name and path.is_file()
        if (path.suffix == ".py" or name.endswith(DATA) or is_template) and name not in held:
            yield f"the wheel lacks {name}"
    info = f"{PACKAGE}-{tfx_tpu_trainer.__version__}.dist-info/"
    for name in sorted(held):
        if not name.startswith((f"{PACKAGE}/", info)):
            yield f"the wheel has {name}, which pip would install next to other packages"


def _run(*command: str | Path, cwd: Path = ROOT) -> str:
    # This process's environment must not choose Keras or packages for the new one.
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TF_", "VIRTUAL_ENV"))
    }
    ended = subprocess.run(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True)
    if ended.returncode:
        sys.exit(
            f"{' '.join(map(str, command))} ended with exit code {ended.returncode}\n{ended.stdout}"
        )
    return ended.stdout


def build(folder: Path) -> Path:
    """Builds both distributions."""
    shutil.rmtree(folder, ignore_errors=True)
    _run(
        sys.executable, "-m", "uv", "build", "--quiet", "--no-build-isolation", "--out-dir", folder
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        faults = list(missing_or_foreign(archive.namelist(), ROOT))
    if faults:
        sys.exit("\n".join(faults))
    return wheel


def try_out(wheel: Path, lock: Path) -> None:
    """Installs a wheel in a fresh environment, and runs the README's program and the commands there."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
        python, command = folder / "venv/bin/python", folder / "venv/bin/tfx-tpu-trainer"
        install = (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python)
        _run(*install, "--require-hashes", "-r", lock)
        _run(*install, "--no-deps", wheel)
        (program,), (old_program,) = listings_of(README), listings_of(OLD_PROGRAM)
        (folder / "train.py").write_text(old_program, encoding="utf-8")
        tried = {
            "the README's program": (
                _run(python, "-c", program, cwd=folder),
                *blocks_of(README, "text"),
            ),
            "--version": (
                _run(command, "--version"),
                f"tfx-tpu-trainer, version {tfx_tpu_trainer.__version__}\n",
            ),
            "the old program of the docs": (
                _run(
                    python,
                    "-m",
                    f"{PACKAGE}.compat",
                    "--emulate",
                    "2",
                    "--repair",
                    "train.py",
                    cwd=folder,
                ),
                "trained 20 steps\n",
            ),
        }
        for what, (printed, expected) in tried.items():
            if printed != expected:
                sys.exit(
                    f"{what} printed {printed!r} with the installed wheel; expected {expected!r}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    line = ROOT / "requirements" / ("." if sys.version_info < (3, 11) else "tfx-1.21")
    wheel = build(given.folder)
    try_out(wheel, line / "base.lock")
    for path in sorted(given.folder.iterdir()):
        print(f"{path}  {path.stat().st_size / 1e6:.2f} MB")
    print(f"{tfx_tpu_trainer.__version__}: installed in a fresh environment, and tried")


if __name__ == "__main__":
    main()
