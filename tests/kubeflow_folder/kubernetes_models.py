"""Kubernetes' own client models, asked whether a manifest is one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from kubernetes import client

KINDS = {
    ("v1", "Service"): client.V1Service,
    ("v1", "ConfigMap"): client.V1ConfigMap,
    ("batch/v1", "Job"): client.V1Job,
    ("apps/v1", "Deployment"): client.V1Deployment,
}


def accepted(manifest: Mapping[str, Any]) -> Any:
    """Returns the client's object of a manifest.

    The client checks types and required fields, and drops what it does not know: writing the object
    out again must give the manifest back, or a field was misspelt or misplaced.
    """
    api = client.ApiClient()
    kind = KINDS[manifest["apiVersion"], manifest["kind"]]
    made = api.deserialize(SimpleNamespace(data=json.dumps(manifest)), kind)
    assert api.sanitize_for_serialization(made) == manifest
    return made
