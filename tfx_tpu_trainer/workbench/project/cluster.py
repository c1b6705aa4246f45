"""A pipeline of this folder on its way to a cluster: its config, its image, its compiled form."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Sequence
from typing import Any, Literal

from tfx_tpu_trainer.components.clusters import TaskOptions, check_image, check_vertex_pods
from tfx_tpu_trainer.workbench.project.config import ConfigError, PipelineConfig, load_config
from tfx_tpu_trainer.workbench.project.project import Project, find_pipeline

EXECUTORS = "tfx_tpu_trainer.components.trainer.trainer_executor"


def line_of_tfx() -> str:
    """The line of the TFX that is installed here, such as 1.16."""
    return ".".join(importlib.metadata.version("tfx").split(".")[:2])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterPipeline:
    """A pipeline with all that compiling it needs.

    Attributes:
        definition: The pipeline.
        config: Its config.
        image: Container image of its components.
        backend: What it is for.
        spec_version: Version of the pipeline specification.
        options: Retries and caching.
    """

    definition: Project
    config: PipelineConfig
    image: str
    backend: Literal["kubeflow", "vertex"]
    spec_version: Literal["2.0", "2.1"]
    options: TaskOptions

    @classmethod
    def load(
        cls,
        name: str,
        *,
        root: str,
        data: str,
        image: str,
        backend: Literal["kubeflow", "vertex"],
        overrides: Sequence[str] = (),
        spec_version: Literal["2.0", "2.1"] = "2.1",
        options: TaskOptions | None = None,
    ) -> ClusterPipeline:
        """Reads a pipeline's config for a cluster, where user code is imported from the image.

        Imports neither TensorFlow nor TFX, so that a wrong setting is told at once.
        """
        check_image(image)
        definition = find_pipeline(name)
        config = load_config(
            definition.config_class(),
            definition.config_file,
            values={
                "root": root,
                "data": data,
                "user_code": "import",
                "baseline": "pointer" if backend == "kubeflow" else "metadata",
            },
            overrides=overrides,
        )
        if "_" in config.name:
            raise ConfigError(
                f"name={config.name!r}: the name of a pipeline on a cluster can't contain '_'; "
                f"give another with --set name={config.name.replace('_', '-')}"
            )
        module_file = config.trainer.module_file
        if module_file and "://" in module_file + config.root:
            raise ConfigError(
                f"trainer.module_file is {module_file!r}: a module file is packaged when the pipeline is "
                f"compiled, which would need the network (root is {config.root!r}); put the module into "
                "the image and give its import path as trainer.module, with trainer.module_file=null"
            )
        if backend == "vertex":
            check_vertex_pods(config.pods, custom_job=config.trainer.tpu is not None)
        return cls(
            definition=definition,
            config=config,
            image=image,
            backend=backend,
            spec_version=spec_version,
            options=options or TaskOptions(),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        """What the image must hold: modules, and TFX of the line that compiles, whose executors it runs."""
        module = self.config.trainer.module
        found = ("tfx", EXECUTORS, self.definition.package, *([module] if module else []))
        return (*found, f"tfx=={line_of_tfx()}")

    @property
    def bucket_paths(self) -> dict[str, str]:
        """The paths that pods read and write, by the names of their settings."""
        paths = {"root": self.config.root, "data": self.config.data or ""}
        if self.config.serving_dir:
            paths["serving_dir"] = self.config.serving_dir
        return paths

    def compile(self) -> Any:
        """Compiles the pipeline, which imports TFX."""
        from tfx_tpu_trainer.components.clusters import compile_pipeline

        return compile_pipeline(
            self.definition.create_pipeline(self.config),
            image=self.image,
            backend=self.backend,
            spec_version=self.spec_version,
            options=self.options,
            pods=self.config.pods,
        )
