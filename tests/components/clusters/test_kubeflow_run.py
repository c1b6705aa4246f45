"""Tests submissions to Kubeflow Pipelines, over HTTP to a server on loopback."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading

import pytest

from tests.bad_input import row
from tests.components.clusters.compiled import tiny
from tfx_tpu_trainer.components.clusters._checks import JobError
from tfx_tpu_trainer.components.clusters._kubeflow_run import KubeflowRun


@row(
    "runners",
    "`KubeflowRun(service_account='runs@our-models.example')`",
    "service_account='runs@our-models.example' is not a service account of Kubernetes; give a name",
)
def test_pods_run_as_an_account_of_kubernetes(refused):
    with refused(JobError):
        KubeflowRun(host="http://127.0.0.1:9", service_account="runs@our-models.example")


@contextlib.contextmanager
def _api(status):
    """An API that is healthy, and answers everything else with a status, or, without one, never answers."""
    if status is None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            yield f"http://127.0.0.1:{silent.getsockname()[1]}"
        return

    class Answer(http.server.BaseHTTPRequestHandler):
        def _answer(self):
            is_healthy = self.path.endswith("healthz")
            self.send_response(200 if is_healthy else status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def __getattr__(self, name):
            if name in ("do_GET", "do_POST"):
                return self._answer
            raise AttributeError(name)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            # Otherwise the thread would try to accept connections on a closed socket for the rest of the tests.
            server.shutdown()
            thread.join()


def _submit(status):
    with _api(status) as host:
        # Silence is waited for to the end.
        seconds = 1 if status is None else 30
        KubeflowRun(host=host, name="Taxi").submit(tiny(), seconds=seconds)


@row(
    "runners",
    "a run that Kubeflow Pipelines does not answer to",
    "Kubeflow Pipelines has not confirmed the run 'Taxi': look for it there before you send it again",
)
@pytest.mark.parametrize("status", [None, 504])
def test_a_run_that_may_have_been_taken_is_not_called_refused(refused, status):
    with refused(JobError):
        _submit(status)


@row(
    "runners",
    "a run that Kubeflow Pipelines refuses",
    "Kubeflow Pipelines did not accept the run: {}",
)
def test_a_refusal_is_one(refused):
    with refused(JobError):
        _submit(403)


def test_a_run_that_was_never_sent_was_not_taken():
    with _api(None) as host:
        pass
    with pytest.raises(JobError, match="did not accept the run"):
        KubeflowRun(host=host).submit(tiny(), seconds=10)
