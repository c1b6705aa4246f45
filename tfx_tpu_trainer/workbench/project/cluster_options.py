"""The options that the runners for clusters share."""

from __future__ import annotations

import functools
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
    check_image_holds,
    form_of,
)
from tfx_tpu_trainer.workbench.project.cluster import ClusterPipeline
from tfx_tpu_trainer.workbench.project.config import ConfigError

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
