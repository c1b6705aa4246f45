"""The Dockerfiles: linted, true to the locks, and their install steps run in a fresh folder."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement

from tests.kubeflow_folder.scripts import FOLDER, ROOT, load

image_steps = load("image_steps")


@dataclasses.dataclass(frozen=True)
class Image:
    """An image of the folder.

    Attributes:
        dockerfile: Its file.
        line: Its line of TFX.
        lock: What it installs, in requirements/.
        tested: What the line's tests run on, in requirements/.
        debian: The release that it is made of.
    """

    dockerfile: Path
    line: str
    lock: str
    tested: str
    debian: str

    @property
    def python(self) -> str:
        """The Python that its line is tested on most."""
        text = (ROOT / "scripts" / "pick_line.sh").read_text(encoding="utf-8")
        name = f"PYTHONS_OF_{self.line.replace('.', '_')}"
        return re.search(rf"^{name}=\(([0-9.]+)", text, re.MULTILINE)[1]

    @property
    def beam_worker(self) -> str:
        """Beam's own image of the same Python and Beam."""
        return f"apache/beam_python{self.python}_sdk:{_versions(self.lock)['apache-beam']}"

    @property
    def is_of_this_tfx(self) -> bool:
        return _versions(self.lock)["tfx"] == importlib.metadata.version("tfx")


OLDER = Image(FOLDER / "Dockerfile", "1.16", "image.lock", "dev.lock", "bookworm")
LATEST = Image(
    FOLDER / "Dockerfile.latest", "1.21", "tfx-1.21/image.lock", "tfx-1.21/dev.lock", "trixie"
)
TPU = Image(FOLDER / "Dockerfile.tpu", "1.16", "tpu-image.lock", "dev.lock", "bookworm")
HADOLINT = Path(sys.executable).with_name("hadolint")
# The image of the Python that runs this.
HERE = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"
LEFT_OUT_OF_ALL = ["RUN with apt-get"]

every = pytest.mark.parametrize(
    "image", [OLDER, LATEST, TPU], ids=lambda image: image.dockerfile.name
)
of_components = pytest.mark.parametrize(
    "image", [OLDER, LATEST], ids=lambda image: image.dockerfile.name
)


def _texts(image: Image, name: str) -> list[str]:
    steps = image_steps.read_instructions(image.dockerfile)
    return [step.text for step in steps if step.name == name]


def _pins(lock: str) -> set[str]:
    """Each version of a lock with its marker, such as `kfp==2.16.1 ; python_full_version < '3.12'`."""
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z0-9._-]+(?:\[[^]]*\])?==.+) \\$", text, re.MULTILINE))


def _installed(lock: str, python: str) -> set[str]:
    """What a lock installs on CPython: its markers may say more of other interpreters than another lock's."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
    }
    pins = [Requirement(pin) for pin in _pins(lock)]
    return {
        f"{pin.name}{pin.specifier}"
        for pin in pins
        if pin.marker is None or pin.marker.evaluate(environment)
    }


def _versions(lock: str) -> dict[str, str]:
    return dict(re.match(r"([^[=]+).*?==(\S+)", pin).groups() for pin in _pins(lock))


@every
def test_hadolint_finds_nothing(image: Image) -> None:
    result = subprocess.run([HADOLINT, image.dockerfile], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, ""), result.stdout


def test_hadolint_would_find_something(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM python\nRUN pip install tfx\n", encoding="utf-8")
    result = subprocess.run([HADOLINT, bad], capture_output=True, text=True)
    assert result.returncode != 0
    assert "DL3006" in result.stdout


@every
def test_what_is_copied_is_there_and_reaches_docker(image: Image) -> None:
    let_through = {
        path
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
        for path in ROOT.glob(line.removeprefix("!"))
    }
    copied = [
        source
        for text in _texts(image, "COPY")
        if "--from=" not in text
        for source in text.split()[:-1]
    ]
    assert "pipelines" in copied
    for source in copied:
        assert (ROOT / source).exists()
        assert ROOT / source in let_through


@every
def test_everything_is_installed_with_hashes_for_the_locks_python(image: Image) -> None:
    assert f"PYTHON_IMAGE=python:{image.python}-slim-{image.debian}" in _texts(image, "ARG")
    stages = [text for text in _texts(image, "FROM") if "BEAM" not in text]
    assert stages == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]
    # The line's lock comes to lie where the step that installs it looks.
    assert f"requirements/bootstrap.lock requirements/{image.lock} requirements/" in _texts(
        image, "COPY"
    )
    installs = [text for text in _texts(image, "RUN") if "pip install" in text]
    locks = [word for text in installs for word in re.findall(r"-r (\S+)", text)]
    of_driver = ["libtpu.lock"] if image is TPU else []
    assert locks == [
        "requirements/bootstrap.lock",
        f"requirements/{Path(image.lock).name}",
        *of_driver,
    ]
    # All but this package itself.
    without = [text for text in installs if "--require-hashes" not in text]
    assert [text.split()[-1] for text in without] == ["."]
    assert len(installs) - len(without) == len(locks)


def test_the_newest_lines_image_has_the_debian_whose_libraries_its_tests_run_on() -> None:
    script = (ROOT / "scripts" / "private_glibc.sh").read_text(encoding="utf-8")
    assert re.search(r"^GLIBC_SUITE=(\w+)$", script, re.MULTILINE)[1] == LATEST.debian


@of_components
def test_the_image_has_the_versions_that_are_tested(image: Image) -> None:
    for python in ("3.10", "3.11", "3.12", "3.13"):
        assert _installed(image.lock, python) <= _installed(image.tested, python)
    versions = _versions(image.lock)
    assert versions["tfx"].startswith(f"{image.line}.")
    # What a component's command imports, beside the package; the last two are the Tuner's.
    commands = {"tfx", "tensorflow", "kfp-pipeline-spec", "pyyaml", "keras-tuner", "matplotlib"}
    assert commands <= versions.keys()


def test_a_locks_pin_keeps_its_marker() -> None:
    assert any(pin.endswith(" ; python_full_version < '3.12'") for pin in _pins(LATEST.lock))


@of_components
def test_beams_workers_have_the_beam_of_the_lock(image: Image) -> None:
    assert f"BEAM_IMAGE={image.beam_worker}" in _texts(image, "ARG")
    assert "${BEAM_IMAGE} AS beam" in _texts(image, "FROM")
    (boot,) = [text for text in _texts(image, "COPY") if text.startswith("--from=beam ")]
    assert set(_texts(image, "ENTRYPOINT")) == {f'["{boot.split()[-1]}/boot"]'}


@every
def test_containers_run_as_a_user_that_is_not_root_and_that_kubernetes_can_tell(
    image: Image,
) -> None:
    steps = image_steps.read_instructions(image.dockerfile)
    last_stage = max(number for number, step in enumerate(steps) if step.name == "FROM")
    of_container = [(step.name, step.text) for step in steps[last_stage:]]
    assert ("ARG", "RUN_AS=10001:10001") in of_container
    # After everything that writes into the image; what Python and its packages cache goes to /tmp.
    assert [name for name, _ in of_container[of_container.index(("USER", "${RUN_AS}")) :]] in (
        ["USER"],
        ["USER", "ENTRYPOINT"],
    )
    assert ("ENV", "HOME=/tmp USER=trainer") in of_container
    # What is copied has the modes of the checkout, or of another image.
    (made_readable,) = [
        text for name, text in of_container if name == "RUN" and text.startswith("chmod -R a+rX ")
    ]
    for text in [text for name, text in of_container if name == "COPY"]:
        copied = text.split()[-1].rstrip("/")
        of_build = text.startswith("--from=build ")
        assert of_build or "--chmod=755" in text or f" {copied} " in made_readable


def _driver_step(tmp_path: Path, checksum: str | None) -> subprocess.CompletedProcess[str]:
    """Runs the step that installs the TPU's driver, with a page of its own and a small wheel there."""
    (step,) = [text for text in _texts(TPU, "RUN") if "libtpu" in text]
    app = tmp_path / "app"
    (app / "venv" / "bin").mkdir(parents=True)
    program = app / "venv" / "bin" / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@" --target {tmp_path}/installed\n')
    program.chmod(0o755)
    given = {} if checksum is None else {"LIBTPU_SHA256": checksum}
    return subprocess.run(
        ["/bin/sh", "-c", step],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "APP": str(app), "LIBTPU_PAGE": str(tmp_path), **given},
        capture_output=True,
        text=True,
    )


def make_driver(folder: Path) -> tuple[Path, str]:
    """Makes a small wheel of the driver's name; returns it with its hash."""
    wheel = folder / "libtpu-2.16.0rc0-py3-none-any.whl"
    info = "libtpu-2.16.0rc0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("libtpu/__init__.py", "")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: libtpu\nVersion: 2.16.0rc0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel, hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_the_tpus_driver_is_installed_with_the_hash_that_is_given(tmp_path: Path) -> None:
    _, checksum = make_driver(tmp_path)
    ended = _driver_step(tmp_path, checksum)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "installed" / "libtpu").exists()


@pytest.mark.parametrize(
    ("checksum", "says"),
    [(None, "give it with --build-arg"), ("0" * 64, "DO NOT MATCH THE HASHES")],
)
def test_it_is_not_installed_without_its_hash_or_with_another(
    tmp_path: Path, checksum, says
) -> None:
    make_driver(tmp_path)
    ended = _driver_step(tmp_path, checksum)
    assert ended.returncode != 0
    assert says in ended.stderr
    assert not (tmp_path / "installed").exists()


def _without_versions(image: Image) -> str:
    """The text of its file from the first instruction on."""
    text = image.dockerfile.read_text(encoding="utf-8").partition("\nARG ")[2]
    base = f"python:{image.python}-slim-{image.debian}"
    for own in (base, image.beam_worker, f"requirements/{image.lock} requirements/"):
        assert own in text
        text = text.replace(own, "")
    return re.sub(r"g\+\+=\S+", "g++", text)


def test_the_two_lines_images_differ_by_their_versions_alone() -> None:
    assert _without_versions(OLDER) == _without_versions(LATEST)


def test_the_tpus_image_differs_by_its_tensorflow_alone() -> None:
    image, tpu = _versions(OLDER.lock), _versions(TPU.lock)
    assert tpu.pop("tensorflow-tpu") == image.pop("tensorflow")
    assert tpu == image


def _run_steps(tmp_path: Path, text: str, *words: str) -> tuple[int, str, Path]:
    dockerfile, folder = tmp_path / "Dockerfile", tmp_path / "image"
    dockerfile.write_text(text, encoding="utf-8")
    arguments = [str(dockerfile), "--folder", str(folder), *words]
    result = CliRunner().invoke(image_steps.main, arguments)
    return result.exit_code, result.output, folder


def test_steps_run_as_docker_would_run_them(tmp_path: Path) -> None:
    code, output, folder = _run_steps(
        tmp_path,
        f"""
# A comment
ARG PYTHON_IMAGE={HERE}
FROM ${{PYTHON_IMAGE}} AS build
ARG APP=/app
RUN apt-get update && false
WORKDIR ${{APP}}
COPY setup.py LICENSE ./
COPY pipelines/taxi taxi/
# Another, in the middle of things
ENV WORD=first \\
    OTHER=${{APP}}/x
RUN --mount=type=cache,target=/root/.cache \\
    python -c "import os, sys; print(sys.prefix == sys.base_prefix, file=open('out', 'w'))" \\
    && echo "$WORD $OTHER" >> out
FROM images/third:1 AS third
FROM ${{PYTHON_IMAGE}}
ARG APP=/app
COPY --from=third /y /y
COPY --from=build ${{APP}}/taxi ${{APP}}/taxi
COPY --from=images/other:1 /x /x
WORKDIR ${{APP}}
RUN echo "[$WORD$PYTHON_IMAGE]" >> out
USER 1:1
""",
    )
    assert code == 0, output
    app = folder / "app"
    assert (app / "out").read_text(encoding="utf-8").splitlines() == [
        "True",
        f"first {app}/x",
        "[]",  # a variable of the other stage
    ]
    assert (app / "LICENSE").exists()
    assert (app / "taxi" / "model.py").exists()
    assert not list(app.rglob("__pycache__"))
    assert "left out: RUN with apt-get" in output
    assert "left out: COPY from the image images/other:1" in output
    assert "left out: COPY from the image images/third:1" in output


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("RUN exit 7", ":2: ended with exit code 7"),
        ("COPY no-such-file ./", ":2: no-such-file is not in"),
        ("COPY --from=build /app/x /app/y", ":2: COPY --from=build"),
        ("VOLUME /x", ":2: VOLUME is not one of"),
        ("WORKDIR ${APP}", ":2: ${APP} is not set in this stage"),
        ("RUN true \\", ":2: the last line ends with a backslash"),
    ],
)
def test_a_step_that_fails_is_named_by_its_line(tmp_path: Path, step: str, message: str) -> None:
    code, output, _ = _run_steps(tmp_path, f"FROM {HERE}\n{step}\n")
    assert code != 0
    assert message in output


@pytest.mark.parametrize(
    ("python", "who_has_it"),
    [
        ("3.9", "run this with a Python 3.9\n"),
        *(
            (image.python, f"such as that of make setup LINE={image.line}\n")
            for image in (OLDER, LATEST)
            if not HERE.startswith(f"python:{image.python}-")
        ),
    ],
)
def test_an_image_of_another_python_is_refused(
    tmp_path: Path, python: str, who_has_it: str
) -> None:
    code, output, _ = _run_steps(tmp_path, f"FROM python:{python}-slim\nRUN true\n")
    assert code != 0
    assert f":1: the image and its lock file need Python {python}" in output
    assert output.endswith(who_has_it)


def test_a_patched_copy_of_python_is_the_one_that_the_steps_run(tmp_path: Path) -> None:
    # As scripts/private_glibc.sh makes one; what is appended to a program changes nothing.
    environment = tmp_path / "environment"
    subprocess.run(
        [sys.executable, "-m", "venv", "--copies", "--without-pip", environment], check=True
    )
    program = environment / "bin" / "python"
    with program.open("ab") as file:
        file.write(b"patched")
    which = "import os, sys; print(open(os.path.realpath(sys.executable), 'rb').read()[-7:])"
    header = "import sysconfig as s; open(s.get_path('include') + '/Python.h')"
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(
        f"""
FROM {HERE}
RUN python -c "import sys; print(sys.prefix == sys.base_prefix)" > out
RUN python -m venv --without-pip inner && inner/bin/python -I -c "{which}" >> out
RUN inner/bin/python -c "{header}"
""",
        encoding="utf-8",
    )
    folder = tmp_path / "image"
    ended = subprocess.run(
        [program, image_steps.__file__, dockerfile, "--folder", folder],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(click.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (folder / "out").read_text(encoding="utf-8").splitlines() == ["True", "b'patched'"]


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    code, output, folder = _run_steps(tmp_path, f"FROM {HERE}\nRUN touch x\n")
    assert code != 0
    assert "give a new folder" in output
    assert not list(folder.iterdir())


def _install(dockerfile: Path, folder: Path, *words: str) -> str:
    """Runs all steps of an image, as its own program."""
    command = [sys.executable, "kubeflow/image_steps.py", str(dockerfile), "--folder", str(folder)]
    ended = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]
    return ended.stdout


def _in_image(folder: Path, *words: str) -> str:
    """Runs the image's Python without anything of this checkout or its environment."""
    app = folder / "app"
    return subprocess.run(
        [app / "venv" / "bin" / "python", *words],
        cwd=folder,
        env={"PATH": f"{app}/venv/bin", "PYTHONPATH": str(app), "TF_USE_LEGACY_KERAS": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


# Each installs 240 packages: a minute and more, 3 GB.
@pytest.mark.sweep
def test_the_pipelines_image_installs_and_runs_a_components_command(tmp_path: Path) -> None:
    (image,) = [image for image in (OLDER, LATEST) if image.is_of_this_tfx]
    if not HERE.startswith(f"python:{image.python}-"):
        pytest.skip(f"the image of TFX {image.line} uses Python {image.python}")
    output = _install(image.dockerfile, tmp_path / "image")
    left_out = re.findall(r"^left out: (.*)$", output, re.MULTILINE)
    assert left_out == [*LEFT_OUT_OF_ALL, f"COPY from the image {image.beam_worker}"]
    where = _in_image(tmp_path / "image", "-c", "import tfx_tpu_trainer as t; print(t.__file__)")
    assert where.startswith(f"{tmp_path}/image/app/venv/")
    version = "import importlib.metadata as m; print(m.version('tfx'))"
    assert _in_image(tmp_path / "image", "-c", version).startswith(f"{image.line}.")
    help_text = _in_image(
        tmp_path / "image",
        "-m",
        "tfx.orchestration.kubeflow.v2.container.kubeflow_v2_run_executor",
        "--helpfull",
    )
    assert "--executor_class_path" in help_text


@pytest.mark.sweep
def test_the_tpu_image_installs_up_to_its_driver(tmp_path: Path) -> None:
    output = _install(TPU.dockerfile, tmp_path / "image", "--without", "libtpu==")
    left_out = re.findall(r"^left out: (.*)$", output, re.MULTILINE)
    assert left_out == [*LEFT_OUT_OF_ALL, "RUN with libtpu=="]
    packages = _in_image(tmp_path / "image", "-m", "pip", "list")
    assert re.search(r"^tensorflow-tpu +2\.16\.2$", packages, re.MULTILINE)
    assert not re.search(r"^tensorflow +", packages, re.MULTILINE)
    version = _in_image(tmp_path / "image", "-c", "import tensorflow as tf; print(tf.__version__)")
    assert version.split() == ["2.16.2"]
