"""The forms that Kubernetes gives names, labels and paths, each with what is said of a value that has another."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_VOLUME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")

# What Kubeflow Pipelines mounts itself into each pod: a path of a pod can be mounted once only.
_TAKEN = ("/kfp-launcher", "/gcs", "/s3", "/minio", "/.local", "/.cache", "/.config")


def is_object_name(text: str) -> bool:
    """Whether an object of Kubernetes, such as a service account, can have a name."""
    return len(text) <= 253 and bool(_NAME.fullmatch(text))


def _of_form(is_so: Callable[[str], object], says: str) -> AfterValidator:
    """Makes a check of strings, with what is said of one that has another form."""

    def check(text: str) -> str:
        if not is_so(text):
            raise ValueError(f"{text!r} is not a valid {says}")
        return text

    return AfterValidator(check)


def _label_key(text: str) -> str:
    prefix, separator, name = text.rpartition("/")
    if not _LABEL.fullmatch(name) or (separator and not is_object_name(prefix)):
        raise ValueError(
            f"{text!r} is not a valid key of a label; give up to 63 letters, digits, '-', '_' and "
            "'.', after a domain and '/' or without one, such as 'example.com/team'"
        )
    return text


def _mount_path(text: str) -> str:
    parts = text.split("/")
    if not text.startswith("/") or ":" in text or ".." in parts or not text.strip("/"):
        raise ValueError(
            f"{text!r} is not a path to mount at; give an absolute one below '/', without ':' and "
            "'..', such as '/cache'"
        )
    path = posixpath.normpath("/" + text.lstrip("/"))
    if path in _TAKEN:
        raise ValueError(
            f"{text!r} is reserved by Kubeflow Pipelines for its own mounts; give another path, "
            "such as '/cache'"
        )
    return path


ObjectName = Annotated[
    str,
    _of_form(
        is_object_name,
        "name of an object of Kubernetes; give lower-case letters, digits, '-' and '.', such as "
        "'registry-key'",
    ),
]
"""Name of a Secret or another object."""

# The backend names the pod's volume by it.
VolumeName = Annotated[
    str,
    _of_form(
        _VOLUME.fullmatch,
        "name that a volume can have; give one of up to 63 lower-case letters, digits and '-', "
        "such as 'ride-cache'",
    ),
]
"""Name of an object that is mounted."""

LabelKey = Annotated[str, AfterValidator(_label_key)]
"""Key of a label, an annotation or a taint."""

LabelValue = Annotated[
    str,
    _of_form(
        lambda text: not text or _LABEL.fullmatch(text),
        "value of a label; give up to 63 letters, digits, '-', '_' and '.', starting and ending "
        "with a letter or digit (an annotation takes any text)",
    ),
]
"""Value of a label or a taint."""

Variable = Annotated[
    str,
    _of_form(
        _VARIABLE.fullmatch,
        "name of an environment variable; give letters, digits and '_', such as 'HTTPS_PROXY'",
    ),
]
"""Name of an environment variable."""

VariableValue = Annotated[
    str,
    _of_form(
        lambda text: "\0" not in text,
        "value of an environment variable: take the NUL out",
    ),
]
"""Value of an environment variable."""

SecretKey = Annotated[
    str,
    _of_form(
        _SECRET_KEY.fullmatch,
        "key of a Secret; give letters, digits, '-', '_' and '.', such as 'access-key'",
    ),
]
"""Key of a Secret's data."""

MountPath = Annotated[str, AfterValidator(_mount_path)]
"""Absolute path in a container, without superfluous '/'."""
