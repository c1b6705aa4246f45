"""Finds what would fail before a job is sent, over the network: credentials, project, buckets, hosts.

All questions together take at most `SECONDS`: they run in a thread that is left behind when the
time is over, since the libraries that ask have waits of their own that nothing can shorten.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from tfx_tpu_trainer.components.clusters._checks import JobError

SECONDS = 6.0
"""Seconds allowed for all checks of one submission; with the program's start they stay under 10."""

STORAGE = "https://storage.googleapis.com"
_TAG = re.compile(r"v?(\d+)\.(\d+)")
_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"

Answer = TypeVar("Answer")


class Deadline:
    """The time that is left for a number of questions."""

    def __init__(self, seconds: float = SECONDS):
        self._seconds = seconds
        self._ends = time.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        """Seconds that are left, never quite none."""
        return max(0.05, self._ends - time.monotonic())

    def ask(self, question: Callable[[], Answer], *, late: str) -> Answer:
        """Waits for an answer.

        Args:
            question: Returns the answer, or raises.
            late: What to say if it takes too long.

        Returns:
            The answer.

        Raises:
            JobError: If the time is over.
        """
        answers: list[Answer] = []
        failures: list[BaseException] = []

        def run() -> None:
            try:
                answers.append(question())
            except BaseException as error:  # it is raised again below
                failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(self.seconds_left)
        if failures:
            raise failures[0]
        if not answers:
            raise JobError(f"{late} (no answer within {self._seconds:g} seconds)")
        return answers[0]


def find_credentials(deadline: Deadline) -> Any:
    """Finds Google Cloud credentials and gets a token with them."""
    fix = (
        "log in with 'gcloud auth application-default login', or name a key file in the environment "
        f"variable {_KEY_FILE}"
    )

    def find() -> Any:
        import google.auth
        import google.auth.transport.requests

        # Outside of Google Cloud its metadata server is asked, three times, before there are none.
        os.environ.setdefault("GCE_METADATA_TIMEOUT", "1")
        try:
            credentials, _ = google.auth.default(scopes=[_SCOPE])
            credentials.refresh(google.auth.transport.requests.Request())
        # Beside its own errors the library raises whatever a key file makes it stumble over.
        except Exception as error:
            path = os.environ.get(_KEY_FILE)
            where = f" in {path!r}" if path else ""
            raise JobError(
                f"no usable Google Cloud credentials{where}: {_first(error)}; {fix}"
            ) from None
        return credentials

    return deadline.ask(find, late=f"no Google Cloud credentials were found; {fix}")


def check_gcs_buckets(
    paths: Mapping[str, str], credentials: Any, deadline: Deadline, *, endpoint: str = STORAGE
) -> None:
    """Checks that the buckets of paths exist and may be used."""
    for setting, path in paths.items():
        scheme, _, rest = path.partition("://")
        if scheme == "gs":
            bucket = rest.partition("/")[0]
            _get(
                f"{endpoint}/storage/v1/b/{bucket}?fields=name",
                credentials,
                deadline,
                what=f"{setting}={path!r}: the bucket {bucket!r}",
                fix="create it, let your account read it, or name another",
            )


def check_vertex_project(
    project: str, region: str, credentials: Any, deadline: Deadline, *, endpoint: str | None = None
) -> None:
    """Checks that a project may run pipelines in a region."""
    endpoint = endpoint or f"https://{region}-aiplatform.googleapis.com"
    _get(
        f"{endpoint}/v1/projects/{project}/locations/{region}/pipelineJobs?pageSize=1",
        credentials,
        deadline,
        what=f"project={project!r}, region={region!r}: Vertex AI",
        fix="enable its API in that project, give your account the role roles/aiplatform.user, or "
        "name another project or region",
    )


def check_kubeflow_host(
    host: str, deadline: Deadline, *, token: str | None = None, later_setting: str | None = None
) -> None:
    """Checks that the API of Kubeflow Pipelines answers, and is of a version that can run the pipeline."""
    reply = _get(
        f"{host.rstrip('/')}/apis/v2beta1/healthz",
        None,
        deadline,
        what=f"host={host!r}: Kubeflow Pipelines",
        fix="name the address of its API, such as 'http://localhost:8080' after 'kubectl port-forward "
        "-n kubeflow svc/ml-pipeline-ui 8080:80', and the token if it wants one",
        token=token,
    )
    oldest = (2, 2) if later_setting else (2, 0)
    try:
        tag = str(reply.json()["tag_name"])
    except (ValueError, KeyError, TypeError):
        return
    found = _TAG.match(tag)
    if found and tuple(map(int, found.groups())) < oldest:
        needs = f"{later_setting} needs" if later_setting else "a pipeline of this format needs"
        way_out = ", or leave the setting out" if later_setting else ""
        raise JobError(
            f"host={host!r}: Kubeflow Pipelines {tag} is too old: {needs} {'.'.join(map(str, oldest))} or later; "
            f"upgrade it{way_out}"
        )


def _get(
    url: str,
    credentials: Any,
    deadline: Deadline,
    *,
    what: str,
    fix: str,
    token: str | None = None,
) -> Any:
    import requests

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if credentials is not None:
        credentials.apply(headers)
    try:
        reply = deadline.ask(
            lambda: requests.get(url, headers=headers, timeout=deadline.seconds_left),
            late=f"{what} can't be reached; {fix}",
        )
    except requests.RequestException as error:
        raise JobError(f"{what} can't be reached ({_first(error)}); {fix}") from None
    if reply.status_code >= 400:
        raise JobError(f"{what} answers {reply.status_code} {reply.reason}; {fix}")
    return reply


def _first(error: BaseException) -> str:
    """Returns the first line of an error, without the nesting of urllib3's."""
    reasons: Iterable[Any] = [error, *error.args]
    found = next((part.reason for part in reasons if getattr(part, "reason", None)), error)
    if len(error.args) > 1 and isinstance(error.args[0], str) and found is error:
        found = error.args[0]
    text = str(found).strip() or type(error).__name__
    return text.splitlines()[0].rpartition(">: ")[2].rstrip(".")
