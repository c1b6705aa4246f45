"""kubeflow/README.md: its commands run as they stand, up to where a cluster begins."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from tests.kubeflow_folder.manifest_checks import FOLDER, load
from tfx_tpu_trainer.workbench.cli.main import main

README = (FOLDER / "README.md").read_text(encoding="utf-8")


def _commands(beginning: str) -> list[list[str]]:
    """The words behind the beginning of each such command, in the page's order, without what follows a pipe."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    words = [
        shlex.split(line.removeprefix(beginning), comments=True)
        for line in lines
        if line.startswith(f"{beginning} ")
    ]
    return [line[: line.index("|") if "|" in line else None] for line in words]


def _invoke(command: click.Command, words: list[str]) -> Any:
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 0, (words, result.output)
    return result


@pytest.mark.parametrize(
    "words", _commands("python kubeflow/manifests.py"), ids=lambda words: " ".join(words[:3])
)
def test_manifests(words: list[str]) -> None:
    documents = list(yaml.safe_load_all(_invoke(load("manifests").main, words).stdout))
    assert len(documents) > 1


@pytest.mark.e2e
def test_what_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [words for words in _commands("tfx-tpu-trainer") if "--submit" not in words]
    assert len(commands) == 4
    for words in commands:
        result = _invoke(main, words)
        if "--output" in words:
            assert Path(words[words.index("--output") + 1]).stat().st_size > 10_000
        else:
            assert '"pipelineSpec"' in result.stdout or '"pipelineInfo"' in result.stdout


@pytest.mark.e2e
def test_the_trainers_pod_runs_the_tpus_image(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (words,) = [words for words in _commands("tfx-tpu-trainer") if "taxi-tpu.yaml" in words]
    _invoke(main, words)
    pipeline, platform = yaml.safe_load_all(Path("taxi-tpu.yaml").read_text(encoding="utf-8"))
    executors = pipeline["deploymentSpec"]["executors"]
    images = {
        name: executor["container"]["image"]
        for name, executor in executors.items()
        if "container" in executor
    }
    tpus = [name for name, image in images.items() if image.endswith("/pipelines-tpu:1")]
    assert tpus == ["TpuTrainer_executor"]
    on_nodes = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert list(on_nodes) == tpus


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert "://" in target or (FOLDER / target).exists(), target
    for name in re.findall(r"`([\w.]+\.py|Dockerfile[\w.]*)`", README):
        assert (FOLDER / name).exists(), name


def test_the_data_that_step_3_copies_is_there() -> None:
    program, path = re.search(r"\$\(python -c '(.*?)'\)(\S+\.csv)", README).groups()
    printed: list[str] = []
    exec(program, {"print": printed.append})
    assert Path(printed[0] + path).stat().st_size > 1_000_000


def test_the_script_starts_from_any_folder_without_a_path(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ended = subprocess.run(
        [sys.executable, str(FOLDER / "manifests.py"), "--help"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0 and "Usage: " in ended.stdout, ended.stderr
