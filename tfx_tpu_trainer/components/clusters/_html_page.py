"""Declares a page as an artifact that Kubeflow Pipelines and Vertex AI display as HTML.

Both show an artifact whose schema has the title `system.HTML`, and read its URI as that of the file. TFX lacks this
type: it writes an artifact's class into the compiled pipeline, and reads it as the path of a class when the component
runs. So there are two types: a pipeline declares `RunPage`, a folder with the page, which ML Metadata records if TFX
runs the pipeline. A compiled pipeline has `HtmlFile` instead, and its container starts with
`components/clusters/pod_entry.py`, which registers that type with TFX.
"""

from __future__ import annotations

import os
from typing import Any

import yaml
from tfx import v1 as tfx

from tfx_tpu_trainer.components.report import PAGE_FILE

HTML_TITLE = "system.HTML"
ENTRY_POINT = "tfx_tpu_trainer.components.clusters.pod_entry"


class RunPage(tfx.dsl.Artifact):
    """The page of a training: a folder with `run.html`.

    A TFX container finds it by its import path, which is its name, if another runner has compiled the pipeline.
    """

    TYPE_NAME = "tfx_tpu_trainer.RunPage"

    @property
    def path(self) -> str:
        """The page's file."""
        return os.path.join(self.uri, PAGE_FILE)


class HtmlFile(RunPage):
    """The page of a training on a backend that shows it: the URI is the file."""

    TYPE_NAME = HTML_TITLE

    @property
    def path(self) -> str:
        """The page's file."""
        return self.uri


def show_pages(pipeline_spec: dict[str, Any]) -> None:
    """Makes a compiled pipeline's backend show the pages that its components write."""
    executors = pipeline_spec["deploymentSpec"]["executors"]
    for component in pipeline_spec["components"].values():
        outputs = component.get("outputDefinitions", {}).get("artifacts", {})
        pages = [output for output in outputs.values() if _is_page(output["artifactType"])]
        if not pages:
            continue
        for page in pages:
            page["artifactType"] = {"schemaTitle": HTML_TITLE, "schemaVersion": "0.0.1"}
        # Only `pod_entry` makes TFX understand this type, which the container reads.
        container = executors[component["executorLabel"]]["container"]
        # python -m MODULE; the arguments are unchanged.
        container["command"] = [*container["command"][:-1], ENTRY_POINT]


def _is_page(artifact_type: dict[str, Any]) -> bool:
    schema = yaml.safe_load(artifact_type.get("instanceSchema", "")) or {}
    return schema.get("title") == RunPage.TYPE_NAME
