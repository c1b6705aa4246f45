"""Whether an image holds what a pipeline runs.

This can only be checked inside a container. If a Docker engine and the image are available, it is checked there;
otherwise, run `check_command` where they are.
"""

from __future__ import annotations

import pathlib
import shlex
import shutil
import subprocess
from collections.abc import Iterable

from tfx_tpu_trainer.components.clusters import _find_modules
from tfx_tpu_trainer.components.clusters._checks import JobError

SECONDS = 6.0
"""Seconds allowed for checking one image."""

PROGRAM = pathlib.Path(_find_modules.__file__)
"""The program that an image's Python runs."""


def check_command(image: str, modules: Iterable[str], *, pull: str = "missing") -> list[str]:
    """Returns the command that looks for modules in an image; its input is `PROGRAM`."""
    options = ["--rm", "--interactive", f"--pull={pull}", "--entrypoint", "python"]
    return ["docker", "run", *options, image, "-", *modules]


def check_image_holds(
    image: str, modules: Iterable[str], *, seconds: float = SECONDS
) -> str | None:
    """Looks for modules in an image, if it is at hand.

    Args:
        image: The image.
        modules: Import paths, and packages with the line that they must be of, such as `tfx==1.16`.
        seconds: How long it may take.

    Returns:
        `None`, or where the image could not be looked into, a line that says why and what to run.

    Raises:
        JobError: If the image lacks a module, or has a package of another line.
    """
    modules = tuple(modules)
    why_not = _look_into(image, modules, seconds)
    if why_not is None:
        return None
    command = shlex.join(check_command(image, modules))
    return (
        f"image {image!r} was not checked ({why_not}); check it with: {command} < "
        f"{shlex.quote(str(PROGRAM))}"
    )


def _look_into(image: str, modules: Iterable[str], seconds: float) -> str | None:
    """Looks into an image; gives the reason where that is not possible."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    try:
        run = subprocess.run(
            check_command(image, modules, pull="never"),
            input=PROGRAM.read_text(encoding="utf-8"),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"docker took longer than {seconds:.0f} seconds"
    said = run.stderr.strip().splitlines() or ["it printed nothing"]
    if run.returncode == 0:
        return None
    # Of docker itself: no daemon, or no such image on this machine.
    if run.returncode == 125 or "daemon" in said[0]:
        return said[0].removeprefix("docker: ").rstrip(".")
    fix = (
        "name an image of that line, or compile with the other one's environment (make setup LINE=...)"
        if "compiled with" in said[-1]
        else "build it with tfx_tpu_trainer installed and your pipeline's code on its PYTHONPATH"
    )
    raise JobError(f"image={image!r} can't run this pipeline: {said[-1]}; {fix}")
