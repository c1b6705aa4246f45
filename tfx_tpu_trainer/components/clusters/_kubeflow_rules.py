"""What Kubeflow Pipelines' open-source backend can't run, or passes over, of what TFX compiles.

Its compiler (`backend/src/v2/compiler/visitor.go`) ends with an error at an executor that is neither a container nor
an importer. Its driver and launcher never read a container's `lifecycle.preCacheCheck`, the hook in which TFX's
file-based ExampleGens look at their files; Vertex AI runs it before it looks into its cache. And they hand inputs to a
task without the types that TFX's container needs, which `pod_entry.py` fills in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tfx_tpu_trainer.components.clusters._html_page import ENTRY_POINT
from tfx_tpu_trainer.components.clusters._task_options import never_cache
from tfx_tpu_trainer.components.clusters._tfx_private import RUN_EXECUTOR

# Spans, dates and versions in a split's pattern, as TFX's ExampleGens have them.
_SPANS = re.compile(r"\{(?:SPAN|VERSION)(?::\d+)?\}|\{(?:YYYY|MM|DD)\}")


def check_spec_version(version: str) -> None:
    """Checks that the values of parameters are in the form that Kubeflow Pipelines' driver reads.

    It resolves a `constant`, and ends each task that has the `constantValue` of specification 2.0 with "param runtime
    value spec ... not implemented".
    """
    if version != "2.1":
        raise ValueError(
            f"spec_version={version!r}: Kubeflow Pipelines can't read the parameters of its tasks; "
            "compile with 2.1 ('--spec-version 2.1', the default), or run it on Vertex AI, which "
            "accepts both."
        )


def check_executors(pipeline_spec: Mapping[str, Any]) -> None:
    """Checks that all tasks are of a kind that Kubeflow Pipelines can run; a Resolver is not."""
    for task, _, executor in _tasks(pipeline_spec):
        kinds = set(executor) - {"container", "importer"}
        if kinds:
            kind = kinds.pop()
            advice = (
                "find the baseline with a LastBlessedModel instead of a Resolver (in the "
                "pipelines of this repository: baseline=pointer)"
                if kind == "resolver"
                else "use a component that runs a container"
            )
            raise ValueError(
                f"{task}: Kubeflow Pipelines runs no task of kind {kind!r}, only containers and importers; "
                f"{advice}."
            )


def declare_types(pipeline_spec: dict[str, Any]) -> None:
    """Lets TFX's containers start with `pod_entry.py`, which tells them the types of their inputs."""
    for _, _, executor in _tasks(pipeline_spec):
        command = executor.get("container", {}).get("command", [])
        if command[-2:] == ["-m", RUN_EXECUTOR]:
            command[-1] = ENTRY_POINT


def do_without_drivers(pipeline_spec: dict[str, Any]) -> None:
    """Lets ExampleGens run right where nothing looks at their files beforehand.

    Their results never come from the cache, which could not tell that the files have changed.
    """
    for task, definition, executor in _tasks(pipeline_spec):
        if "preCacheCheck" not in executor.get("container", {}).get("lifecycle", {}):
            continue
        given = definition.get("inputs", {}).get("parameters", {}).get("input_config", {})
        config = str(given.get("runtimeValue", {}).get("constant", ""))
        found = _SPANS.search(config)
        if found:
            raise ValueError(
                f"{task}: its pattern has {found[0]}, but Kubeflow Pipelines does not run the "
                "driver that finds the newest span or version: give a pattern without it, such as "
                "that of one span, or run the pipeline on Vertex AI."
            )
        never_cache(pipeline_spec, task)


def _tasks(
    pipeline_spec: Mapping[str, Any],
) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Each task's name, definition and executor."""
    executors = pipeline_spec["deploymentSpec"]["executors"]
    components = pipeline_spec["components"]
    for task, definition in sorted(pipeline_spec["root"]["dag"]["tasks"].items()):
        label = components[definition["componentRef"]["name"]].get("executorLabel")
        yield task, definition, executors.get(label, {})
