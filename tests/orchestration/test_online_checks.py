"""Questions before a submission, put to servers on loopback: one that answers, one that does not, none."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from google.auth.credentials import AnonymousCredentials

from tfx_tpu_trainer.orchestration import online_checks
from tfx_tpu_trainer.orchestration.checks import JobError
from tfx_tpu_trainer.orchestration.online_checks import Deadline

NOBODY = AnonymousCredentials()


class _Handler(http.server.BaseHTTPRequestHandler):
    """Knows the bucket `ours`, the project `our-models` and Kubeflow's health."""

    def do_GET(self):
        known = {
            "/storage/v1/b/ours?fields=name": 200,
            "/storage/v1/b/theirs?fields=name": 403,
            "/v1/projects/our-models/locations/us-central1/pipelineJobs?pageSize=1": 200,
            "/apis/v2beta1/healthz": 200,
        }
        body = json.dumps({}).encode()
        self.send_response(known.get(self.path, 404))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        del arguments


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()


@contextlib.contextmanager
def _silent() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_what_is_there_is_found(server):
    online_checks.check_gcs_buckets(
        {"root": "gs://ours/a", "data": "s3://other"}, NOBODY, Deadline(), endpoint=server
    )
    online_checks.check_vertex_project(
        "our-models", "us-central1", NOBODY, Deadline(), endpoint=server
    )
    online_checks.check_kubeflow_host(server + "/", Deadline(), token="t")


def test_what_is_not_there_is_named_with_its_setting(server):
    with pytest.raises(JobError, match=r"data='gs://theirs/d': the bucket 'theirs' answers 403"):
        online_checks.check_gcs_buckets(
            {"root": "gs://ours/a", "data": "gs://theirs/d"}, NOBODY, Deadline(), endpoint=server
        )
    with pytest.raises(JobError, match=r"project='x-models', region='us-central1'.* answers 404"):
        online_checks.check_vertex_project(
            "x-models", "us-central1", NOBODY, Deadline(), endpoint=server
        )
    with pytest.raises(JobError, match=r"host='http.*/wrong': Kubeflow Pipelines answers 404"):
        online_checks.check_kubeflow_host(f"{server}/wrong", Deadline())


def test_nobody_at_the_address():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(
        JobError, match=r"host=.* cannot be reached \(.*refused\); name the address"
    ):
        online_checks.check_kubeflow_host(f"http://127.0.0.1:{port}", Deadline())


def test_silence_is_waited_for_as_long_as_was_said():
    with _silent() as address:
        started = time.monotonic()
        deadline = Deadline(0.5)
        with pytest.raises(
            JobError, match=r"root='gs://ours': the bucket 'ours' cannot be reached"
        ):
            online_checks.check_gcs_buckets(
                {"root": "gs://ours"}, NOBODY, deadline, endpoint=address
            )
        # All questions share the time, so what comes after does not wait anew.
        with pytest.raises(JobError, match=r"host=.* cannot be reached"):
            online_checks.check_kubeflow_host(address, deadline)
        assert time.monotonic() - started < 5


def test_a_question_that_cannot_be_stopped_is_left_behind():
    with pytest.raises(JobError, match=r"nothing came \(no answer within 0.1 seconds\)"):
        Deadline(0.1).ask(lambda: time.sleep(30), late="nothing came")
    with pytest.raises(ZeroDivisionError):
        Deadline().ask(lambda: 1 / 0, late="nothing came")


def test_the_time_for_all_questions_leaves_room_under_ten_seconds():
    assert online_checks.SECONDS <= 6


def test_missing_credentials_name_the_ways_to_have_them(monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(JobError, match=r"no usable .* credentials: File .*none.json was not found"):
        online_checks.find_credentials(Deadline())
    (tmp_path / "none.json").write_text("{}")
    with pytest.raises(
        JobError, match=r"gcloud auth application-default login.*GOOGLE_APPLICATION"
    ):
        online_checks.find_credentials(Deadline())
