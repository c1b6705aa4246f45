r"""Compiles a pipeline for Kubeflow Pipelines: the declaration that also runs locally.

    python kubeflow/kubeflow_runner.py --pipeline taxi --root gs://bucket/taxi --data gs://bucket/taxi/data \
        --image region-docker.pkg.dev/project/images/pipelines:1 --output taxi.yaml

With --dry-run it prints the run that it would send, with --submit and --host it sends it. Without --submit no network
is used. The image must hold `tfx_tpu_trainer` and, on its PYTHONPATH, `pipelines`: user code is named by its import
path. docs/orchestration.md explains what `--set trainer.tpu=v5e:2x4` asks for.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

# A script has only its own folder on the path.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from tfx_tpu_trainer.components.clusters import (
    Deadline,
    KubeflowRun,
    _checks,
    check_bucket_paths,
    check_host,
)
from tfx_tpu_trainer.workbench.project import ConfigError
from tfx_tpu_trainer.workbench.project.cluster import (
    ClusterPipeline,
    check_pipeline_image,
    cluster_options,
    help_text,
    load_pipeline,
)


@click.command(help=help_text(__doc__))
@cluster_options
@click.option("--host", envvar="KF_PIPELINES_ENDPOINT", help="Address of Kubeflow Pipelines' API.")
@click.option("--token", envvar="KF_PIPELINES_TOKEN", help="Bearer token for the API.")
@click.option("--namespace", help="Namespace, in a multi-user installation.")
@click.option("--experiment", default="Default", show_default=True, help="Experiment of the run.")
@click.option("--run-name", help="Name of the run. Default: the pipeline's.")
@click.option(
    "--service-account", help="Service account of the pods. Default: pods.service_account."
)
def main(**values: Any) -> None:
    pipeline = load_pipeline("kubeflow", **values)
    output, submit, dry_run = values["output"], values["submit"], values["dry_run"]
    account = values["service_account"] or pipeline.config.pods.service_account
    run = KubeflowRun(
        host=values["host"],
        namespace=values["namespace"],
        experiment=values["experiment"],
        name=values["run_name"],
        service_account=account,
        token=values["token"],
    )
    if submit and not values["host"]:
        raise ConfigError(
            "host is not set: give --host or the environment variable KF_PIPELINES_ENDPOINT"
        )
    if submit or dry_run:
        if values["host"]:
            check_host(values["host"], values["token"])
        check_bucket_paths(pipeline.bucket_paths)
        deadline = Deadline()
        if submit:
            _ask(pipeline, deadline, host=values["host"], token=values["token"])
        check_pipeline_image(pipeline, deadline)
    compiled = pipeline.compile()
    if output:
        compiled.write(output)
        click.echo(f"{output}: compiled for Kubeflow Pipelines, image {pipeline.image}", err=True)
    if dry_run:
        click.echo(json.dumps(run.describe(compiled), indent=1, sort_keys=True))
    if submit:
        click.echo(f"run {run.submit(compiled)} started on {run.host}", err=True)


def _ask(pipeline: ClusterPipeline, deadline: Deadline, *, host: str, token: str | None) -> None:
    tpu = pipeline.config.trainer.tpu
    of_nodes = "trainer.tpu.spot" if tpu and tpu.spot else "trainer.tpu.flex_start"
    later = of_nodes if tpu and tpu.tolerations() else pipeline.config.pods.of_later_backends
    _checks.check_kubeflow_host(host, deadline, token=token, later_setting=later)
    paths = pipeline.bucket_paths
    if any(path.startswith("gs://") for path in paths.values()):
        credentials = _checks.find_credentials(deadline)
        _checks.check_gcs_buckets(paths, credentials, deadline)


if __name__ == "__main__":
    main()
