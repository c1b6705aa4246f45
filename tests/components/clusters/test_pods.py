"""Tests the pods' settings: the trainer's over all pods', each backend's, and rejected ones."""

from __future__ import annotations

import pydantic
import pytest

from tests.bad_input import case, row
from tfx_tpu_trainer.components.clusters import _pods as names
from tfx_tpu_trainer.components.clusters._checks import JobError
from tfx_tpu_trainer.components.clusters._pods import (
    Pods,
    PodSettings,
    Toleration,
    check_vertex_pods,
    vertex_labels,
)

TAINT = {"key": "dedicated", "value": "rides", "effect": "NoSchedule"}


def test_the_trainers_settings_are_laid_over_all_pods():
    pods = Pods.parse(
        all={
            "env": {"LEVEL": "1", "PROXY": "p"},
            "secret_env": {"bucket-key": {"id": "KEY_ID"}},
            "claims": {"cache": "/cache"},
            "tolerations": [TAINT],
            "image_pull_secrets": ["registry"],
            "image_pull_policy": "IfNotPresent",
            "labels": {"team": "rides"},
        },
        trainer={
            "env": {"LEVEL": "2"},
            "secret_env": {"bucket-key": {"id": "OTHER_ID"}},
            "secret_volumes": {"certs": "/certs"},
            "tolerations": [{"key": "spot", "operator": "Exists"}, TAINT],
            "image_pull_secrets": ["other"],
            "image_pull_policy": "Always",
            "labels": {"task": "training"},
        },
    )
    assert pods.of_trainer() == PodSettings(
        env={"LEVEL": "2", "PROXY": "p"},
        secret_env={"bucket-key": {"id": "OTHER_ID"}},
        secret_volumes={"certs": "/certs"},
        claims={"cache": "/cache"},
        tolerations=(Toleration(**TAINT), Toleration(key="spot", operator="Exists")),
        image_pull_secrets=("registry", "other"),
        image_pull_policy="Always",
        labels={"team": "rides", "task": "training"},
    )
    assert pods.all.env == {"LEVEL": "1", "PROXY": "p"}


def test_without_settings_of_its_own_the_trainer_has_all_pods():
    pods = Pods.parse(all={"image_pull_policy": "Never", "annotations": {"a": "any text"}})
    assert pods.of_trainer() == pods.all
    assert pods.all.given == ("image_pull_policy", "annotations")


@pytest.mark.parametrize(
    ("pods", "setting"),
    [
        ({}, None),
        ({"all": {"env": {"A": "1"}, "claims": {"c": "/c"}}}, None),
        ({"all": {"labels": {"a": "b"}}}, "pods.all.labels"),
        ({"trainer": {"tolerations": [{"operator": "Exists"}]}}, "pods.trainer.tolerations"),
    ],
)
def test_what_only_later_backends_know_is_named(pods, setting):
    assert Pods.parse(**pods).of_later_backends == setting


@pytest.mark.parametrize("account", ["pipeline-runner", "runs@our-models.iam.gserviceaccount.com"])
def test_accounts_of_both_backends(account):
    assert Pods.parse(service_account=account).service_account == account


def _wrong(name, value, *says):
    return case("runners", f"`pods.all.{name}={value!r}`", *says, values={name: value})


@pytest.mark.parametrize(
    "settings",
    [
        _wrong(
            "env", {"2A": "1"}, "'2A' is not a valid name of an environment variable; give letters"
        ),
        _wrong("env", {"A=B": "1"}, "'A=B' is not a valid name of an environment variable"),
        _wrong("env", {"A": 1}, "Pods all.env.A=1: Input should be a valid string"),
        _wrong(
            "env",
            {"A": "\0"},
            "'\\x00' is not a valid value of an environment variable: remove the NUL",
        ),
        _wrong("secret_env", {"key": {}}, "Pods all.secret_env.key={}: ", "at least 1 item"),
        _wrong(
            "secret_env",
            {"Key": {"a": "A"}},
            "'Key' is not a valid name of an object of Kubernetes",
        ),
        _wrong(
            "secret_env",
            {"key": {"a/b": "A"}},
            "'a/b' is not a valid key of a Secret; give letters",
        ),
        _wrong(
            "secret_env",
            {"key": {"a": "A-B"}},
            "'A-B' is not a valid name of an environment variable",
        ),
        _wrong(
            "secret_env",
            {"key": {"a": "A", "b": "A"}},
            "the environment variable 'A' occurs twice in env and secret_env; leave one of them out",
        ),
        _wrong(
            "secret_volumes", {"certs": "certs"}, "'certs' is not a path to mount at; give an abs"
        ),
        _wrong("secret_volumes", {"certs": "/a/../b"}, "'/a/../b' is not a path to mount at"),
        _wrong("secret_volumes", {"certs": "/"}, "'/' is not a path to mount at"),
        _wrong(
            "secret_volumes", {"certs": "/gcs/"}, "'/gcs/' is reserved by Kubeflow Pipelines for"
        ),
        _wrong(
            "secret_volumes",
            {"my.certs": "/c"},
            "'my.certs' is not a valid name that a volume can have",
        ),
        _wrong("claims", {"cache": "/a:b"}, "'/a:b' is not a path to mount at", "without ':'"),
        _wrong(
            "claims",
            {"a": "/c", "b": "/c/"},
            "the path '/c' occurs twice in secret_volumes and claims",
        ),
        _wrong("tolerations", [{}], "a toleration without a key tolerates all taints;"),
        _wrong(
            "tolerations",
            [{"key": "a", "operator": "Exists", "value": "b"}],
            "value='b' with operator='Exists', which accepts any value; leave one",
        ),
        _wrong(
            "tolerations",
            [{"key": "a", "effect": "NoSchedule", "toleration_seconds": 5}],
            "toleration_seconds=5 needs effect='NoExecute'",
            "found effect='NoSchedule'",
        ),
        _wrong(
            "tolerations",
            [{"key": "a", "effect": "Never"}],
            "Pods all.tolerations.0.effect='Never': Input should be 'NoSchedule'",
        ),
        _wrong(
            "tolerations", [TAINT, TAINT], "the toleration {'key': 'dedicated', ", "occurs twice in"
        ),
        _wrong(
            "image_pull_secrets", ["a", "a"], "the Secret 'a' occurs twice in image_pull_secrets"
        ),
        _wrong(
            "image_pull_secrets", ["a_b"], "'a_b' is not a valid name of an object of Kubernetes"
        ),
        _wrong(
            "image_pull_policy", "always", "Pods all.image_pull_policy='always': Input should be"
        ),
        _wrong(
            "labels", {"a b": "c"}, "'a b' is not a valid key of a label; give up to 63 letters"
        ),
        _wrong(
            "labels",
            {"x_y/a": "c"},
            "'x_y/a' is not a valid key of a label",
            "after a domain and '/'",
        ),
        _wrong(
            "labels", {"a": "-c"}, "'-c' is not a valid value of a label; give up to 63 letters"
        ),
        _wrong("labels", {"a": "c" * 64}, f"'{'c' * 64}' is not a valid value of a label"),
        _wrong("annotations", {"/a": "c"}, "'/a' is not a valid key of a label"),
        _wrong("label", {"a": "b"}, "Pods all.label={'a': 'b'}: unknown attribute"),
    ],
)
def test_what_no_pod_can_have_is_refused(settings, refused):
    with refused(JobError):
        Pods.parse(all=settings)


@row(
    "runners",
    "a Secret and a claim of one name in `pods`",
    "the name of a volume 'data' occurs twice in secret_volumes and claims; leave one of them out",
)
def test_a_volume_has_a_name_of_its_own(refused):
    with refused(JobError):
        Pods.parse(all={"secret_volumes": {"data": "/a"}, "claims": {"data": "/b"}})


@row(
    "runners",
    "a path that `pods.trainer` and `pods.all` mount at",
    "the trainer's over all: the path '/c' occurs twice in secret_volumes and claims",
)
def test_both_together_must_fit_too(refused):
    with refused(JobError):
        Pods.parse(all={"claims": {"a": "/c"}}, trainer={"secret_volumes": {"b": "/c"}})


@row("runners", "`pods.service_account='A'`", "'A' is not a service account; give a name such as")
def test_an_account_is_one_of_either_backend(refused):
    with refused(JobError):
        Pods.parse(service_account="A")


def _read(kind, text):
    return pydantic.TypeAdapter(kind).validate_python(text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (names.ObjectName, "registry.key-2"),
        (names.ObjectName, "a" * 253),
        (names.VolumeName, "a" * 63),
        (names.LabelKey, "team"),
        (names.LabelKey, "sidecar.istio.io/inject"),
        (names.LabelKey, "A_b.c-9"),
        (names.LabelValue, ""),
        (names.LabelValue, "v1.2_rc-3"),
        (names.Variable, "_HTTPS_PROXY2"),
        (names.VariableValue, "any text, ü, $(A)\n"),
        (names.SecretKey, "..tls.crt"),
        (names.MountPath, "/a b/ü"),
    ],
)
def test_what_kubernetes_takes_is_left_as_it_is(kind, text):
    assert _read(kind, text) == text


def test_a_path_has_one_form():
    assert _read(names.MountPath, "//cache//rides/./") == "/cache/rides"


def test_variables_an_account_and_labels_can_be_had():
    pods = Pods.parse(
        service_account="runs@our-models.iam.gserviceaccount.com",
        all={"env": {"A": "1"}, "labels": {"team": "rides"}},
        trainer={"env": {"A": "2"}, "labels": {"task": "training"}},
    )
    check_vertex_pods(pods, custom_job=True)
    assert vertex_labels(pods) == {"labels": {"team": "rides"}}
    assert vertex_labels(Pods()) == {}


@pytest.mark.parametrize(
    "settings",
    [
        case(
            "runners",
            f"`pods.trainer.{name}={value!r}`, for Vertex AI",
            f"pods.trainer.{name}=",
            shown,
            f"is not supported by tasks of Vertex AI; {way_out}",
            values={name: value},
        )
        for name, value, shown, way_out in (
            ("secret_env", {"k": {"a": "A"}}, "{'k': {'a': 'A'}}", "keep the secret in Secret Man"),
            ("secret_volumes", {"k": "/k"}, "{'k': '/k'}", "keep the secret in Secret Manager"),
            ("claims", {"c": "/c"}, "{'c': '/c'}", "put the files into a bucket"),
            (
                "tolerations",
                [{"key": "a"}],
                "[{'key': 'a', 'operator': 'Equal'}]",
                "leave them out: Vertex AI chooses its machines",
            ),
            ("image_pull_secrets", ["r"], "['r']", "let the service account read the image's"),
            ("image_pull_policy", "Always", "'Always'", "leave it out, and name the image with"),
            ("annotations", {"a": "b"}, "{'a': 'b'}", "leave them out, or make them labels"),
        )
    ],
)
def test_what_vertex_ai_cannot_give_is_refused(settings, refused):
    with refused(JobError):
        check_vertex_pods(Pods.parse(trainer=settings), custom_job=True)


@row(
    "runners",
    "`pods.all.labels={'example.com/a': 'b'}`, for Vertex AI",
    "pods.all.labels: 'example.com/a': 'b' is not a label of Google Cloud; give up to 63 "
    "lower-case letters",
)
def test_labels_of_google_cloud_have_a_form_of_their_own(refused):
    with refused(JobError):
        check_vertex_pods(Pods.parse(all={"labels": {"example.com/a": "b"}}), custom_job=True)


@row(
    "runners",
    "`pods.trainer.labels={'a': 'b'}`, for Vertex AI without a TPU",
    "pods.trainer.labels={'a': 'b'}: on Vertex AI a single task has no labels",
    "give them to pods.all",
)
def test_a_task_without_a_custom_job_has_no_labels(refused):
    with refused(JobError):
        check_vertex_pods(Pods.parse(trainer={"labels": {"a": "b"}}), custom_job=False)
