"""Calls `compile` in this process, since each import of TFX takes ten seconds; and stands in for Kubeflow's API."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


class _KubeflowApi(http.server.BaseHTTPRequestHandler):
    """The parts of Kubeflow Pipelines' API that a submission uses."""

    received: list[dict[str, Any]]

    def do_GET(self):
        self._answer({"multi_user": False} if self.path.endswith("healthz") else {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.received.append({"path": self.path, **body})
        experiments = self.path.endswith("experiments")
        self._answer({"experiment_id": "e1"} if experiments else {"run_id": "r1"})

    def _answer(self, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        del arguments


@pytest.fixture
def kubeflow_api(monkeypatch) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    received: list[dict[str, Any]] = []
    handler = type("Handler", (_KubeflowApi,), {"received": received})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()
