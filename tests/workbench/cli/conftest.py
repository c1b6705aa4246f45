"""Calls `compile` in this process, since each import of TFX takes ten seconds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tfx_tpu_trainer.workbench.cli.main import main

IMAGE = "registry.example/pipelines:1"
PLACES = ("--root", "gs://bucket/taxi", "--data", "gs://bucket/data", "--image", IMAGE)

Run = Callable[..., Result]


def _compiler(*fixed: str) -> Run:
    def run(*arguments: str, pipeline: str = "taxi") -> Result:
        words = ["compile", *fixed, "--pipeline", pipeline, *PLACES, *arguments]
        result = CliRunner().invoke(main, words)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


def compiled_once(run: Run, folder: Path, *arguments: str) -> Callable[[str, str], Path]:
    """Returns what compiles a pipeline, by its name, into a file with an ending, and only the first time."""

    @functools.cache
    def get(pipeline: str, ending: str) -> Path:
        output = folder / f"{pipeline}.{ending}"
        ended = run("--output", str(output), *arguments, pipeline=pipeline)
        assert ended.exit_code == 0, ended.output
        return output

    return get


@pytest.fixture(scope="session")
def compile_kubeflow() -> Run:
    """`compile --kubeflow` with a root, data and an image."""
    return _compiler("--kubeflow")


@pytest.fixture(scope="session")
def compile_vertex() -> Run:
    """`compile --vertex` with a root, data, an image, a project and a region."""
    return _compiler("--vertex", "--gcp-project", "our-models", "--region", "us-central1")
