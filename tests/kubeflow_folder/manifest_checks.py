"""The scripts of kubeflow/, which is no package, and whether the manifests that they print are valid and restricted."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import kubernetes_validate
from kubernetes import client

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "kubeflow"


def load(name: str) -> ModuleType:
    """Imports a script of the folder under its own name."""
    module_name = f"kubeflow_script_{name}"
    spec = importlib.util.spec_from_file_location(module_name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


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


def check_restricted(pod: Mapping[str, Any], container: Mapping[str, Any]) -> None:
    """Asserts that a pod passes the standard's profile "restricted", with a root that is read-only.

    Args:
        pod: Its spec; of KServe, the predictor.
        container: Its one container; of KServe, the model.
    """
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    context = container["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["readOnlyRootFilesystem"] is True
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert "privileged" not in context
    kinds = {volume["name"]: set(volume) - {"name"} for volume in pod["volumes"]}
    assert set().union(*kinds.values()) <= {"emptyDir", "configMap"}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert kinds[mounts["/tmp"]["name"]] == {"emptyDir"}
    for mount in mounts.values():
        assert kinds[mount["name"]] == {"emptyDir"} or mount["readOnly"]


def check_root_with_locked_memory(pod: Mapping[str, Any], container: Mapping[str, Any]) -> None:
    """Asserts that a pod runs as root with one capability, and is as restricted else."""
    assert pod["securityContext"] == {"runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["SYS_RESOURCE"]},
    }
