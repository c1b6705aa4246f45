"""What Kubernetes' Pod Security Standards call restricted, and what a pod may still write to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
    assert pod["securityContext"] == {
        "runAsUser": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["SYS_RESOURCE"]},
    }
