"""Defines CompiledPipeline: the job, its platform document, and their files."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Literal

import yaml

from tfx_tpu_trainer._support.file_systems import check_can_be_written
from tfx_tpu_trainer._support.whole_files import write_whole

_FIRST_LINE = "# PIPELINE DEFINITION\n"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledPipeline:
    """A pipeline in the form that Kubeflow Pipelines and Vertex AI read.

    Attributes:
        job: A kfp-pipeline-spec `PipelineJob` in JSON form: `pipelineSpec`, `runtimeConfig`.
        platform_spec: A `PlatformSpec` in JSON form: each pod's requirements on its node. Empty if there are none.
    """

    job: Mapping[str, Any]
    platform_spec: Mapping[str, Any]

    @property
    def pipeline_spec(self) -> Mapping[str, Any]:
        """The `PipelineSpec` in JSON form."""
        return self.job["pipelineSpec"]

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.pipeline_spec["pipelineInfo"]["name"]

    @property
    def root(self) -> str:
        """Where the pipeline writes its artifacts."""
        return self.job["runtimeConfig"]["gcsOutputDirectory"]

    def to_text(self, form: Literal["yaml", "json"]) -> str:
        """Returns the text of a file.

        Args:
            form: `"yaml"` is for Kubeflow Pipelines: the `PipelineSpec`, and as a second document the `PlatformSpec`.
                `"json"` is for Vertex AI: the `PipelineJob`, with the `PlatformSpec` next to its `pipelineSpec`.
        """
        if form == "json":
            platform = {"platformSpec": self.platform_spec} if self.platform_spec else {}
            return json.dumps({**self.job, **platform}, indent=1, sort_keys=True) + "\n"
        documents = [self.pipeline_spec, *([self.platform_spec] if self.platform_spec else [])]
        text = yaml.dump_all(map(_plain, documents), Dumper=yaml.SafeDumper, sort_keys=True)
        return f"{_FIRST_LINE}# Name: {self.name}\n{text}"

    def write(self, path: str | pathlib.Path) -> None:
        """Writes a file, whole or not at all.

        Args:
            path: Its name; the ending decides the form: `.json`, `.yaml` or `.yml`.

        Raises:
            ValueError: If the ending is not one of these.
            OSError: If it can't be written.
        """
        text = self.to_text(form_of(path))
        try:
            write_whole(path, text)
        except OSError as error:
            raise OSError(f"output {str(path)!r} can't be written ({error.strerror})") from None


def check_output(path: str | pathlib.Path) -> None:
    """Checks that a compiled pipeline can be written to a path, before compiling it.

    Args:
        path: Where it would be written; its ending, .yaml or .json, decides the form.

    Raises:
        ValueError: If the ending is not one of these, it can't be written, or the existing file is not a compiled
            pipeline.
    """
    form_of(path)
    check_can_be_written("output", path)
    if os.path.isfile(path) and not _is_compiled(pathlib.Path(path).read_bytes()):
        raise ValueError(
            f"output {str(path)!r} exists and is not a compiled pipeline: give another name "
            "with --output"
        )


def form_of(path: str | pathlib.Path) -> Literal["yaml", "json"]:
    """Returns the form that a file name's ending means."""
    ending = pathlib.Path(path).suffix
    if ending == ".json":
        return "json"
    if ending in (".yaml", ".yml"):
        return "yaml"
    raise ValueError(f"output {str(path)!r} ends with neither .yaml nor .json: rename it.")


def _is_compiled(content: bytes) -> bool:
    if not content or content.startswith(_FIRST_LINE.encode()):
        return True
    try:
        job = json.loads(content)
    except ValueError:
        return False
    return isinstance(job, dict) and "pipelineSpec" in job


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    # Repeated parts must be distinct objects, or YAML writes the second one as an alias.
    return json.loads(json.dumps(document))
