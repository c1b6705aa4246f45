"""What the pods of a pipeline need beside chips: variables, secrets, claims, tolerations, labels."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import pydantic

from tfx_tpu_trainer.components.clusters._checks import Checked, first_problem, is_google_account
from tfx_tpu_trainer.components.clusters._kubernetes_names import (
    LabelKey,
    LabelValue,
    MountPath,
    ObjectName,
    SecretKey,
    Variable,
    VariableValue,
    VolumeName,
    is_object_name,
)

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
        operator: Whether the taint has to have `value`, or any. Defaults to `"Equal"`.
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
    """What pods need.

    Attributes:
        env: Environment variables, by name.
        secret_env: Environment variables from Secrets: for each Secret its keys, and for each key the
            variable, such as `{"bucket-key": {"access": "AWS_ACCESS_KEY_ID"}}`.
        secret_volumes: Secrets mounted as folders: the Secret and the path.
        claims: Persistent volume claims: the claim and the path that it is mounted at.
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
        """Names of the settings that say something."""
        return tuple(name for name in type(self).model_fields if getattr(self, name))

    def over(self, others: PodSettings) -> PodSettings:
        """Returns these settings over others.

        Of a mapping (variables, Secrets, claims, labels, annotations) these keys win; what is a list
        is the others' and then these; the pull policy is this one where it is given.

        Args:
            others: The settings below.

        Raises:
            ValueError: If together they give a variable or a path twice.
        """
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


_LATER = (
    "tolerations",
    "image_pull_secrets",
    "image_pull_policy",
    "labels",
    "annotations",
)


class Pods(Checked):
    """What the pods of a pipeline need, all of them and the trainer's.

    Attributes:
        service_account: Whom the pods run as: a service account of Kubernetes, or on Vertex AI of
            Google Cloud. Defaults to `None`: the installation's.
        all: What every pod needs.
        trainer: What the trainer's pod needs beside that, `PodSettings.over` it.
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
        try:
            self.of_trainer()
        except pydantic.ValidationError as error:
            raise ValueError(f"the trainer's over all: {first_problem(error, 'Pods')}") from None
        return self

    @property
    def of_later_backends(self) -> str | None:
        """A setting that Kubeflow Pipelines before 2.2 refuses or leaves out; `None` where none is given."""
        for group, settings in (("all", self.all), ("trainer", self.trainer)):
            for name in settings.given:
                if name in _LATER:
                    return f"pods.{group}.{name}"
        return None

    def of_trainer(self) -> PodSettings:
        """Returns all that the trainer's pod needs."""
        return self.trainer.over(self.all)
