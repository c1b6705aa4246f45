"""The Dockerfiles: linted, true to the locks, and their install steps run in a fresh folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kubeflow_folder.scripts import FOLDER, ROOT, load

image_steps = load("image_steps")

DOCKERFILES = [FOLDER / "Dockerfile", FOLDER / "Dockerfile.tpu"]
HADOLINT = Path(sys.executable).with_name("hadolint")
# The image of the Python that runs this.
HERE = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"
LEFT_OUT_OF_ALL = ["RUN with apt-get"]
BEAM_WORKER = "COPY from the image apache/beam_python3.10_sdk:2.59.0"

both = pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)


def _texts(dockerfile: Path, name: str) -> list[str]:
    return [step.text for step in image_steps.read_instructions(dockerfile) if step.name == name]


def _versions(lock: str) -> dict[str, str]:
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9._-]+)(?:\[[^]]*\])?==(\S+)", text, re.MULTILINE))


@both
def test_hadolint_finds_nothing(dockerfile: Path) -> None:
    result = subprocess.run([HADOLINT, dockerfile], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, ""), result.stdout


def test_hadolint_would_find_something(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM python\nRUN pip install tfx\n", encoding="utf-8")
    result = subprocess.run([HADOLINT, bad], capture_output=True, text=True)
    assert result.returncode != 0
    assert "DL3006" in result.stdout


@both
def test_what_is_copied_is_there_and_reaches_docker(dockerfile: Path) -> None:
    let_through = {
        line.removeprefix("!").partition("/")[0]
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    copied = [
        source
        for text in _texts(dockerfile, "COPY")
        if "--from=" not in text
        for source in text.split()[:-1]
    ]
    assert "pipelines" in copied
    for source in copied:
        assert (ROOT / source).exists()
        assert source.partition("/")[0] in let_through


@both
def test_everything_is_installed_with_hashes_for_the_locks_python(dockerfile: Path) -> None:
    version = (ROOT / ".python-version").read_text(encoding="utf-8").strip()
    assert all(text.startswith(f"python:{version}-slim") for text in _texts(dockerfile, "FROM"))
    installs = [text for text in _texts(dockerfile, "RUN") if "pip install" in text]
    without = [text for text in installs if "--require-hashes" not in text]
    # This package itself, and in the TPU's image its driver.
    assert [text for text in without if not text.endswith((" .", "libtpu==2.16.0rc0"))] == []
    assert len(installs) - len(without) == 2


def test_the_image_has_the_versions_that_are_tested_here() -> None:
    image, tested = _versions("image.lock"), _versions("dev.lock")
    assert image.items() <= tested.items()
    # What a component's command imports, beside the package.
    assert {"tfx", "tensorflow", "kfp-pipeline-spec", "pyyaml"} <= image.keys()


def test_beams_workers_have_the_beam_of_the_lock() -> None:
    (worker,) = [
        text for text in _texts(FOLDER / "Dockerfile", "COPY") if text.startswith("--from=apache/")
    ]
    assert f":{_versions('image.lock')['apache-beam']} " in worker


def test_the_tpus_image_differs_by_its_tensorflow_alone() -> None:
    image, tpu = _versions("image.lock"), _versions("tpu-image.lock")
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
FROM {HERE} AS build
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
FROM {HERE}
ARG APP=/app
COPY --from=build ${{APP}}/taxi ${{APP}}/taxi
COPY --from=images/other:1 /x /x
WORKDIR ${{APP}}
RUN echo "[$WORD]" >> out
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


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("RUN exit 7", ":2: ended with exit code 7"),
        ("COPY no-such-file ./", ":2: no-such-file is not in"),
        ("COPY --from=build /app/x /app/y", ":2: COPY --from=build"),
        ("VOLUME /x", ":2: VOLUME is none of"),
        ("WORKDIR ${APP}", ":2: ${APP} is not set in this stage"),
        ("RUN true \\", ":2: the last line ends with a backslash"),
    ],
)
def test_a_step_that_fails_is_named_by_its_line(tmp_path: Path, step: str, message: str) -> None:
    code, output, _ = _run_steps(tmp_path, f"FROM {HERE}\n{step}\n")
    assert code != 0
    assert message in output


def test_an_image_of_another_python_is_refused(tmp_path: Path) -> None:
    code, output, _ = _run_steps(tmp_path, "FROM python:3.9-slim\nRUN true\n")
    assert code != 0
    assert ":1: the image is of Python 3.9" in output


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    code, output, folder = _run_steps(tmp_path, f"FROM {HERE}\nRUN touch x\n")
    assert code != 0
    assert "give a folder that is not" in output
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
@pytest.mark.e2e
def test_the_pipelines_image_installs_and_runs_a_components_command(tmp_path: Path) -> None:
    output = _install(FOLDER / "Dockerfile", tmp_path / "image")
    left_out = re.findall(r"^left out: (.*)$", output, re.MULTILINE)
    assert left_out == [*LEFT_OUT_OF_ALL, BEAM_WORKER]
    where = _in_image(tmp_path / "image", "-c", "import tfx_tpu_trainer as t; print(t.__file__)")
    assert where.startswith(f"{tmp_path}/image/app/venv/")
    help_text = _in_image(
        tmp_path / "image",
        "-m",
        "tfx.orchestration.kubeflow.v2.container.kubeflow_v2_run_executor",
        "--helpfull",
    )
    assert "--executor_class_path" in help_text


@pytest.mark.e2e
def test_the_tpu_image_installs_up_to_its_driver(tmp_path: Path) -> None:
    output = _install(FOLDER / "Dockerfile.tpu", tmp_path / "image", "--without", "libtpu==")
    left_out = re.findall(r"^left out: (.*)$", output, re.MULTILINE)
    assert left_out == [*LEFT_OUT_OF_ALL, "RUN with libtpu=="]
    packages = _in_image(tmp_path / "image", "-m", "pip", "list")
    assert re.search(r"^tensorflow-tpu +2\.16\.2$", packages, re.MULTILINE)
    assert not re.search(r"^tensorflow +", packages, re.MULTILINE)
    version = _in_image(tmp_path / "image", "-c", "import tensorflow as tf; print(tf.__version__)")
    assert version.split() == ["2.16.2"]
