"""The runners' commands, called in this process: each import of TFX takes ten seconds."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

FOLDER = Path(__file__).parents[2] / "kubeflow"
IMAGE = "registry.example/pipelines:1"
PLACES = ("--root", "gs://bucket/taxi", "--data", "gs://bucket/data", "--image", IMAGE)

Run = Callable[..., Result]


def _command(name: str) -> click.Command:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def _runner(name: str, *fixed: str) -> Run:
    command = _command(name)

    def run(*arguments: str, pipeline: str = "taxi") -> Result:
        words = ["--pipeline", pipeline, *PLACES, *fixed, *arguments]
        result = CliRunner().invoke(command, words)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture(scope="session")
def kubeflow_runner() -> Run:
    """`kubeflow/kubeflow_runner.py` with a root, data and an image."""
    return _runner("kubeflow_runner")


@pytest.fixture(scope="session")
def vertex_runner() -> Run:
    """`kubeflow/vertex_runner.py` with a root, data, an image, a project and a region."""
    return _runner("vertex_runner", "--project", "our-models", "--region", "us-central1")
