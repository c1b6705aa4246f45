"""Defines pods' settings in addition to chips: variables, secrets, claims, tolerations, labels.

Names, labels and paths have Kubernetes' forms. Vertex AI supports only variables, an account and labels, and would
silently ignore the rest.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator

from tfx_tpu_trainer.components.clusters._checks import (
    Checked,
    JobError,
    first_problem,
    is_google_account,
)

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_VOLUME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")

# Kubeflow Pipelines mounts these itself, and a pod can mount a path only once.
_TAKEN = ("/kfp-launcher", "/gcs", "/s3", "/minio", "/.local", "/.cache", "/.config")


def is_object_name(text: str) -> bool:
    """Returns whether a Kubernetes object, such as a service account, can have this name."""
    return len(text) <= 253 and bool(_NAME.fullmatch(text))


def _of_form(is_so: Callable[[str], object], says: str) -> AfterValidator:
    """Makes a string check with its error message."""

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

# The backend names the pod's volume after it.
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

Variable = Annotated[
    str,
    _of_form(
        _VARIABLE.fullmatch,
        "name of an environment variable; give letters, digits and '_', such as 'HTTPS_PROXY'",
    ),
]

VariableValue = Annotated[
    str,
    _of_form(lambda text: "\0" not in text, "value of an environment variable: remove the NUL"),
]

SecretKey = Annotated[
    str,
    _of_form(
        _SECRET_KEY.fullmatch,
        "key of a Secret; give letters, digits, '-', '_' and '.', such as 'access-key'",
    ),
]

MountPath = Annotated[str, AfterValidator(_mount_path)]
"""Absolute path in a container, without superfluous '/'."""


_Keys = Annotated[Mapping[SecretKey, Variable], pydantic.Field(min_length=1)]


def _check_once(values: Iterable[Any], what: str, where: str) -> None:
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            shown = value.model_dump(exclude_none=True) if isinstance(value, Checked) else value
            raise ValueError(f"{what} {shown!r} occurs twice in {where}; leave one of them out")
        seen.add(value)


class Toleration(Checked):
    """A taint of nodes that a pod tolerates.

    Attributes:
        key: Key of the taint. Defaults to `None`: any, with `operator="Exists"`.
        operator: Whether the taint must have `value`, or may have any. Defaults to `"Equal"`.
        value: Value of the taint. Defaults to `None`: the empty one.
        effect: Effect of the taint. Defaults to `None`: any.
        toleration_seconds: Seconds until the pod is evicted, with `effect="NoExecute"`. Defaults to
            `None`: never.
    """

    key: LabelKey | None = None
    operator: Literal["Equal", "Exists"] = "Equal"
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[int, pydantic.Field(ge=0, le=2**31 - 1)] | None = None

    @pydantic.model_validator(mode="after")
    def _can_be(self) -> Toleration:
        if self.operator == "Exists" and self.value is not None:
            raise ValueError(
                f"value={self.value!r} with operator='Exists', which accepts any value; leave one "
                "of them out"
            )
        if self.key is None and self.operator != "Exists":
            raise ValueError(
                "a toleration without a key tolerates all taints; give it operator='Exists', or a "
                "key"
            )
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise ValueError(
                f"toleration_seconds={self.toleration_seconds} needs effect='NoExecute', since no other effect "
                f"evicts pods; found effect={self.effect!r}"
            )
        return self


class PodSettings(Checked):
    """Settings of pods.

    Attributes:
        env: Environment variables, by name.
        secret_env: Environment variables from Secrets: for each Secret its keys, and for each key the
            variable, such as `{"bucket-key": {"access": "AWS_ACCESS_KEY_ID"}}`.
        secret_volumes: Secrets mounted as folders: the Secret and the path.
        claims: Persistent volume claims: the claim and its mount path.
        tolerations: Taints of nodes that the pods tolerate.
        image_pull_secrets: Secrets with which images are pulled.
        image_pull_policy: When images are pulled. Defaults to `None`: Kubernetes' own choice.
        labels: Labels of the pods.
        annotations: Annotations of the pods.
    """

    env: Mapping[Variable, VariableValue] = {}
    secret_env: Mapping[ObjectName, _Keys] = {}
    secret_volumes: Mapping[VolumeName, MountPath] = {}
    claims: Mapping[VolumeName, MountPath] = {}
    tolerations: Annotated[tuple[Toleration, ...], pydantic.Field(strict=False)] = ()
    image_pull_secrets: Annotated[tuple[ObjectName, ...], pydantic.Field(strict=False)] = ()
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    labels: Mapping[LabelKey, LabelValue] = {}
    annotations: Mapping[LabelKey, str] = {}

    @pydantic.model_validator(mode="after")
    def _nothing_twice(self) -> PodSettings:
        variables = itertools.chain(self.env, *(keys.values() for keys in self.secret_env.values()))
        _check_once(variables, "the environment variable", "env and secret_env")
        _check_once(
            itertools.chain(self.secret_volumes, self.claims),
            "the name of a volume",
            "secret_volumes and claims",
        )
        _check_once(
            itertools.chain(self.secret_volumes.values(), self.claims.values()),
            "the path",
            "secret_volumes and claims",
        )
        _check_once(self.image_pull_secrets, "the Secret", "image_pull_secrets")
        _check_once(self.tolerations, "the toleration", "tolerations")
        return self

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the settings with a value."""
        return tuple(name for name in type(self).model_fields if getattr(self, name))

    def over(self, others: PodSettings) -> PodSettings:
        """Returns these settings over others.

        In mappings (variables, Secrets, claims, labels, annotations) the keys of these settings win; lists begin with
        the others' items; this pull policy wins if it is given.

        Args:
            others: The settings below.

        Raises:
            ValueError: If together they give a variable or a path twice.
        """
        # The field's type decides how it merges, so a new setting needs no code here.
        merged: dict[str, Any] = {}
        for name in type(self).model_fields:
            below, above = getattr(others, name), getattr(self, name)
            if isinstance(above, Mapping):
                merged[name] = {**below, **above}
            elif isinstance(above, tuple):
                merged[name] = tuple(dict.fromkeys([*below, *above]))
            else:
                merged[name] = below if above is None else above
        return PodSettings(**merged)


# Kubeflow Pipelines supports these since 2.2.
_LATER = ("tolerations", "image_pull_secrets", "image_pull_policy", "labels", "annotations")


class Pods(Checked):
    """Settings of a pipeline's pods, and of the trainer's.

    Attributes:
        service_account: The pods' service account: of Kubernetes, or on Vertex AI of Google Cloud. Defaults to `None`:
            the installation's.
        all: Settings of every pod.
        trainer: Additional settings of the trainer's pod; see `PodSettings.over`.
    """

    service_account: str | None = None
    all: PodSettings = PodSettings()
    trainer: PodSettings = PodSettings()

    @pydantic.field_validator("service_account")
    @classmethod
    def _account(cls, name: str | None) -> str | None:
        if name is not None and not is_object_name(name) and not is_google_account(name):
            raise ValueError(
                f"{name!r} is not a service account; give a name such as 'pipeline-runner', or on "
                "Vertex AI an address such as 'runs@our-models-17.iam.gserviceaccount.com'"
            )
        return name

    @pydantic.model_validator(mode="after")
    def _fit_together(self) -> Pods:
        # Each may be valid by itself, but together they may mount one path twice; the cluster would report that late.
        try:
            self.of_trainer()
        except pydantic.ValidationError as error:
            raise ValueError(f"the trainer's over all: {first_problem(error, 'Pods')}") from None
        return self

    @property
    def of_later_backends(self) -> str | None:
        """A given setting that Kubeflow Pipelines before 2.2 rejects or ignores; `None` if there is none."""
        for group, settings in (("all", self.all), ("trainer", self.trainer)):
            for name in settings.given:
                if name in _LATER:
                    return f"pods.{group}.{name}"
        return None

    def of_trainer(self) -> PodSettings:
        """Returns all settings of the trainer's pod."""
        return self.trainer.over(self.all)


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
    "image_pull_policy": "leave it out, and name the image with a digest (@sha256:...)",
    "annotations": "leave them out, or make them labels",
}


def check_vertex_pods(pods: Pods, *, custom_job: bool) -> None:
    """Checks that Vertex AI supports the pods' settings.

    Args:
        pods: The settings.
        custom_job: Whether the trainer has a CustomJob, which can have its own labels.

    Raises:
        JobError: If it does not; the message names the setting and the fix.
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
    """Returns the `PipelineJob` fields with its labels."""
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
