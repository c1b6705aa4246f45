"""Finds mistakes in a job before it is sent: names and paths offline; credentials, buckets and hosts online.

All network checks together take at most `SECONDS`: they run in a thread that is abandoned when the time is up, since
the client libraries may wait for minutes.
"""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import pydantic

from tfx_tpu_trainer.components.clusters import _find_modules

SECONDS = 6.0
"""Seconds allowed for all checks of one submission; with the program's start they stay under 10."""

STORAGE = "https://storage.googleapis.com"
_TAG = re.compile(r"v?(\d+)\.(\d+)")
_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"

Answer = TypeVar("Answer")
_CheckedT = TypeVar("_CheckedT", bound="Checked")

_DIGEST = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")
_TAGGED = re.compile(r"(?:[^\s/@]+/)*[^\s/:@]+:[\w][\w.-]{0,127}")
_REGION = re.compile(r"[a-z]+(-[a-z]+)+\d+")
_JOB_ID = re.compile(r"[a-z][-a-z0-9]{0,127}")
_ACCOUNT = re.compile(r"[^\s@]+@[^\s@]+")
_PROJECT = re.compile(r"([a-z][a-z0-9.-]*:)?[a-z][a-z0-9-]{4,28}[a-z0-9]|\d+")


class JobError(ValueError):
    """A job that can't run as requested; the message names the setting and the fix."""


def check_image(image: str, *, setting: str = "image") -> None:
    """Checks that a container image is named with a tag or a digest.

    Args:
        image: Name of the image.
        setting: What the image is called, for the error.

    Raises:
        JobError: If it is not.
    """
    if not image:
        raise JobError(
            f"{setting} is empty; name the container image with tfx_tpu_trainer and your "
            "pipeline's code, such as 'europe-docker.pkg.dev/project/images/pipelines:1'"
        )
    if _DIGEST.fullmatch(image) or _TAGGED.fullmatch(image):
        return
    # If only the tag is missing, the message names only that.
    if not _TAGGED.fullmatch(image + ":1"):
        raise JobError(
            f"{setting}={image!r} is not the name of a container image; give one with a tag or a "
            "digest, such as 'europe-docker.pkg.dev/project/images/pipelines:1'"
        )
    raise JobError(
        f"{setting}={image!r} has no tag, so nothing would record which image ran; add one, as "
        f"in {image + ':1'!r}, or a digest (@sha256:...)"
    )


def check_bucket_paths(paths: Mapping[str, str], *, schemes: tuple[str, ...] = ()) -> None:
    """Checks that paths are in a bucket, where every pod can read and write.

    Args:
        paths: Paths by the names of their settings.
        schemes: Schemes that are allowed, such as `("gs",)`. Defaults to `()`: any.

    Raises:
        JobError: If one is not.
    """
    wanted = " or ".join(f"{scheme}://" for scheme in schemes) or "gs:// or s3://"
    for setting, path in paths.items():
        scheme, separator, rest = path.partition("://")
        bucket = rest.partition("/")[0]
        named = separator and bucket and path.isprintable()
        if not named or (schemes and scheme not in schemes):
            raise JobError(
                f"{setting}={path!r} is not a path in a bucket: the pods of a job share no disk; "
                f"give one that starts with {wanted} and a bucket's name"
            )


def check_project(project: str, region: str) -> None:
    """Checks the forms of a Google Cloud project's and a region's name.

    Raises:
        JobError: If one has another form.
    """
    if not _PROJECT.fullmatch(project):
        raise JobError(
            f"project={project!r} is not the id of a Google Cloud project; give its id, such as "
            "'our-models-17'"
        )
    if not _REGION.fullmatch(region):
        raise JobError(
            f"region={region!r} is not the name of a region; give one such as 'us-central1' (not a "
            "zone like 'us-central1-a')"
        )


def check_vertex_names(job_id: str | None, service_account: str | None) -> None:
    """Checks the forms of a job's id and of the account that it runs as, if they are given."""
    if job_id is not None and not _JOB_ID.fullmatch(job_id):
        raise JobError(
            f"job_id={job_id!r} is not a valid id of a job; give up to 128 lower-case letters, "
            "digits and '-', starting with a letter"
        )
    if service_account is not None and not is_google_account(service_account):
        raise JobError(
            f"service_account={service_account!r} is not a Google Cloud account; give its address, "
            "such as 'runs@our-models-17.iam.gserviceaccount.com'"
        )


def is_google_account(name: str) -> bool:
    """Returns whether a name has the form of a Google Cloud account."""
    return bool(_ACCOUNT.fullmatch(name))


def check_host(host: str, token: str | None = None) -> None:
    """Checks the form of an API's address and of its bearer token, which no message shows."""
    try:
        parts = urllib.parse.urlsplit(host)
        named = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:
        named = None
    if not named or not host.isprintable() or " " in host:
        raise JobError(
            f"host={host!r} is not the address of an API; give one such as 'http://localhost:8080' "
            "or 'https://kubeflow.our-models.example'"
        )
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise JobError(
            "token has spaces, line ends or letters that no bearer token has (it is not shown here); copy "
            "it again"
        )


class Checked(pydantic.BaseModel):
    """Immutable settings, checked when they are made."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def parse(cls: type[_CheckedT], **values: Any) -> _CheckedT:
        """Makes settings; an error is one line that names the value and the fix."""
        try:
            return cls(**values)
        except pydantic.ValidationError as error:
            raise JobError(first_problem(error, cls.__name__)) from None


def first_problem(error: pydantic.ValidationError, name: str) -> str:
    """Returns pydantic's first finding as one line that names the value and the fix."""
    # pydantic's own text spans several lines, with a link and the class's name.
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return message
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        message = "unknown attribute; leave it out"
    return f"{name} {where}={first['input']!r}: {message}"


class Deadline:
    """The time left for a series of network checks."""

    def __init__(self, seconds: float = SECONDS):
        self._seconds = seconds
        self._ends = time.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        """The seconds left; always positive."""
        return max(0.05, self._ends - time.monotonic())

    def ask(self, question: Callable[[], Answer], *, late: str) -> Answer:
        """Waits for the result of a check.

        Args:
            question: Returns the result, or raises.
            late: The error message if it takes too long.

        Returns:
            The result.

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

        # A daemon thread does not keep the program alive; a late answer is ignored.
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(self.seconds_left)
        if failures:
            raise failures[0]
        if not answers:
            raise JobError(f"{late} (no answer within {self._seconds:g} seconds)")
        return answers[0]


def find_credentials(deadline: Deadline) -> Any:
    """Finds Google Cloud credentials and fetches a token with them."""
    fix = (
        "log in with 'gcloud auth application-default login', or name a key file in the environment "
        f"variable {_KEY_FILE}"
    )

    def find() -> Any:
        import google.auth
        import google.auth.transport.requests

        # Outside Google Cloud the library queries the metadata server three times before it gives up.
        os.environ.setdefault("GCE_METADATA_TIMEOUT", "1")
        try:
            credentials, _ = google.auth.default(scopes=[_SCOPE])
            credentials.refresh(google.auth.transport.requests.Request())
        # In addition to its own errors the library raises any error that a malformed key file causes.
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
    """Checks that the paths' buckets exist and are accessible."""
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
    """Checks that the Kubeflow Pipelines API answers and is recent enough for the pipeline."""
    reply = _get(
        f"{host.rstrip('/')}/apis/v2beta1/healthz",
        None,
        deadline,
        what=f"host={host!r}: Kubeflow Pipelines",
        fix="name the address of its API, such as 'http://localhost:8080' after 'kubectl port-forward "
        "-n kubeflow svc/ml-pipeline-ui 8080:80', and the token if it needs one",
        token=token,
    )
    oldest = (2, 2) if later_setting else (2, 0)
    # A distribution may report another version than Kubeflow's, or none; that is not an error.
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
    """Returns an error's first line, without urllib3's nesting."""
    reasons: Iterable[Any] = [error, *error.args]
    found = next((part.reason for part in reasons if getattr(part, "reason", None)), error)
    if len(error.args) > 1 and isinstance(error.args[0], str) and found is error:
        found = error.args[0]
    text = str(found).strip() or type(error).__name__
    return text.splitlines()[0].rpartition(">: ")[2].rstrip(".")


PROGRAM = pathlib.Path(_find_modules.__file__)
"""The program that an image's Python runs."""


def check_command(image: str, modules: Iterable[str], *, pull: str = "missing") -> list[str]:
    """Returns the command that looks for modules in an image; its input is `PROGRAM`."""
    options = ["--rm", "--interactive", f"--pull={pull}", "--entrypoint", "python"]
    return ["docker", "run", *options, image, "-", *modules]


def check_image_holds(
    image: str, modules: Iterable[str], *, seconds: float = SECONDS
) -> str | None:
    """Looks for modules in an image, if a Docker engine and the image are available; else run `check_command`.

    Args:
        image: The image.
        modules: Import paths, and packages with their release line, such as `tfx==1.16`.
        seconds: The time limit.

    Returns:
        `None`; or, if the image could not be checked, a line with the reason and the command to run.

    Raises:
        JobError: If the image lacks a module, or has a package of another line.
    """
    modules = tuple(modules)
    why_not = _look_into(image, modules, seconds)
    if why_not is None:
        return None
    command = shlex.join(check_command(image, modules))
    return (
        f"image {image!r} was not checked ({why_not}); check it with: {command} < "
        f"{shlex.quote(str(PROGRAM))}"
    )


def _look_into(image: str, modules: Iterable[str], seconds: float) -> str | None:
    """Checks modules in an image; returns the reason if that is impossible."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    try:
        run = subprocess.run(
            check_command(image, modules, pull="never"),
            input=PROGRAM.read_text(encoding="utf-8"),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"docker took longer than {seconds:.0f} seconds"
    said = run.stderr.strip().splitlines() or ["it printed nothing"]
    if run.returncode == 0:
        return None
    # Docker itself failed: no daemon, or no such image on this machine.
    if run.returncode == 125 or "daemon" in said[0]:
        return said[0].removeprefix("docker: ").rstrip(".")
    fix = (
        "name an image of that line, or compile with the other one's environment (make setup LINE=...)"
        if "compiled with" in said[-1]
        else "build it with tfx_tpu_trainer installed and your pipeline's code on its PYTHONPATH"
    )
    raise JobError(f"image={image!r} can't run this pipeline: {said[-1]}; {fix}")
