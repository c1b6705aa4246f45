"""A pipeline on its way to a cluster: its config, its image, its compiled form, and the options of the two runners."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import click

from tfx_tpu_trainer._support.file_systems import check_can_be_written
from tfx_tpu_trainer._support.messages import printable
from tfx_tpu_trainer.components.clusters import (
    LONGEST_BACKOFF,
    Deadline,
    TaskOptions,
    check_image,
    check_image_holds,
    check_vertex_pods,
    form_of,
)
from tfx_tpu_trainer.workbench.project.config import ConfigError, PipelineConfig
from tfx_tpu_trainer.workbench.project.config_file import load_config
from tfx_tpu_trainer.workbench.project.project import Project, find_pipeline

EXECUTORS = "tfx_tpu_trainer.components.trainer.trainer_executor"
_OPTIONS: Sequence[Callable[[Any], Any]] = (
    click.option(
        "--pipeline",
        "name",
        required=True,
        help="The pipeline's folder in pipelines/, or its import path.",
    ),
    click.option("--root", required=True, help="Bucket or folder for everything that is written."),
    click.option("--data", required=True, help="Bucket or folder of the input data."),
    click.option("--image", required=True, help="Container image of the components, with its tag."),
    click.option(
        "--output",
        type=click.Path(dir_okay=False, path_type=Path),
        help="File to write the compiled pipeline to: .yaml or .json.",
    ),
    click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Overrides one setting; repeatable.",
    ),
    click.option(
        "--spec-version",
        type=click.Choice(["2.0", "2.1"]),
        default="2.1",
        show_default=True,
        help="Version of the pipeline specification.",
    ),
    click.option(
        "--retries",
        multiple=True,
        metavar="[NODE=]N",
        help="Number of retries of a failed task; with NODE=, of this node only; repeatable.",
    ),
    click.option(
        "--backoff",
        type=click.IntRange(0, LONGEST_BACKOFF),
        default=60,
        show_default=True,
        help="Seconds before the first retry; doubled before each further one.",
    ),
    click.option(
        "--cache/--no-cache", default=None, help="Whether to take results from the cache."
    ),
    click.option(
        "--no-cache-for",
        multiple=True,
        metavar="NODE",
        help="Disables the cache for one node; repeatable.",
    ),
    click.option("--submit", is_flag=True, help="Checks the job and sends it."),
    click.option(
        "--dry-run", is_flag=True, help="Prints what --submit would send; uses no network."
    ),
)


def line_of_tfx() -> str:
    """Returns the line of the TFX that is installed here, such as 1.16."""
    return ".".join(importlib.metadata.version("tfx").split(".")[:2])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterPipeline:
    """A pipeline with all that compiling it needs."""

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


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command the shared options, and turns its errors into one line and exit code 1."""

    @functools.wraps(command)
    def guarded(**values: Any) -> None:
        # Must be set before TensorFlow is imported, as in every other way of running a pipeline.
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
        # Libraries announce the ends of their Python versions at every import.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            if not (values["output"] or values["submit"] or values["dry_run"]):
                raise ConfigError("nothing to do; give --output, --dry-run or --submit")
            if values["submit"] and values["dry_run"]:
                raise ConfigError(
                    "--submit and --dry-run exclude each other; leave one of them out"
                )
            if values["output"]:
                form_of(values["output"])
                check_can_be_written("output", values["output"])
            command(**values)
        except (ValueError, OSError) as error:
            raise click.ClickException(printable(str(error))) from None

    for option in reversed(_OPTIONS):
        guarded = option(guarded)
    return guarded


def help_text(document: str) -> str:
    """Keeps commands unchanged in a module's docstring; click would fill their lines like text's."""
    return document.replace("\n    python", "\n\b\n    python")


def load_pipeline(backend: Literal["kubeflow", "vertex"], **values: Any) -> ClusterPipeline:
    """Makes a pipeline of the shared options' values."""
    return ClusterPipeline.load(
        values["name"],
        backend=backend,
        root=values["root"],
        data=values["data"],
        image=values["image"],
        overrides=values["overrides"],
        spec_version=values["spec_version"],
        options=_task_options(values),
    )


def check_pipeline_image(pipeline: ClusterPipeline, deadline: Deadline) -> None:
    """Looks into the images, or says on the error stream what could not be looked into."""
    images = {pipeline.image}
    tpu = pipeline.config.trainer.tpu
    if tpu is not None and tpu.runtime_image:
        images.add(tpu.runtime_image)
    for image in sorted(images):
        note = check_image_holds(image, pipeline.modules, seconds=deadline.seconds_left)
        if note:
            click.echo(f"note: {printable(note)}", err=True)


def _task_options(values: dict[str, Any]) -> TaskOptions:
    everywhere, by_node = 0, {}
    for text in values["retries"]:
        node, separator, number = text.rpartition("=")
        if not number.isdecimal() or (separator and not node):
            raise ConfigError(
                f"--retries {text!r} is neither a number nor NODE=number, such as TpuTrainer=3"
            )
        if node:
            by_node[node] = int(number)
        else:
            everywhere = int(number)
    return TaskOptions(
        retries=everywhere,
        node_retries=by_node,
        backoff_seconds=values["backoff"],
        caching=values["cache"],
        node_caching=dict.fromkeys(values["no_cache_for"], False),
    )
