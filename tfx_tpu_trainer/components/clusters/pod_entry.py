"""Registers artifact types with TFX, then starts a component in a container as TFX does.

    python -m tfx_tpu_trainer.components.clusters.pod_entry --executor_class_path=... (TFX's own arguments)

TFX reads the types of a task's artifacts before it imports the component's executor, which therefore can't register
them. It reads them from the backend's description of each artifact:

- Vertex AI gives the type with which the writing component was compiled.
- Kubeflow Pipelines gives no type of inputs (`toRuntimeArtifact` in its `backend/src/v2/metadata/converter.go`), or one
  of its own types, such as `system.Artifact`. TFX then ends with an error at every task that has an input
  (https://github.com/tensorflow/tfx/issues/7768; TFX 1.21 does too). The arguments have the
  declared type of each input, which is filled in here.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Sequence
from typing import Any

from tfx_tpu_trainer.components._tfx_private import RUN_EXECUTOR, title_to_class_path
from tfx_tpu_trainer.components.clusters._html_page import HTML_TITLE, HtmlFile

_INVOCATION = "--json_serialized_invocation_args"
_DECLARED = "--json_serialized_inputs_spec_args"


def know_html() -> None:
    """Registers the class for artifacts of the type `system.HTML`."""
    title_to_class_path()[HTML_TITLE] = f"{HtmlFile.__module__}.{HtmlFile.__qualname__}"


def with_declared_types(arguments: Sequence[str]) -> list[str]:
    """Fills in each input artifact's declared type if the backend gave no type that TFX knows."""
    # With the declared input "data" of type Examples, {"data": {"artifacts": [{"uri": "u", "type": {}}]}} becomes
    # {"data": {"artifacts": [{"uri": "u", "type": <Examples>}]}}. What TFX knows stays: it may be a subclass.
    changed = list(arguments)
    if _INVOCATION not in changed or _DECLARED not in changed:
        return changed
    place = changed.index(_INVOCATION) + 1
    invocation = json.loads(changed[place])
    declared = json.loads(changed[changed.index(_DECLARED) + 1]).get("artifacts", {})
    for key, given in invocation.get("inputs", {}).get("artifacts", {}).items():
        for artifact in given.get("artifacts", []):
            if _is_known(artifact.get("type", {})):
                continue
            if key not in declared:
                raise ValueError(
                    f"the backend gives no type of the input {key!r} that TFX knows, and the compiled pipeline "
                    "declares none: compile the pipeline again, with the tfx_tpu_trainer of its image"
                )
            artifact["type"] = declared[key]["artifactType"]
    changed[place] = json.dumps(invocation)
    return changed


def _is_known(artifact_type: dict[str, Any]) -> bool:
    return bool(
        artifact_type.get("instanceSchema")
        or artifact_type.get("schemaTitle") in title_to_class_path()
    )


def main() -> None:
    """Runs TFX's own entry point with this process's arguments."""
    know_html()
    sys.argv[1:] = with_declared_types(sys.argv[1:])
    runpy.run_module(RUN_EXECUTOR, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
