"""The Dockerfiles: linted, true to the locks, and their scripts run in a fresh folder."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.kubeflow_folder.manifest_checks import FOLDER, ROOT


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
SCRIPTS = FOLDER / "image"
# Variables of this Python and of its environment.
_FOREIGN = re.compile(r"(PYTHON|VIRTUAL_ENV|CONDA|TF_)")
HADOLINT = Path(sys.executable).with_name("hadolint")
# The image of the Python that runs this.
HERE = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"

every = pytest.mark.parametrize(
    "image", [OLDER, LATEST, TPU], ids=lambda image: image.dockerfile.name
)
of_components = pytest.mark.parametrize(
    "image", [OLDER, LATEST], ids=lambda image: image.dockerfile.name
)


def _steps(image: Image) -> list[tuple[str, str]]:
    """The instructions of its file: name and text, in one line each."""
    text = image.dockerfile.read_text(encoding="utf-8")
    text = re.sub(r"^(#.*)?\n", "", text, flags=re.MULTILINE)
    lines = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
    return [(name, words) for name, _, words in (line.partition(" ") for line in lines)]


def _texts(image: Image, name: str) -> list[str]:
    return [text for each, text in _steps(image) if each == name]


def _script(text: str) -> tuple[Path, list[str]] | None:
    """The script of kubeflow/image/ that a RUN step calls, and its arguments; `None` if it calls none."""
    found = re.search(r"(\S+/(\w+\.sh))(.*)", text)
    return found and (SCRIPTS / found[2], found[3].split())


def _pins(lock: str) -> set[str]:
    """Each version of a lock with its marker, such as `kfp==2.16.1 ; python_full_version < '3.12'`."""
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z0-9._-]+(?:\[[^]]*\])?==.+) \\$", text, re.MULTILINE))


def _installed(lock: str, python: str) -> set[str]:
    """Returns the packages that a lock installs on CPython; the locks' markers may differ for other interpreters."""
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
    called = [_script(text) for text in _texts(image, "RUN")]
    assert next((path.name, words) for path, words in filter(None, called)) == (
        "install_locked.sh",
        [f"requirements/{Path(image.lock).name}"],
    )
    # All but this package itself.
    installs = [text for text in _texts(image, "RUN") if "pip install" in text]
    assert [text.split()[-1] for text in installs] == ["."]


def test_scripts_install_nothing_without_a_hash() -> None:
    text = " ".join(path.read_text(encoding="utf-8") for path in SCRIPTS.glob("*.sh"))
    installs = re.findall(r"pip install .*?-r (\S+)", text.replace("\\\n", ""))
    assert sorted(installs) == ['"$lock"', "libtpu.lock", "requirements/bootstrap.lock"]
    assert text.count("pip install") == text.count("--require-hashes") == len(installs)


@every
def test_each_script_is_copied_or_bound_before_it_runs(image: Image) -> None:
    seen = ""
    called = []
    for name, text in _steps(image):
        script = _script(text) if name == "RUN" else None
        if script:
            path = script[0]
            called.append(path.name)
            assert os.access(path, os.X_OK)
            ended = subprocess.run(["sh", "-n", path], capture_output=True, text=True)
            assert (ended.returncode, ended.stderr) == (0, "")
            assert f"kubeflow/image/{path.name}" in seen or "source=kubeflow/image," in text
        seen += text
    driver = ["install_libtpu.sh"] if image is TPU else []
    assert called == ["install_locked.sh", *driver, "check_image.sh"]


def test_the_newest_lines_image_has_the_debian_whose_libraries_its_tests_run_on() -> None:
    script = (ROOT / "scripts" / "private_glibc.sh").read_text(encoding="utf-8")
    assert re.search(r"^GLIBC_SUITE=(\w+)$", script, re.MULTILINE)[1] == LATEST.debian


@of_components
def test_the_image_has_the_versions_that_are_tested(image: Image) -> None:
    for python in ("3.10", "3.11", "3.12", "3.13"):
        assert _installed(image.lock, python) <= _installed(image.tested, python)
    versions = _versions(image.lock)
    assert versions["tfx"].startswith(f"{image.line}.")
    # The imports of a component's command, in addition to the package; the last one is the Tuner's.
    commands = {"tfx", "tensorflow", "kfp-pipeline-spec", "pyyaml", "keras-tuner"}
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
    steps = _steps(image)
    last_stage = max(number for number, (name, _) in enumerate(steps) if name == "FROM")
    of_container = steps[last_stage:]
    assert ("ARG", "RUN_AS=10001:10001") in of_container
    # After everything that writes into the image; what Python and its packages cache goes to /tmp.
    assert [name for name, _ in of_container[of_container.index(("USER", "${RUN_AS}")) :]] in (
        ["USER"],
        ["USER", "ENTRYPOINT"],
    )
    assert ("ENV", "HOME=/tmp USER=trainer") in of_container
    # What is copied has the modes of the checkout, or of another image.
    (made_readable,) = [
        words
        for path, words in filter(None, (_script(text) for text in _texts(image, "RUN")))
        if path.name == "check_image.sh"
    ]
    for text in [text for name, text in of_container if name == "COPY"]:
        copied = text.split()[-1].rstrip("/")
        of_build = text.startswith("--from=build ")
        assert of_build or "--chmod=755" in text or copied in made_readable


def _driver_step(tmp_path: Path, checksum: str | None) -> subprocess.CompletedProcess[str]:
    """Runs the script that installs the TPU's driver, with its own page and a small wheel there."""
    app = tmp_path / "app"
    (app / "venv" / "bin").mkdir(parents=True)
    program = app / "venv" / "bin" / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@" --target {tmp_path}/installed\n')
    program.chmod(0o755)
    given = {} if checksum is None else {"LIBTPU_SHA256": checksum}
    return subprocess.run(
        [SCRIPTS / "install_libtpu.sh"],
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


def _run(folder: Path, app: Path, *words: str | Path) -> str:
    """Runs a program as a step of an image that lives in `app`, without anything of this environment."""
    ended = subprocess.run(
        words,
        cwd=folder,
        env={
            # Among the rest is how installers reach their index from here.
            **{name: value for name, value in os.environ.items() if not _FOREIGN.match(name)},
            "PATH": f"{app}/venv/bin:{Path(sys.executable).parent}:/usr/bin:/bin",
            "APP": str(app),
            "PYTHONPATH": str(app),
            "TF_USE_LEGACY_KERAS": "1",
        },
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]
    return ended.stdout


def _install(image: Image, folder: Path) -> Path:
    """Installs an image's packages and this one, by its steps; returns the folder of its application."""
    app, build = folder / "app", folder / "build"
    (build / "requirements").mkdir(parents=True)
    app.mkdir()
    for lock in ("bootstrap.lock", image.lock):
        shutil.copy(ROOT / "requirements" / lock, build / "requirements")
    (script, words) = next(filter(None, map(_script, _texts(image, "RUN"))))
    _run(build, app, script, *words)
    for text in _texts(image, "COPY"):
        *sources, target = text.split()
        if (target == "./" and "setup.py" in sources) or target == "tfx_tpu_trainer/":
            for source in sources:
                _copy(ROOT / source, build / source)
    (package,) = [text for text in _texts(image, "RUN") if "pip install" in text]
    _run(build, app, "sh", "-c", package)
    _copy(ROOT / "pipelines", app / "pipelines")
    return app


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


# Each installs 240 packages: a minute and more, 3 GB.
@pytest.mark.sweep
def test_the_pipelines_image_installs_and_runs_a_components_command(tmp_path: Path) -> None:
    (image,) = [image for image in (OLDER, LATEST) if image.is_of_this_tfx]
    if not HERE.startswith(f"python:{image.python}-"):
        pytest.skip(f"the image of TFX {image.line} uses Python {image.python}")
    app = _install(image, tmp_path)
    where = _run(app, app, "python", "-c", "import tfx_tpu_trainer as t; print(t.__file__)")
    assert where.startswith(f"{app}/venv/")
    version = "import importlib.metadata as m; print(m.version('tfx'))"
    assert _run(app, app, "python", "-c", version).startswith(f"{image.line}.")
    _run(app, app, SCRIPTS / "check_image.sh", "pipelines")
    command = "tfx.orchestration.kubeflow.v2.container.kubeflow_v2_run_executor"
    help_text = _run(app, app, "python", "-m", command, "--helpfull")
    assert "--executor_class_path" in help_text


@pytest.mark.sweep
def test_the_tpu_image_installs_up_to_its_driver(tmp_path: Path) -> None:
    app = _install(TPU, tmp_path)
    packages = _run(app, app, "python", "-m", "pip", "list")
    assert re.search(r"^tensorflow-tpu +2\.16\.2$", packages, re.MULTILINE)
    assert not re.search(r"^tensorflow +", packages, re.MULTILINE)
    version = _run(app, app, "python", "-c", "import tensorflow as tf; print(tf.__version__)")
    assert version.split() == ["2.16.2"]


def test_an_image_without_what_its_containers_run_is_none(tmp_path: Path) -> None:
    copied = tmp_path / "pipelines"
    copied.mkdir(mode=0o700)
    (tmp_path / "tfx.py").touch()
    with pytest.raises(AssertionError, match="'tfx' is not a package"):
        _run(tmp_path, tmp_path, SCRIPTS / "check_image.sh", "pipelines")
    assert copied.stat().st_mode & 0o777 == 0o755
