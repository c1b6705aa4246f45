"""`tfx-tpu-trainer compile`: compiles a project's pipeline for Kubeflow Pipelines or Vertex AI; may submit it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tfx_tpu_trainer._support.messages import printable
from tfx_tpu_trainer.workbench.cli.runs import (
    check_one_project,
    find_project,
    project_options,
    quiet_tensorflow,
    runner_extra,
    set_option,
)

if TYPE_CHECKING:
    from tfx_tpu_trainer.components.clusters import KubeflowRun, TaskOptions, VertexRun
    from tfx_tpu_trainer.workbench.project.cluster import ClusterPipeline

_TITLES = {"kubeflow": "Kubeflow Pipelines", "vertex": "Vertex AI Pipelines"}
_OF_ONE = {
    "kubeflow": ("host", "token", "namespace", "experiment", "run_name"),
    "vertex": ("gcp_project", "region", "job_id", "network"),
}


@click.command("compile", short_help="Compiles a pipeline for Kubeflow Pipelines or Vertex AI.")
@click.option("--kubeflow", is_flag=True, help="For Kubeflow Pipelines: a .yaml file.")
@click.option("--vertex", is_flag=True, help="For Vertex AI Pipelines: a .json file.")
@project_options
@click.option(
    "--root", metavar="PATH", help="Bucket for everything that is written. Default: cluster.root."
)
@click.option("--data", metavar="PATH", help="Bucket of the input data. Default: cluster.data.")
@click.option(
    "--image", metavar="NAME", help="The components' image and its tag. Default: cluster.image."
)
@click.option(
    "--output",
    metavar="FILE",
    help="The file to write, .yaml or .json. Default: the pipeline's name, in the current folder.",
)
@set_option
@click.option(
    "--retries",
    multiple=True,
    metavar="[NODE=]N",
    help="Number of retries of a failed task; with NODE=, of this node only; repeatable.",
)
@click.option(
    "--backoff",
    type=int,
    default=60,
    show_default=True,
    help="Seconds before the first retry; doubled before each further one.",
)
@click.option("--cache/--no-cache", default=None, help="Whether to take results from the cache.")
@click.option(
    "--no-cache-for",
    multiple=True,
    metavar="NODE",
    help="Disables the cache for one node; repeatable.",
)
@click.option("--submit", is_flag=True, help="Checks the job and sends it.")
@click.option("--dry-run", is_flag=True, help="Prints what --submit would send; uses no network.")
@click.option(
    "--service-account", help="The account that tasks run as. Default: pods.service_account."
)
@click.option(
    "--host", envvar="KF_PIPELINES_ENDPOINT", help="Kubeflow: address of the pipelines' API."
)
@click.option("--token", envvar="KF_PIPELINES_TOKEN", help="Kubeflow: bearer token for the API.")
@click.option("--namespace", help="Kubeflow: namespace, in a multi-user installation.")
@click.option("--experiment", help="Kubeflow: experiment of the run. Default: Default.")
@click.option("--run-name", help="Kubeflow: name of the run. Default: the pipeline's.")
@click.option("--gcp-project", metavar="ID", help="Vertex: the project. Default: cluster.project.")
@click.option("--region", help="Vertex: the region. Default: cluster.region.")
@click.option("--job-id", help="Vertex: id of the job. Default: the pipeline's name and the time.")
@click.option("--network", help="Vertex: full name of a network to peer with.")
@click.pass_context
def compile_command(context: click.Context, **values: Any) -> None:
    """Compiles a project's pipeline for Kubeflow Pipelines or Vertex AI.

    The group `cluster` of the project's config.yaml sets where it runs: root, data and image, and for Vertex AI project
    and region (docs/orchestration.md). Without --submit, no network is used.

    The exit code is 1 if the settings are inconsistent or the cluster rejects the pipeline; then nothing is written or
    sent.
    """
    backend = _backend(context, values)
    check_one_project(values["folder"], values["name"])
    with runner_extra(), quiet_tensorflow():
        try:
            _compile(backend, values)
        except (ValueError, OSError) as error:
            raise click.ClickException(printable(str(error))) from None


def _backend(context: click.Context, values: Mapping[str, Any]) -> Any:
    """Returns the backend that the options name."""
    if values["kubeflow"] == values["vertex"]:
        raise click.UsageError("give --kubeflow or --vertex, and not both")
    if values["submit"] and values["dry_run"]:
        raise click.UsageError("--submit and --dry-run exclude each other; leave one of them out")
    backend, other = ("kubeflow", "vertex") if values["kubeflow"] else ("vertex", "kubeflow")
    for name in _OF_ONE[other]:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} is for --{other}, not for --{backend}; leave it out")
    return backend


def _compile(backend: Any, values: Mapping[str, Any]) -> None:
    from tfx_tpu_trainer.components.clusters import (
        Deadline,
        VertexRun,
        check_bucket_paths,
        check_output,
    )
    from tfx_tpu_trainer.workbench.project.cluster import ClusterPipeline

    submit, dry_run = values["submit"], values["dry_run"]
    pipeline = ClusterPipeline.load(
        find_project(values["folder"], values["name"]),
        backend=backend,
        config_file=values["config_file"],
        overrides=values["overrides"],
        places={
            **{key: values[key] for key in ("root", "data", "image", "region")},
            "project": values["gcp_project"],
        },
        service_account=values["service_account"],
        network=values["network"],
        options=_task_options(values),
    )
    output = values["output"]
    if output is None and not (submit or dry_run):
        output = f"{pipeline.config.name}.{'yaml' if backend == 'kubeflow' else 'json'}"
    if output is not None:
        check_output(output)
    run = _run(pipeline, values)
    paths = pipeline.bucket_paths
    if backend == "vertex":
        check_bucket_paths(paths, schemes=("gs",))
    elif submit or dry_run:
        check_bucket_paths(paths)
    deadline, credentials = Deadline(), None
    if submit:
        if isinstance(run, VertexRun):
            credentials = run.check(paths, deadline)
        else:
            run.check(paths, deadline, later_setting=pipeline.later_setting)
    if submit or dry_run:
        for note in pipeline.check_images(deadline):
            click.echo(f"note: {printable(note)}", err=True)
    compiled = pipeline.compile()
    if output is not None:
        compiled.write(output)
        said = f"{printable(output)}: compiled for {_TITLES[backend]}, image {pipeline.image}"
        # A dry run prints JSON to the standard output.
        click.echo(said, err=dry_run)
    if dry_run:
        printed = {**run.describe(compiled), **pipeline.custom_job}
        click.echo(json.dumps(printed, indent=1, sort_keys=True))
    if submit:
        if isinstance(run, VertexRun):
            said = f"{run.submit(compiled, credentials)} started"
        else:
            said = f"run {run.submit(compiled)} started on {run.host}"
        click.echo(said)


def _run(pipeline: ClusterPipeline, values: Mapping[str, Any]) -> KubeflowRun | VertexRun:
    from tfx_tpu_trainer.components.clusters import KubeflowRun, VertexRun

    account = values["service_account"] or pipeline.config.pods.service_account
    if pipeline.backend == "vertex":
        return VertexRun(
            project=pipeline.config.cluster.project or "",
            region=pipeline.config.cluster.region or "",
            job_id=values["job_id"],
            service_account=account,
            network=values["network"],
        )
    return KubeflowRun(
        # The environment may name a host that is not needed here.
        host=values["host"] if values["submit"] or values["dry_run"] else None,
        namespace=values["namespace"],
        experiment=values["experiment"] or "Default",
        name=values["run_name"],
        service_account=account,
        token=values["token"],
    )


def _task_options(values: Mapping[str, Any]) -> TaskOptions:
    from tfx_tpu_trainer.components.clusters import TaskOptions

    everywhere, by_node = 0, {}
    for text in values["retries"]:
        node, separator, number = text.rpartition("=")
        if not number.isdecimal() or (separator and not node):
            raise ValueError(
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
