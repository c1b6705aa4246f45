"""The Dockerfiles' steps, all of them, in root file systems of their images' own Debian."""

from __future__ import annotations

import contextlib
import functools
import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kubeflow_folder.scripts import ROOT, load
from tests.kubeflow_folder.test_images import LATEST, OLDER, TPU, Image, make_driver

image_root = load("image_root")
COMPONENT = "python -m tfx.orchestration.kubeflow.v2.container.kubeflow_v2_run_executor --helpfull"
# Of what a container may and may not write to.
WRITES = "import os; print(os.getuid(), os.access('/app', os.W_OK), os.access('/tmp', os.W_OK))"


def _prefix(version: str) -> Path:
    """The prefix of a Python of this machine."""
    script = (
        "ROOT=. STATE=.make LOG=/dev/null; source scripts/messages.sh; source scripts/find_python.sh; "
        'list_pythons; choose_python "$1" && echo "$PYTHON"'
    )
    ended = subprocess.run(
        ["bash", "-c", script, "bash", version], cwd=ROOT, capture_output=True, text=True
    )
    if ended.returncode:
        pytest.skip(f"no Python {version} is here to put into /usr/local")
    return Path(ended.stdout.strip()).parents[1]


def _build(image: Image, folder: Path, *words: str) -> str:
    problem = image_root.lacking()
    if problem:
        pytest.skip(problem)
    command = [sys.executable, image_root.__file__, str(image.dockerfile), "--folder", str(folder)]
    command += ["--python", str(_prefix(image.python)), *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]
    return ended.stdout


def _left_out(output: str) -> list[str]:
    return re.findall(r"^left out: (.*)$", output, re.MULTILINE)


# Each installs a Debian, a compiler and 240 packages: several minutes, 4 GB.
@pytest.mark.sweep
@pytest.mark.parametrize("image", [OLDER, LATEST], ids=lambda image: image.dockerfile.name)
def test_every_step_of_the_pipelines_image_runs_and_a_component_starts_as_its_user(
    tmp_path: Path, image: Image
) -> None:
    then = f'sh -c "{COMPONENT} && python -c \\"{WRITES}\\""'
    output = _build(image, tmp_path / "image", "--then", then)
    # What comes from Beam's image is all that is missing.
    assert _left_out(output) == [
        f"FROM {image.beam_worker}",
        f"COPY from {image.beam_worker}",
        "ENTRYPOINT /opt/apache/beam/boot",
    ]
    assert "--executor_class_path" in output
    assert "10001 False True" in output.splitlines()
    release = (tmp_path / "image" / "build" / "etc" / "os-release").read_text(encoding="utf-8")
    assert f"VERSION_CODENAME={image.debian}" in release
    # The compiler stays behind.
    assert (tmp_path / "image" / "build" / "usr" / "bin" / "g++").exists()
    assert not (tmp_path / "image" / "stage-2" / "usr" / "bin" / "g++").exists()


@pytest.mark.sweep
def test_every_step_of_the_tpus_image_runs_with_a_stand_in_for_its_driver(tmp_path: Path) -> None:
    driver, checksum = make_driver(tmp_path)
    with _served(driver.parent) as page:
        output = _build(
            TPU,
            tmp_path / "image",
            *("--build-arg", f"LIBTPU_PAGE={page}", "--build-arg", f"LIBTPU_SHA256={checksum}"),
            *("--then", COMPONENT),
        )
    assert _left_out(output) == []
    assert "--executor_class_path" in output


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Serves a folder; gives the address of its listing."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_what_the_machine_lacks_is_one_line(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(image_root.os, "geteuid", lambda: 0)
    folder = tmp_path / "image"
    arguments = [str(OLDER.dockerfile), "--folder", str(folder), "--python", str(tmp_path)]
    result = CliRunner().invoke(image_root.main, arguments)
    assert result.exit_code == 1
    assert result.output == (
        "Error: debootstrap is missing: on Debian and Ubuntu, install the package debootstrap\n"
    )
    assert not folder.exists()


def test_a_user_that_is_not_root_is_told(monkeypatch) -> None:
    monkeypatch.setattr(image_root.os, "geteuid", lambda: 1000)
    assert "systems: run this as root" in image_root.lacking()
