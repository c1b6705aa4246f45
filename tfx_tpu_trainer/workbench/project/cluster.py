"""Prepares a project's pipeline for a cluster: its place, the contents of its image, its compiled form."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tfx_tpu_trainer._support.messages import in_one_line
from tfx_tpu_trainer.components.clusters import (
    CompiledPipeline,
    Deadline,
    TaskOptions,
    VertexJob,
    check_image,
    check_image_holds,
    check_project,
    check_vertex_pods,
    custom_job,
)
from tfx_tpu_trainer.workbench.project.config import ClusterSettings, ConfigError, PipelineConfig
from tfx_tpu_trainer.workbench.project.config_file import load_config
from tfx_tpu_trainer.workbench.project.project import Project

Backend = Literal["kubeflow", "vertex"]

EXECUTORS = "tfx_tpu_trainer.components.trainer.trainer_executor"
# Options of `compile` and the corresponding `cluster` settings.
PLACES = {
    "root": "--root",
    "data": "--data",
    "image": "--image",
    "project": "--gcp-project",
    "region": "--region",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterPipeline:
    """A pipeline and the settings to compile it with; its config has the cluster's root and data."""

    definition: Project
    config: PipelineConfig
    image: str
    backend: Backend
    options: TaskOptions

    @classmethod
    def load(
        cls,
        definition: Project,
        *,
        backend: Backend,
        config_file: Path | None = None,
        overrides: Sequence[str] = (),
        places: Mapping[str, str | None],
        service_account: str | None = None,
        network: str | None = None,
        options: TaskOptions | None = None,
    ) -> ClusterPipeline:
        """Reads a project's config for a cluster, where user code is imported from the image.

        Imports neither TensorFlow nor TFX, so a wrong setting is reported at once.
        """
        path = config_file or definition.config_file
        config = load_config(
            definition.config_class(),
            path,
            values={
                "user_code": "import",
                "baseline": "pointer" if backend == "kubeflow" else "metadata",
            },
            overrides=overrides,
        )
        where = _where(config, places, backend=backend, path=path)
        image = where.image or ""
        check_image(image)
        config = config.model_copy(
            update={
                # The only valid letter of a pipeline's name that clusters reject.
                "name": config.name.replace("_", "-"),
                "root": where.root,
                "data": where.data,
                "cluster": where,
            }
        )
        module_file = config.trainer.module_file
        if module_file and "://" in module_file + config.root:
            raise ConfigError(
                f"trainer.module_file is {module_file!r}: a module file is packaged when the pipeline is "
                f"compiled, which would need the network (root is {config.root!r}); put the module into "
                "the image and give its import path as trainer.module, with trainer.module_file=null"
            )
        if config.trainer.module:
            definition.check_module(config.trainer.module)
        if backend == "vertex":
            check_project(where.project or "", where.region or "")
            check_vertex_pods(config.pods, custom_job=config.trainer.tpu is not None)
            account = service_account or config.pods.service_account
            config = _with_custom_job(config, service_account=account, network=network)
        return cls(
            definition=definition,
            config=config,
            image=image,
            backend=backend,
            options=options or TaskOptions(),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        """Contents that the image must have: modules, and TFX of the compiling line, whose executors it runs."""
        own = filter(None, (self.definition.package, self.config.trainer.module))
        line = ".".join(importlib.metadata.version("tfx").split(".")[:2])
        return ("tfx", EXECUTORS, *own, f"tfx=={line}")

    @property
    def bucket_paths(self) -> dict[str, str]:
        """The paths that pods read and write, by setting."""
        paths = {"root": self.config.root, "data": self.config.data or ""}
        if self.config.serving_dir:
            paths["serving_dir"] = self.config.serving_dir
        return paths

    @property
    def later_setting(self) -> str | None:
        """The first setting that needs Kubeflow Pipelines 2.2 or later."""
        tpu = self.config.trainer.tpu
        if tpu and tpu.tolerations():
            return "trainer.tpu.spot" if tpu.spot else "trainer.tpu.flex_start"
        return self.config.pods.of_later_backends

    @property
    def custom_job(self) -> dict[str, Any]:
        """The Vertex AI job of the trainer's task, except for its containers' command."""
        return _custom_job(self.config) if self.backend == "vertex" else {}

    def check_images(self, deadline: Deadline) -> list[str]:
        """Checks the images' contents; returns a line for each image that could not be checked."""
        images = {self.image}
        tpu = self.config.trainer.tpu
        if tpu is not None and tpu.runtime_image:
            images.add(tpu.runtime_image)
        notes = (
            check_image_holds(image, self.modules, seconds=deadline.seconds_left)
            for image in sorted(images)
        )
        return [note for note in notes if note]

    def compile(self) -> CompiledPipeline:
        """Compiles the pipeline, which imports TFX."""
        from tfx_tpu_trainer.components.clusters import compile_pipeline

        try:
            pipeline = self.definition.create_pipeline(self.config)
        except ValueError:
            raise
        # A project's own code may raise anything, or exit.
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"the pipeline of {str(self.definition.folder)!r} can't be made: {in_one_line(error)}"
            ) from None
        _name_files_of_the_image(pipeline, self.definition.import_root)
        return compile_pipeline(
            pipeline,
            image=self.image,
            backend=self.backend,
            options=self.options,
            pods=self.config.pods,
        )


def _where(
    config: PipelineConfig, given: Mapping[str, str | None], *, backend: Backend, path: Path
) -> ClusterSettings:
    """Returns where a pipeline runs: from the option, else from `cluster`, else from the rest of the config."""
    found = {"project": os.environ.get("GOOGLE_CLOUD_PROJECT")}
    if config.vertex:
        found.update(config.vertex.model_dump(include={"project", "region", "image"}))
    found.update(
        {key: value for key in ("root", "data") if "://" in (value := getattr(config, key) or "")}
    )
    found.update(config.cluster.model_dump(exclude_none=True))
    found.update({key: value for key, value in given.items() if value is not None})
    needed = [key for key in PLACES if backend == "vertex" or key not in ("project", "region")]
    missing = [key for key in needed if not (found.get(key) or "").strip()]
    if missing:
        settings = _listed([f"cluster.{key}" for key in missing])
        options = _listed([PLACES[key] for key in missing])
        one = len(missing) == 1
        raise ConfigError(
            f"{path}: {settings} {'is' if one else 'are'} not set; add {'it' if one else 'them'} there "
            f"(docs/orchestration.md), or give {options}"
        )
    return config.cluster.model_copy(update=found)


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _with_custom_job(
    config: PipelineConfig, *, service_account: str | None, network: str | None
) -> PipelineConfig:
    """Makes a trainer with a TPU start a CustomJob, with the settings of `cluster` and `pods`."""
    if config.trainer.tpu is None:
        return config
    pod = config.pods.of_trainer()
    job = config.vertex or VertexJob.parse(
        project=config.cluster.project,
        region=config.cluster.region,
        image=config.cluster.image,
        service_account=service_account,
        network=network,
    )
    # The job's own settings win.
    own = {"env": {**pod.env, **job.env}, "labels": {**pod.labels, **job.labels}}
    config = config.model_copy(update={"vertex": job.model_copy(update=own)})
    # Checks the job before TFX is imported.
    _custom_job(config)
    return config


def _custom_job(config: PipelineConfig) -> dict[str, Any]:
    tpu, job = config.trainer.tpu, config.vertex
    if tpu is None or job is None:
        return {}
    return {"trainers_custom_job": custom_job(job, tpu, display_name="tpu-trainer-...")}


def _name_files_of_the_image(pipeline: Any, folder: Path) -> None:
    """Makes paths of the project's files relative to the working directory, the project's folder in the image."""
    for node in pipeline.components:
        properties = getattr(node, "exec_properties", {})
        for name, value in properties.items():
            if (
                isinstance(value, str)
                and Path(value).is_relative_to(folder)
                and os.path.isfile(value)
            ):
                properties[name] = Path(value).relative_to(folder).as_posix()
