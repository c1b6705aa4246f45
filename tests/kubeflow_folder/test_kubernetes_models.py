"""The check of manifests finds what is wrong with one, in either of Kubernetes' versions."""

from __future__ import annotations

import copy
from typing import Any

import kubernetes_validate
import pytest

from tests.kubeflow_folder.kubernetes_models import NEWEST, OLDEST, accepted

JOB: dict[str, Any] = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "a"},
    "spec": {"template": {"spec": {"containers": [{"name": "a", "image": "r/a:1"}]}}},
}


def _job(**of_pod: Any) -> dict[str, Any]:
    made = copy.deepcopy(JOB)
    made["spec"]["template"]["spec"].update(of_pod)
    return made


def test_a_valid_manifest_is_accepted():
    assert accepted(JOB).metadata.name == "a"


@pytest.mark.parametrize(
    "manifest",
    [
        _job(restartpolicy="Never"),
        _job(tolerations=[{"key": "a", "seconds": 1}]),
        _job(containers=[{"image": "r/a:1"}]),
    ],
)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_schemas_alone_refuse_what_is_misspelt_or_missing(manifest, version):
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, version, strict=True)
    with pytest.raises((AssertionError, ValueError, kubernetes_validate.ValidationError)):
        accepted(manifest)


def test_a_field_that_the_oldest_has_not_is_refused_by_it():
    # Sidecars' restart policy is of 1.28.
    manifest = _job(initContainers=[{"name": "b", "image": "r/b:1", "restartPolicy": "Always"}])
    assert kubernetes_validate.validate(manifest, NEWEST, strict=True) == NEWEST
    with pytest.raises(kubernetes_validate.ValidationError, match="restartPolicy"):
        kubernetes_validate.validate(manifest, OLDEST, strict=True)
