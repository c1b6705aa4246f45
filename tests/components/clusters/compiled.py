"""A hand-made compiled pipeline of two nodes; compiling one would import TFX, which takes ten seconds."""

from __future__ import annotations

from typing import Any

from tfx_tpu_trainer.components.clusters._compiling import CompiledPipeline


def tiny_spec() -> dict[str, Any]:
    """A resolver, and a trainer whose author has set a limit of CPU."""
    return {
        "pipelineInfo": {"name": "tiny"},
        "schemaVersion": "2.1.0",
        "sdkVersion": "tfx-1.16.0",
        "root": {
            "dag": {
                "tasks": {
                    "trainer": {
                        "taskInfo": {"name": "trainer"},
                        "componentRef": {"name": "comp-trainer"},
                    },
                    "latest": {
                        "taskInfo": {"name": "latest"},
                        "componentRef": {"name": "comp-latest"},
                    },
                }
            }
        },
        "components": {
            "comp-trainer": {"executorLabel": "exec-trainer"},
            "comp-latest": {"executorLabel": "exec-latest"},
        },
        "deploymentSpec": {
            "executors": {
                "exec-trainer": {
                    "container": {"image": "r.example/p:1", "resources": {"cpuLimit": 4.0}}
                },
                "exec-latest": {"resolver": {}},
            }
        },
    }


def tiny(platform_spec: dict[str, Any] | None = None) -> CompiledPipeline:
    """The compiled pipeline."""
    job = {
        "displayName": "tiny",
        "pipelineSpec": tiny_spec(),
        "runtimeConfig": {"gcsOutputDirectory": "gs://bucket/tiny"},
    }
    return CompiledPipeline(job=job, platform_spec=platform_spec or {})
