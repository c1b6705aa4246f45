"""What Vertex AI gives the tasks of a pipeline of all that pods can have: variables, an account and labels.

It reads no platform document, and would pass over the rest without a word.
"""

from __future__ import annotations

import re
from typing import Any

from tfx_tpu_trainer.components.clusters._checks import JobError
from tfx_tpu_trainer.components.clusters._pods import Pods

_LABEL_KEY = re.compile(r"[a-z][-_a-z0-9]{0,62}")
_LABEL_VALUE = re.compile(r"[-_a-z0-9]{0,63}")

_FROM_SECRET_MANAGER = (
    "keep the secret in Secret Manager, let the service account read it, and read it in your code"
)
_WAYS_OUT = {
    "secret_env": _FROM_SECRET_MANAGER,
    "secret_volumes": _FROM_SECRET_MANAGER,
    "claims": "put the files into a bucket",
    "tolerations": "leave them out: Vertex AI chooses its machines itself",
    "image_pull_secrets": "let the service account read the image's registry",
    "image_pull_policy": "leave it out, and name the image by a digest (@sha256:...)",
    "annotations": "leave them out, or make them labels",
}


def check_vertex_pods(pods: Pods, *, custom_job: bool) -> None:
    """Checks that Vertex AI can give what pods need.

    Args:
        pods: What they need.
        custom_job: Whether the trainer has a CustomJob, which can have labels of its own.

    Raises:
        JobError: If it cannot; the message names the setting and the way out.
    """
    for group, settings in (("all", pods.all), ("trainer", pods.trainer)):
        for name in settings.given:
            if name in _WAYS_OUT:
                raise JobError(
                    f"pods.{group}.{name}={_shown(getattr(settings, name))} is not supported by "
                    f"tasks of Vertex AI; {_WAYS_OUT[name]}"
                )
        for key, value in settings.labels.items():
            if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
                raise JobError(
                    f"pods.{group}.labels: {key!r}: {value!r} is not a label of Google Cloud; give "
                    "up to 63 lower-case letters, digits, '_' and '-' each, the key starting with "
                    "a letter"
                )
    if pods.trainer.labels and not custom_job:
        raise JobError(
            f"pods.trainer.labels={_shown(pods.trainer.labels)}: on Vertex AI a single task has no labels, only the "
            "whole job; give them to pods.all"
        )


def vertex_labels(pods: Pods) -> dict[str, Any]:
    """Returns the part of a `PipelineJob` in JSON form that has its labels."""
    return {"labels": dict(pods.all.labels)} if pods.all.labels else {}


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        value = [
            each.model_dump(exclude_none=True) if hasattr(each, "model_dump") else each
            for each in value
        ]
    elif not isinstance(value, str):
        value = dict(value)
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}..."
