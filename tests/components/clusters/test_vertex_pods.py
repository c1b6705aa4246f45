"""What Vertex AI gives of all that pods can have, and the way out where it gives nothing."""

from __future__ import annotations

import pytest

from tests.bad_input import case, row
from tfx_tpu_trainer.components.clusters._checks import JobError
from tfx_tpu_trainer.components.clusters._pods import Pods
from tfx_tpu_trainer.components.clusters._vertex_pods import check_vertex_pods, vertex_labels


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
            ("image_pull_policy", "Always", "'Always'", "leave it out, and name the image by"),
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
