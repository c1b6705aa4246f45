r"""Compiles a pipeline for Vertex AI Pipelines: the declaration that also runs locally.

    python kubeflow/vertex_runner.py --pipeline taxi --root gs://bucket/taxi --data gs://bucket/taxi/data \
        --image us-docker.pkg.dev/project/images/pipelines:1 --project project --region us-central1 --output taxi.json

With --dry-run it prints the job that it would send, with --submit it sends it. Without --submit no network is used.
With `--set trainer.tpu=v5e:2x4` the trainer's task starts a CustomJob on that slice, runs the training in it and
waits: docs/orchestration.md.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click

# A script has only its own folder on the path.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from tfx_tpu_trainer.components.clusters import (
    Deadline,
    VertexJob,
    VertexRun,
    _checks,
    check_bucket_paths,
    check_project,
    custom_job,
)
from tfx_tpu_trainer.workbench.project.cluster import (
    ClusterPipeline,
    check_pipeline_image,
    cluster_options,
    help_text,
    load_pipeline,
)


@click.command(help=help_text(__doc__))
@cluster_options
@click.option("--project", required=True, envvar="GOOGLE_CLOUD_PROJECT", help="Project's id.")
@click.option("--region", required=True, help="Region of Vertex AI, such as us-central1.")
@click.option("--job-id", help="Id of the job. Default: the pipeline's name and the time.")
@click.option("--service-account", help="Account that tasks and the CustomJob run as.")
@click.option("--network", help="Full name of a network to peer with.")
def main(**values: Any) -> None:
    check_project(values["project"], values["region"])
    pipeline = load_pipeline("vertex", **values)
    values["service_account"] = values["service_account"] or pipeline.config.pods.service_account
    pipeline = _with_custom_job(pipeline, values)
    output, submit, dry_run = values["output"], values["submit"], values["dry_run"]
    check_bucket_paths(pipeline.bucket_paths, schemes=("gs",))
    run = VertexRun(
        project=values["project"],
        region=values["region"],
        job_id=values["job_id"],
        service_account=values["service_account"],
        network=values["network"],
    )
    deadline, credentials = Deadline(), None
    if submit:
        credentials = _checks.find_credentials(deadline)
        _checks.check_vertex_project(run.project, run.region, credentials, deadline)
        _checks.check_gcs_buckets(pipeline.bucket_paths, credentials, deadline)
    if submit or dry_run:
        check_pipeline_image(pipeline, deadline)
    compiled = pipeline.compile()
    if output:
        compiled.write(output)
        click.echo(f"{output}: compiled for Vertex AI Pipelines, image {pipeline.image}", err=True)
    if dry_run:
        printed = {**run.describe(compiled), **_custom_job_of(pipeline)}
        click.echo(json.dumps(printed, indent=1, sort_keys=True))
    if submit:
        click.echo(f"{run.submit(compiled, credentials)} started", err=True)


def _with_custom_job(pipeline: ClusterPipeline, values: dict[str, Any]) -> ClusterPipeline:
    """Lets a trainer that asks for a TPU start a CustomJob, whose settings are the runner's and `pods`'."""
    tpu, job = pipeline.config.trainer.tpu, pipeline.config.vertex
    if tpu is None:
        return pipeline
    pod = pipeline.config.pods.of_trainer()
    job = job or VertexJob.parse(
        project=values["project"],
        region=values["region"],
        image=pipeline.image,
        service_account=values["service_account"],
        network=values["network"],
    )
    # What is said of this job alone wins.
    own = {"env": {**pod.env, **job.env}, "labels": {**pod.labels, **job.labels}}
    config = pipeline.config.model_copy(update={"vertex": job.model_copy(update=own)})
    pipeline = dataclasses.replace(pipeline, config=config)
    # Made here only to be refused, if it must be, before TFX is imported.
    _custom_job_of(pipeline)
    return pipeline


def _custom_job_of(pipeline: ClusterPipeline) -> dict[str, Any]:
    """What the trainer's task would start, except for the command of its containers."""
    tpu, job = pipeline.config.trainer.tpu, pipeline.config.vertex
    if tpu is None or job is None:
        return {}
    return {"trainers_custom_job": custom_job(job, tpu, display_name="tpu-trainer-...")}


if __name__ == "__main__":
    main()
