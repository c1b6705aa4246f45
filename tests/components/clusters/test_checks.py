"""Tests the checks before a job is sent, offline and online."""

from __future__ import annotations

import contextlib
import http.server
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.auth.credentials import AnonymousCredentials

from tests.bad_input import case, row
from tfx_tpu_trainer.components.clusters import _checks, _find_modules
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
        # All checks share the time, so the following ones do not wait again.
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


ROOT = Path(__file__).parents[3]
WANTED = ("tfx_tpu_trainer.components.trainer.trainer_executor", "pipelines.taxi")


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """Puts a `docker` on the path that runs a shell script."""

    def make(script: str) -> None:
        program = tmp_path / "docker"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return make


# The arguments after the image's name and "-" in the command are the modules.
_PYTHON = f'while [ "$1" != r/p:1 ]; do shift; done; shift; exec "{sys.executable}" -S -E "$@"'


def test_modules_are_found_by_their_files():
    assert _find_modules.is_there("tfx_tpu_trainer")
    assert _find_modules.is_there("tfx_tpu_trainer.components.clusters._find_modules")
    assert _find_modules.is_there("tfx_tpu_trainer.components.clusters")
    assert not _find_modules.is_there("tfx_tpu_trainer.no_such_module")
    assert not _find_modules.is_there("no_such_package.module")
    assert _find_modules.main(["os", "no_such_package"]) == "it lacks no_such_package"


def test_an_image_that_holds_everything(docker):
    docker(f'cd "{ROOT}"; {_PYTHON}')
    assert _checks.check_image_holds("r/p:1", WANTED) is None


@row(
    "runners",
    "an image without the plugin",
    f"image='r/p:1' can't run this pipeline: it lacks {', '.join(WANTED)}; build it with",
)
def test_an_image_without_the_plugin_is_refused(docker, tmp_path, refused):
    docker(f'cd "{tmp_path}"; {_PYTHON}')
    with refused(JobError):
        _checks.check_image_holds("r/p:1", WANTED)


def test_a_package_is_of_a_line_or_of_another():
    found = importlib.metadata.version("tfx")
    line = ".".join(found.split(".")[:2])
    assert _find_modules.main(["tfx", f"tfx=={line}"]) == 0
    assert _find_modules.main([f"tfx=={found}"]) == 0
    assert _find_modules.main(["no_such_package==1"]) == "it lacks no_such_package"
    # 1.1 is not a release of the line 1.16.
    assert "compiled with tfx 1.1" in _find_modules.main(["tfx==1.1"])


@row(
    "runners",
    "an image with another line of TFX",
    "image='r/p:1' can't run this pipeline: it has tfx 1.",
    ", but the pipeline was compiled with tfx 9.9; name an image of that line, or compile with the",
)
def test_an_image_of_another_line_is_refused(docker, refused):
    docker(f'cd "{ROOT}"; {_PYTHON.replace(" -S -E", "")}')
    with refused(JobError):
        _checks.check_image_holds("r/p:1", (*WANTED, "tfx==9.9"))


@row(
    "runners",
    "an image without Python",
    "image='r/p:1' can't run this pipeline: ",
    "executable file not found",
    "build it with",
)
def test_an_image_without_python_is_refused(docker, refused):
    docker("echo 'exec: \"python\": executable file not found in $PATH' >&2; exit 127")
    with refused(JobError):
        _checks.check_image_holds("r/p:1", WANTED)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "echo 'docker: Cannot connect to the Docker daemon.' >&2; exit 1",
            "Cannot connect to the",
        ),
        ("echo 'docker: No such image: r/p:1.' >&2; exit 125", "No such image"),
        ("exec sleep 30", "docker took longer than 1 seconds"),
    ],
)
def test_an_image_that_is_not_at_hand_is_said_to_be_unchecked(docker, script, reason):
    docker(script)
    note = _checks.check_image_holds("r/p:1", WANTED, seconds=1)
    assert f"image 'r/p:1' was not checked ({reason}" in note
    assert "check it with: docker run --rm --interactive --pull=missing" in note


def test_the_command_that_is_named_can_be_typed(docker, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    note = _checks.check_image_holds("r/p:1", WANTED)
    assert "(docker is not installed)" in note
    monkeypatch.undo()
    docker(f'cd "{tmp_path}"; {_PYTHON}')
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = note.partition("check it with: ")[2]
    run = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True)
    assert run.returncode == 1 and run.stderr.startswith("it lacks tfx_tpu_trainer")
