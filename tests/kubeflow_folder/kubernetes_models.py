"""Whether a manifest is one: Kubernetes' own client models are asked, and its API's schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
from kubernetes import client

OLDEST, NEWEST = "1.25", "1.37"
"""The Kubernetes versions between which manifests are valid."""

KINDS = {
    ("v1", "Service"): client.V1Service,
    ("v1", "ConfigMap"): client.V1ConfigMap,
    ("batch/v1", "Job"): client.V1Job,
    ("apps/v1", "Deployment"): client.V1Deployment,
}


def accepted(manifest: Mapping[str, Any]) -> Any:
    """Returns the client's object of a manifest, which must be valid in the oldest and the newest Kubernetes.

    The client checks types and required fields, and drops what it does not know: writing the object
    out again must give the manifest back, or a field was misspelt or misplaced.
    """
    api = client.ApiClient()
    kind = KINDS[manifest["apiVersion"], manifest["kind"]]
    made = api.deserialize(SimpleNamespace(data=json.dumps(manifest)), kind)
    assert api.sanitize_for_serialization(made) == manifest
    for version in (OLDEST, NEWEST):
        # A schema of another version is taken in its place without a word.
        assert kubernetes_validate.validate(dict(manifest), version, strict=True) == version
    return made
