"""What is refused before a job is sent: without a network, and over it."""

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

from tests.bad_input import case, row
from tfx_tpu_trainer.components.clusters import _checks
from tfx_tpu_trainer.components.clusters._checks import (
    Deadline,
    JobError,
    check_bucket_paths,
    check_host,
    check_image,
    check_project,
)


@pytest.mark.parametrize(
    "image",
    [
        "p:1",
        "r/p:1",
        "europe-docker.pkg.dev/a/b/p:2026-11.1_x",
        "localhost:5000/p:1",
        f"r/p@sha256:{'0' * 64}",
    ],
)
def test_images_with_a_tag_or_a_digest_will_do(image):
    check_image(image)


@pytest.mark.parametrize(
    "image",
    [
        case("runners", f"`--image {image!r}`", *says, values=image)
        for image, *says in (
            ("", "image is empty; name the container image with tfx_tpu_trainer"),
            ("r/p", "image='r/p' has no tag", "add one, as in 'r/p:1'"),
            (
                "localhost:5000/p",
                "image='localhost:5000/p' has no tag",
                "add one, as in 'localhost:50",
            ),
            (
                "r/p@sha256:12",
                "image='r/p@sha256:12' is not the name of a container image; give one",
            ),
            ("a b:1", "image='a b:1' is not the name of a container image; give one with a tag"),
        )
    ],
)
def test_other_images_are_refused(image, refused):
    with refused(JobError):
        check_image(image)


def test_paths_are_in_buckets():
    check_bucket_paths({"root": "gs://a/b", "data": "s3://c"})


@pytest.mark.parametrize(
    ("setting", "path", "schemes"),
    [
        case(
            "runners",
            f"`--{setting} {path!r}`" + (" on Vertex AI" if schemes else ""),
            f"{setting}={path!r} is not a path in a bucket",
            f"give one that starts with {'gs:// and' if schemes else 'gs:// or s3:// and'}",
            values=(setting, path, schemes),
        )
        for setting, path, schemes in (
            ("root", "/tmp/a", ()),
            ("root", "runs/a", ()),
            ("root", "gs://", ()),
            ("root", "gs:///a", ()),
            ("root", "file:/a", ()),
            ("root", "gs://a\nb", ()),
            ("data", "s3://c", ("gs",)),
        )
    ],
)
def test_other_paths_are_refused(setting, path, schemes, refused):
    with refused(JobError):
        check_bucket_paths({setting: path}, schemes=schemes)


def test_projects_and_regions_have_a_form():
    for project in ("our-models", "1234", "example.com:our-models"):
        check_project(project, "europe-west4")


@pytest.mark.parametrize(
    ("project", "region"),
    [
        case(
            "runners",
            f"`--project {project!r} --region {region!r}`",
            *says,
            values=(project, region),
        )
        for project, region, *says in (
            ("", "us-central1", "project='' is not the id of a Google Cloud project; give its id"),
            (
                "Our",
                "us-central1",
                "project='Our' is not the id of a Google Cloud project; give its id",
            ),
            (
                "our-models",
                "",
                "region='' is not the name of a region; give one such as 'us-central1'",
            ),
            (
                "our-models",
                "us-central1-a",
                "region='us-central1-a' is not the name",
                "not a zone like",
            ),
        )
    ],
)
def test_other_projects_and_regions_are_refused(project, region, refused):
    with refused(JobError):
        check_project(project, region)


@pytest.mark.parametrize(
    "host", ["http://localhost:8080/", "https://[::1]:443", "https://a.example/kfp"]
)
def test_addresses_of_apis_will_do(host):
    check_host(host, token="eyJhbGciOi.eyJ-_=+/")


@pytest.mark.parametrize(
    "host",
    [
        case(
            "runners",
            f"`--host {host!r}`",
            f"host={host!r} is not the address of an API; give one",
            values=host,
        )
        for host in (
            "localhost:8080",
            "h",
            "ftp://h",
            "http://",
            "http://h:99999",
            "http://[h",
            "http://a b",
        )
    ],
)
def test_other_addresses_are_refused(host, refused):
    with refused(JobError):
        check_host(host)


@pytest.mark.parametrize(
    "token",
    [
        case(
            "runners",
            f"`--token` with {given}",
            "token has spaces, line ends or letters that no bearer token has (it is not shown here); copy it",
            values=token,
        )
        for given, token in (("a line end", "eyJhbG\n"), ("a letter beyond ASCII", "eyJhbGé"))
    ],
)
def test_a_token_that_cannot_be_is_refused_and_not_shown(token, refused):
    with refused(JobError) as raised:
        check_host("http://localhost:8080", token)
    assert "eyJ" not in str(raised.value)


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
        # An address that begins with a version is one of an API of that version.
        version, separator, path = self.path.removeprefix("/version-").partition("/apis/")
        tells = self.path.startswith("/version-") and separator
        known_as = f"/apis/{path}" if tells else self.path
        body = json.dumps({"tag_name": version} if tells else {}).encode()
        self.send_response(known.get(known_as, 404))
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
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()


@contextlib.contextmanager
def _silent() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_what_is_there_is_found(server):
    _checks.check_gcs_buckets(
        {"root": "gs://ours/a", "data": "s3://other"}, NOBODY, Deadline(), endpoint=server
    )
    _checks.check_vertex_project("our-models", "us-central1", NOBODY, Deadline(), endpoint=server)
    _checks.check_kubeflow_host(server + "/", Deadline(), token="t")


@pytest.mark.parametrize("version", ["2.0.5", "2.2.0", "v2.14.3", "10.0", "unknown", ""])
def test_a_version_that_is_new_enough_or_not_told(server, version):
    _checks.check_kubeflow_host(f"{server}/version-{version}", Deadline())
    if version != "2.0.5":
        _checks.check_kubeflow_host(
            f"{server}/version-{version}", Deadline(), later_setting="pods.all.labels"
        )


@pytest.mark.parametrize(
    "ask",
    [
        case(
            "runners",
            "a bucket that the account may not read",
            "data='gs://theirs/d': the bucket 'theirs' answers 403",
            "; create it, let your account read it, or name another",
            values=lambda server: _checks.check_gcs_buckets(
                {"root": "gs://ours/a", "data": "gs://theirs/d"},
                NOBODY,
                Deadline(),
                endpoint=server,
            ),
        ),
        case(
            "runners",
            "a project that there is not",
            "project='x-models', region='us-central1': Vertex AI answers 404",
            "; enable its API in that project",
            values=lambda server: _checks.check_vertex_project(
                "x-models", "us-central1", NOBODY, Deadline(), endpoint=server
            ),
        ),
        case(
            "runners",
            "an address where another program answers",
            "/wrong': Kubeflow Pipelines answers 404",
            "; name the address of its API",
            values=lambda server: _checks.check_kubeflow_host(f"{server}/wrong", Deadline()),
        ),
        case(
            "runners",
            "a Kubeflow Pipelines 1.8",
            "/version-1.8.22': Kubeflow Pipelines 1.8.22 is too old: a pipeline of this format needs 2.0 or later",
            "; upgrade it",
            values=lambda server: _checks.check_kubeflow_host(
                f"{server}/version-1.8.22", Deadline()
            ),
        ),
        case(
            "runners",
            "a Kubeflow Pipelines 2.1, for pods with tolerations",
            "/version-2.1.0': Kubeflow Pipelines 2.1.0 is too old: pods.trainer.tolerations needs 2.2 or later",
            "; upgrade it, or leave the setting out",
            values=lambda server: _checks.check_kubeflow_host(
                f"{server}/version-2.1.0", Deadline(), later_setting="pods.trainer.tolerations"
            ),
        ),
    ],
)
def test_what_is_not_there_is_named_with_its_setting(server, ask, refused):
    with refused(JobError):
        ask(server)


@row(
    "runners",
    "an address where nobody answers",
    "host='http://127.0.0.1:",
    "can't be reached (",
    "refused); name the address of its API",
)
def test_nobody_at_the_address(refused):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with refused(JobError):
        _checks.check_kubeflow_host(f"http://127.0.0.1:{port}", Deadline())


def test_silence_is_waited_for_as_long_as_was_said():
    with _silent() as address:
        started = time.monotonic()
        deadline = Deadline(0.5)
        with pytest.raises(JobError, match=r"root='gs://ours': the bucket 'ours' can't be reached"):
            _checks.check_gcs_buckets({"root": "gs://ours"}, NOBODY, deadline, endpoint=address)
        # All questions share the time, so what comes after does not wait anew.
        with pytest.raises(JobError, match=r"host=.* can't be reached"):
            _checks.check_kubeflow_host(address, deadline)
        assert time.monotonic() - started < 5


def test_a_question_that_cannot_be_stopped_is_left_behind():
    with pytest.raises(JobError, match=r"nothing came \(no answer within 0.1 seconds\)"):
        Deadline(0.1).ask(lambda: time.sleep(30), late="nothing came")
    with pytest.raises(ZeroDivisionError):
        Deadline().ask(lambda: 1 / 0, late="nothing came")


def test_the_time_for_all_questions_leaves_room_under_ten_seconds():
    assert _checks.SECONDS <= 6


@pytest.mark.parametrize(
    "content",
    [
        case(
            "runners",
            f"a key file of Google Cloud that {given}",
            "no usable Google Cloud credentials in '",
            f"key.json': {says}",
            "gcloud auth application-default login",
            "GOOGLE_APPLICATION_CREDENTIALS",
            values=(content,),
        )
        for given, content, says in (
            ("is not there", None, "File "),
            ("is an empty JSON object", b"{}", "The file "),
            ("holds no JSON", b"{", "File "),
            ("holds a JSON list", b"[1]", "'list' object has no attribute"),
            ("is nested 100,000 deep", b"[" * 100_000, "maximum recursion depth exceeded"),
            ("is not UTF-8", b"\xff\xfe", "invalid start byte"),
            (
                "has a private key that is not one",
                b'{"type": "service_account", "client_email": "a@b", "token_uri": "c", "private_key": "d"}',
                "Failed to load service account credentials",
            ),
        )
    ],
)
def test_missing_credentials_name_the_ways_to_have_them(monkeypatch, tmp_path, content, refused):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    if content is not None:
        (tmp_path / "key.json").write_bytes(content)
    with refused(JobError):
        _checks.find_credentials(Deadline())
