"""Finds what would fail before a job is sent, without a network."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from typing import Any, TypeVar

import pydantic

_CheckedT = TypeVar("_CheckedT", bound="Checked")

_DIGEST = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")
_TAGGED = re.compile(r"(?:[^\s/@]+/)*[^\s/:@]+:[\w][\w.-]{0,127}")
_REGION = re.compile(r"[a-z]+(-[a-z]+)+\d+")
_JOB_ID = re.compile(r"[a-z][-a-z0-9]{0,127}")
_ACCOUNT = re.compile(r"[^\s@]+@[^\s@]+")
_PROJECT = re.compile(r"([a-z][a-z0-9.-]*:)?[a-z][a-z0-9-]{4,28}[a-z0-9]|\d+")


class JobError(ValueError):
    """A job that cannot run as it was asked for; the message names the setting and the fix."""


def check_image(image: str, *, setting: str = "image") -> None:
    """Checks that a container image is named by a tag or a digest.

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
    if not _TAGGED.fullmatch(image + ":1"):
        raise JobError(
            f"{setting}={image!r} is not the name of a container image; give one with a tag or a "
            "digest, such as 'europe-docker.pkg.dev/project/images/pipelines:1'"
        )
    raise JobError(
        f"{setting}={image!r} has no tag, so you could not tell later which image ran; add one, as "
        f"in {image + ':1'!r}, or a digest (@sha256:...)"
    )


def check_bucket_paths(paths: Mapping[str, str], *, schemes: tuple[str, ...] = ()) -> None:
    """Checks that paths are where every pod can read and write: in a bucket.

    Args:
        paths: Paths by the names of their settings.
        schemes: Schemes that will do, such as `("gs",)`. Defaults to `()`: any.

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
    """Checks the forms of a job's id and of the account that it runs as, where they are given."""
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
    """Whether a name has the form of an account of Google Cloud."""
    return bool(_ACCOUNT.fullmatch(name))


def check_host(host: str, token: str | None = None) -> None:
    """Checks the forms of an API's address and of its bearer token.

    Args:
        host: The address.
        token: The token, which no message shows. Defaults to `None`.

    Raises:
        JobError: If one has another form.
    """
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
    """Settings that are checked when they are made, and stay as they are."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def parse(cls: type[_CheckedT], **values: Any) -> _CheckedT:
        """Makes settings; errors are one line that names the value and the fix."""
        try:
            return cls(**values)
        except pydantic.ValidationError as error:
            raise JobError(first_problem(error, cls.__name__)) from None


def first_problem(error: pydantic.ValidationError, name: str) -> str:
    """Returns the first of pydantic's findings as one line that names the value and the fix."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return message
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        message = "unknown attribute; leave it out"
    return f"{name} {where}={first['input']!r}: {message}"
