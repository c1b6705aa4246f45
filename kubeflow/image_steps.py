"""Runs the install steps of a Dockerfile in a fresh folder, where there is no Docker engine.

    python kubeflow/image_steps.py kubeflow/Dockerfile --folder /tmp/image

The steps are read from the Dockerfile itself: COPY copies from the checkout, RUN runs in /bin/sh with the values of ARG
and ENV. Arguments whose value is a folder, such as APP=/app, point into the fresh folder instead. What a folder is not
enough for is left out, and said: apt-get, files of other images, and the steps named with --without.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import click

# The listing keeps its lines: that is what the character says to click.
HELP = __doc__.replace("\n\n    ", "\n\n\b\n    ")
CONTEXT = Path(__file__).resolve().parents[1]
# The Python of an image to the line of TFX that has it.
LINES = {"3.10": "1.16", "3.12": "1.21"}
# Of another Python or environment than the image's.
FOREIGN_VARIABLES = re.compile(
    r"(PYTHON|VIRTUAL_ENV|CONDA_|UV_(PYTHON|SYSTEM|PROJECT)|TF_|PIP_(USER|TARGET|PREFIX)).*"
)


class StepError(Exception):
    """A step that cannot be run, or has failed."""


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction of a Dockerfile, its continued lines joined.

    Attributes:
        line: Number of its first line.
        name: Its name, such as `RUN`.
        text: What follows the name.
    """

    line: int
    name: str
    text: str


def read_instructions(dockerfile: Path) -> list[Instruction]:
    """Reads a Dockerfile."""
    found: list[Instruction] = []
    pending, first = "", 0
    for number, line in enumerate(dockerfile.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        first = first or number
        pending += line.removesuffix("\\")
        if not line.endswith("\\"):
            name, _, text = pending.strip().partition(" ")
            found.append(Instruction(first, name.upper(), " ".join(text.split())))
            pending, first = "", 0
    if pending:
        raise StepError(f"{dockerfile}:{first}: the last line ends with a backslash")
    return found


class FreshFolder:
    """A folder that stands for the image: all stages share it, so a copy between them is already there.

    Args:
        folder: The folder, which must not be there yet.
        without: Words; a RUN that has one of them is left out.
    """

    def __init__(self, folder: Path, *, without: tuple[str, ...] = ()) -> None:
        self._root = folder
        self._without = without
        self._variables: dict[str, str] = {}
        self._global: dict[str, str] = {}
        self._images: dict[str, str] = {}
        self._workdir = folder
        self._actions: Mapping[str, Callable[[str], None]] = {
            "FROM": self._begin_stage,
            "ARG": self._set_argument,
            "ENV": self._set_variables,
            "WORKDIR": self._change_folder,
            "COPY": self._copy,
            "RUN": self._run,
            "ENTRYPOINT": lambda text: None,
            "USER": lambda text: None,
        }
        self.left_out: list[str] = []
        folder.mkdir(parents=True)
        self._tools = _python_on_path(folder / "tools")

    def run(self, dockerfile: Path) -> None:
        """Runs all steps.

        Raises:
            StepError: If one fails or is of a kind that is not known here; names its line.
        """
        for step in read_instructions(dockerfile):
            try:
                if step.name not in self._actions:
                    raise StepError(f"{step.name} is not one of {', '.join(self._actions)}")
                self._actions[step.name](step.text)
            except StepError as error:
                raise StepError(f"{dockerfile}:{step.line}: {error}") from None

    def _begin_stage(self, text: str) -> None:
        if not self._images:
            self._global = self._variables
        self._variables = self._global
        image, _, stage = self._resolved(text).partition(" AS ")
        self._images[stage] = image
        wanted = re.match(r"python:(\d+\.\d+)", image)
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        if wanted and wanted[1] != here:
            line = LINES.get(wanted[1])
            example = f", such as that of make setup LINE={line}" if line else ""
            raise StepError(
                f"the image and its lock file need Python {wanted[1]}, but this is {here}; run "
                f"this with a Python {wanted[1]}{example}"
            )
        # The image's Python is the one that runs this; a stage begins without the ARGs of the one before.
        self._variables = {"PATH": f"{self._tools}:{os.environ['PATH']}"}
        self._workdir = self._root

    def _set_argument(self, text: str) -> None:
        name, _, value = text.partition("=")
        self._variables[name] = self._inside(value) if value.startswith("/") else value

    def _set_variables(self, text: str) -> None:
        # Values see the variables as they were before the instruction.
        new = dict(word.partition("=")[::2] for word in shlex.split(text))
        self._variables |= {name: self._resolved(value) for name, value in new.items()}

    def _change_folder(self, text: str) -> None:
        self._workdir = Path(self._resolved(text))
        self._workdir.mkdir(parents=True, exist_ok=True)

    def _copy(self, text: str) -> None:
        *options, destination = (self._resolved(word) for word in shlex.split(text))
        sources = [word for word in options if not word.startswith("--")]
        stage = next((word.removeprefix("--from=") for word in options if "--from=" in word), None)
        image = self._images.get(stage or "", stage or "")
        if stage is None:
            for source in sources:
                self._copy_in(source, destination, several=len(sources) > 1)
        elif "/" in image:
            self._leave_out(f"COPY from the image {image}")
        elif sources != [destination] or not Path(destination).exists():
            raise StepError(
                f"COPY --from={stage} {sources} {destination}: the paths must be equal and exist"
            )

    def _copy_in(self, source: str, destination: str, *, several: bool) -> None:
        path, target = CONTEXT / source, self._workdir / destination
        if not path.exists():
            raise StepError(f"{source} is not in {CONTEXT}")
        if path.is_dir():
            shutil.copytree(
                path, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
            )
            return
        if several or destination.endswith(("/", ".")):
            target.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)

    def _run(self, text: str) -> None:
        command = re.sub(r"^(--mount=\S+ )+", "", text)
        reason = "apt-get" if command.startswith("apt-get") else None
        reason = reason or next((word for word in self._without if word in command), None)
        if reason:
            self._leave_out(f"RUN with {reason}")
            return
        click.echo(f"RUN {command}")
        ended = subprocess.run(
            ["/bin/sh", "-c", command], cwd=self._workdir, env=self._environment(), check=False
        )
        if ended.returncode:
            raise StepError(f"ended with exit code {ended.returncode}: {command}")

    def _leave_out(self, what: str) -> None:
        self.left_out.append(what)
        click.echo(f"left out: {what}")

    def _environment(self) -> Mapping[str, str]:
        kept = {key: text for key, text in os.environ.items() if not FOREIGN_VARIABLES.match(key)}
        return {**kept, **self._variables}

    def _inside(self, path: str) -> str:
        return str(self._root / path.lstrip("/"))

    def _resolved(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            if match[1] not in self._variables:
                raise StepError(f"{match[0]} is not set in this stage")
            return self._variables[match[1]]

        return re.sub(r"\$\{(\w+)\}", value, text)


def _python_on_path(folder: Path) -> Path:
    """Makes a folder in which `python` is the Python that runs this, not that of its virtual environment."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    original = Path(os.path.realpath(sys.executable))
    if not (original.parents[1] / "pyvenv.cfg").exists():
        program = programs / "python"
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(str(original))} "$@"\n', encoding="utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return programs
    # An environment made with --copies, whose program may be more than a copy: scripts/private_glibc.sh patches it to
    # a newer glibc. Beside the libraries of the Python that it came from it is outside of any environment.
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(original, programs / name)
    for link in ("python", "python3"):
        (programs / link).symlink_to(name)
    for part in ("lib", "lib64", "include"):
        if (Path(sys.base_prefix) / part).exists():
            (folder / part).symlink_to(Path(sys.base_prefix) / part)
    return programs


@click.command(help=HELP)
@click.argument("dockerfile", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--folder",
    required=True,
    type=click.Path(path_type=Path),
    help="The new folder; it must not exist yet.",
)
@click.option("--without", multiple=True, help="Leaves out the RUN steps with this word.")
def main(dockerfile: Path, folder: Path, without: tuple[str, ...]) -> None:
    if folder.exists():
        raise click.ClickException(f"{folder} already exists; give a new folder")
    image = FreshFolder(folder.resolve(), without=without)
    try:
        image.run(dockerfile)
    except StepError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{dockerfile}: all steps ran in {folder}, except {len(image.left_out)} left out")


if __name__ == "__main__":
    main()
