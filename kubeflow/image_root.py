"""Runs all steps of a Dockerfile in root file systems of the image's own Debian, where there is no Docker engine.

    python kubeflow/image_root.py kubeflow/Dockerfile --folder /var/tmp/image --python /usr/local

Each stage gets a file system that debootstrap makes, of the release that the python image is named for, with the
Python of --python in /usr/local. RUN runs there as root, apt-get too; COPY copies from the checkout or from another
stage; USER is who the last program runs as. What comes from images that are no python image is left out, and said.
Needs root, debootstrap, a Debian mirror and a package index.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parent))

from image_steps import CONTEXT, StepError, read_instructions

# The listing keeps its lines: that is what the character says to click.
HELP = __doc__.replace("\n\n    ", "\n\n\b\n    ")
# What the python image's Debian has beside the smallest one, and what its Python's modules are linked with.
PACKAGES = ("ca-certificates", "netbase", "tzdata", "libbz2-1.0", "liblzma5", "libsqlite3-0")
PACKAGES_OF = {
    "bookworm": ("libffi8", "libssl3", "libncursesw6", "libreadline8", "zlib1g", "libuuid1"),
    "trixie": ("libffi8", "libssl3t64", "libncursesw6", "libreadline8t64", "zlib1g", "libuuid1"),
}
INSTALLERS = ("pip", "setuptools", "wheel", "pkg_resources", "_distutils_hack", "distutils-")
# Where an image's Python comes from and how it is reached is the builder's matter, as with `docker build`.
OF_THE_BUILDER = re.compile(
    r"PIP_(INDEX_URL|EXTRA_INDEX_URL|CERT|DEFAULT_TIMEOUT)|UV_(DEFAULT_INDEX|INDEX_URL)|SSL_CERT_FILE|"
    r"(HTTPS?|NO|ALL)_PROXY|(https?|no|all)_proxy"
)
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"


class Root:
    """A root file system.

    Args:
        folder: Where it lies.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, inside: str) -> Path:
        """The place of an absolute path of the image, outside of it."""
        return self.folder / inside.lstrip("/")

    def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        workdir: str = "/",
        user: str = "0:0",
    ) -> int:
        """Runs a command in it, with processes and mounts of its own; returns its exit code."""
        # Mounts are seen by this process only and end with it.
        prepare = (
            'set -e; mount -t proc proc "$1/proc"; mount --rbind /dev "$1/dev"; '
            '[ ! -e /etc/resolv.conf ] || { touch "$1/etc/resolv.conf"; '
            'mount --bind "$(readlink -f /etc/resolv.conf)" "$1/etc/resolv.conf"; }; '
            f'[ ! -e "$1/{CERTIFICATES}" ] || mount --bind /{CERTIFICATES} "$1/{CERTIFICATES}"; '
            'root="$1" user="$2" workdir="$3"; shift 3; '
            'exec chroot --userspec="$user" "$root" /bin/sh -c \'cd "$0" && exec "$@"\' "$workdir" "$@"'
        )
        words = ["unshare", "--mount", "--pid", "--fork", "/bin/sh", "-c", prepare, "sh"]
        return subprocess.run(
            [*words, str(self.folder), user, workdir, *command], env=dict(environment), check=False
        ).returncode


def make_base(folder: Path, release: str, python: Path) -> Root:
    """Makes what stands for a python image: its Debian, with a Python in /usr/local.

    Raises:
        StepError: If it cannot be made.
    """
    packages = ",".join((*PACKAGES, *PACKAGES_OF[release]))
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", release, str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise StepError(f"debootstrap failed: {(ended.stdout + ended.stderr)[-1000:]}")
    root = Root(folder)
    shutil.copytree(
        python, root.path("/usr/local"), symlinks=True, dirs_exist_ok=True, ignore=_of_no_image
    )
    for name in ("python", "python3"):
        link = root.path(f"/usr/local/bin/{name}")
        link.unlink(missing_ok=True)
        link.symlink_to(_name_of(python))
    # Its library may be found by a path that is not here.
    if root.run(["ldconfig"], environment=_IMAGE_ENVIRONMENT):
        raise StepError("ldconfig failed")
    return root


_IMAGE_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/root",
}


def _name_of(python: Path) -> str:
    return next(
        path.name for path in (python / "bin").iterdir() if re.fullmatch(r"python3\.\d+", path.name)
    )


def _of_no_image(folder: str, names: list[str]) -> list[str]:
    if os.path.basename(folder) == "site-packages":
        return [name for name in names if not name.startswith(INSTALLERS)]
    return [name for name in names if name in ("test", "idlelib", "tkinter", "__pycache__")]


class Image:
    """The stages of a Dockerfile, each in a root file system of its own.

    Args:
        folder: Where they lie; it must not be there yet.
        python: The prefix of a Python of the image's version.

    Attributes:
        left_out: What was left out, and of which image.
        steps: How many steps were run.
    """

    def __init__(self, folder: Path, *, python: Path) -> None:
        self.left_out: list[str] = []
        self.steps = 0
        self._given: Mapping[str, str] = {}
        self._folder, self._python = folder, python
        self._base: Root | None = None
        # By name; `None` for one of an image that is not here.
        self._stages: dict[str, Root | None] = {}
        self._images: dict[str, str] = {}
        self._root: Root | None = None
        self._global: dict[str, str] = {}
        self._arguments = self._global
        self._environment: dict[str, str] = {}
        self._workdir, self._user = "/", "0:0"
        self._actions: Mapping[str, Callable[[str], None]] = {
            "FROM": self._begin_stage,
            "ARG": self._set_argument,
            "ENV": self._set_variables,
            "WORKDIR": self._change_folder,
            "COPY": self._copy,
            "RUN": self._run,
            "USER": self._change_user,
            "ENTRYPOINT": self._check_entry_point,
        }
        folder.mkdir(parents=True)

    def build(self, dockerfile: Path, arguments: Mapping[str, str]) -> None:
        """Runs all steps.

        Args:
            dockerfile: The file.
            arguments: Values of ARGs, as `--build-arg` gives them.

        Raises:
            StepError: If one fails; names its line.
        """
        self._given = arguments
        for step in read_instructions(dockerfile):
            click.echo(f"{step.name} {step.text}")
            try:
                self._actions[step.name](step.text)
            except StepError as error:
                raise StepError(f"{dockerfile}:{step.line}: {error}") from None
            self.steps += 1

    def run_as_user(self, command: Sequence[str]) -> int:
        """Runs a command in the last stage as its USER; returns its exit code."""
        if self._root is None:
            raise StepError("the image of the last stage is not available")
        return self._root.run(
            command, environment=self._environment, workdir=self._workdir, user=self._user
        )

    def _begin_stage(self, text: str) -> None:
        self._arguments = self._global
        image, _, name = self._resolved(text).partition(" AS ")
        self._arguments = {}
        self._environment = dict(_IMAGE_ENVIRONMENT)
        self._workdir, self._user = "/", "0:0"
        wanted = re.fullmatch(r"python:(\d+\.\d+)-slim-(\w+)", image)
        name = name or f"stage-{len(self._stages)}"
        self._images[name] = image
        self._root = None
        if wanted:
            if _name_of(self._python) != f"python{wanted[1]}":
                raise StepError(
                    f"the image uses Python {wanted[1]}; give the prefix of such a Python with "
                    "--python"
                )
            if self._base is None:
                self._base = make_base(self._folder / "base", wanted[2], self._python)
            target = self._folder / name
            # Links: a file that a step replaces is another one, and 3 GB need not lie here twice.
            _call("cp", "--archive", "--link", str(self._base.folder), str(target))
            self._root = Root(target)
        else:
            self.left_out.append(f"FROM {image}")
        self._stages[name] = self._root

    def _set_argument(self, text: str) -> None:
        name, has_default, value = text.partition("=")
        if name in self._given:
            self._arguments[name] = self._given[name]
        elif has_default:
            self._arguments[name] = value
        elif name in self._global:
            self._arguments[name] = self._global[name]

    def _set_variables(self, text: str) -> None:
        new = dict(word.partition("=")[::2] for word in shlex.split(text))
        self._environment |= {name: self._resolved(value) for name, value in new.items()}

    def _change_folder(self, text: str) -> None:
        self._workdir = os.path.join(self._workdir, self._resolved(text))
        self._here().path(self._workdir).mkdir(parents=True, exist_ok=True)

    def _change_user(self, text: str) -> None:
        self._user = self._resolved(text)

    def _check_entry_point(self, text: str) -> None:
        (program,) = json.loads(text)
        if not self._here().path(program).exists():
            self.left_out.append(f"ENTRYPOINT {program}")

    def _copy(self, text: str) -> None:
        words = [self._resolved(word) for word in shlex.split(text)]
        options = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
        *sources, destination = (word for word in words if not word.startswith("--"))
        stage = options.get("from")
        if stage is not None and self._stages.get(stage) is None:
            self.left_out.append(f"COPY from {self._images.get(stage, stage)}")
            return
        target = self._here().path(os.path.join(self._workdir, destination))
        if len(sources) > 1 or destination.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
        for source in sources:
            path = CONTEXT / source if stage is None else self._stages[stage].path(source)
            if not path.exists():
                raise StepError(f"{source} is not in {CONTEXT if stage is None else stage}")
            if path.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                link = ["--link"] if stage is not None else []
                _call("cp", "--archive", *link, f"{path}/.", str(target))
                if stage is None:
                    _call("chown", "--recursive", "0:0", str(target))
            else:
                _call("cp", "--preserve=mode", str(path), str(target))
        if "chmod" in options:
            _call("chmod", "--recursive", options["chmod"], str(target))

    def _run(self, text: str) -> None:
        command = re.sub(r"^(--mount=\S+ )+", "", text)
        builders = {
            key: value for key, value in os.environ.items() if OF_THE_BUILDER.fullmatch(key)
        }
        environment = {**builders, **self._environment, **self._arguments}
        code = self._here().run(
            ["/bin/sh", "-c", command],
            environment=environment,
            workdir=self._workdir,
            user=self._user,
        )
        if code:
            raise StepError(f"ended with exit code {code}: {command}")

    def _here(self) -> Root:
        if self._root is None:
            raise StepError("the stage's image is not available")
        return self._root

    def _resolved(self, text: str) -> str:
        known = {**self._arguments, **self._environment}

        def value(match: re.Match[str]) -> str:
            if match[1] not in known:
                raise StepError(f"{match[0]} is not set in this stage")
            return known[match[1]]

        return re.sub(r"\$\{(\w+)\}", value, text)


def _call(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise StepError(f"{command[0]} failed: {ended.stderr[-500:]}")


def lacking() -> str | None:
    """What this machine lacks, as one line; `None` where all is there."""
    if os.geteuid():
        return "only root can create and enter root file systems: run this as root"
    for tool, package in (("debootstrap", "debootstrap"), ("unshare", "util-linux")):
        if shutil.which(tool) is None:
            return f"{tool} is missing: on Debian and Ubuntu, install the package {package}"
    return None


@click.command(help=HELP)
@click.argument("dockerfile", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--folder",
    required=True,
    type=click.Path(path_type=Path),
    help="The new folder; it must not exist yet.",
)
@click.option(
    "--python",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Prefix of a Python of the image's version, such as /usr/local.",
)
@click.option("--build-arg", "arguments", multiple=True, metavar="NAME=VALUE", help="As Docker's.")
@click.option(
    "--then", "program", help="A command that runs as the image's user in its last stage."
)
def main(
    dockerfile: Path, folder: Path, python: Path, arguments: tuple[str, ...], program: str | None
) -> None:
    problem = lacking()
    if problem:
        raise click.ClickException(problem)
    if folder.exists():
        raise click.ClickException(f"{folder} already exists; give a new folder")
    image = Image(folder.resolve(), python=python)
    try:
        image.build(dockerfile, dict(word.split("=", 1) for word in arguments))
        if program:
            code = image.run_as_user(shlex.split(program))
            if code:
                raise StepError(f"{program} ended with exit code {code}")
    except StepError as error:
        raise click.ClickException(str(error)) from None
    for what in image.left_out:
        click.echo(f"left out: {what}")
    click.echo(f"{dockerfile}: {image.steps} steps ran in {folder}")


if __name__ == "__main__":
    main()
