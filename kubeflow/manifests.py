"""Writes Kubernetes manifests for a training on several hosts, and for servers of a model.

    python kubeflow/manifests.py multi-worker --name taxi --image IMAGE --workers 2 --ps 1 --evaluator \
        python -m your.training | kubectl apply -f -
    python kubeflow/manifests.py serving --name taxi --model gs://bucket/taxi/serving | kubectl apply -f -

Nothing is sent anywhere: the manifests go to standard output.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import jinja2

# A script's path has only its own folder.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from tfx_tpu_trainer._support.messages import printable
from tfx_tpu_trainer._support.terminal import PrintableGroup
from tfx_tpu_trainer.components.clusters import check_bucket_paths, check_image
from tfx_tpu_trainer.hardware import TpuSpec

# Keeps the listing's lines: click's mark against rewrapping.
HELP = __doc__.replace("\n\n    ", "\n\n\b\n    ")
FOLDER = Path(__file__).resolve().parent
PORT = 2222
# The user of the images built here.
USER = 10001
# TFX line of the exporting model -> TensorFlow Serving with its TensorFlow: an older server may lack ops.
SERVER_VERSIONS = {"1.16": "2.16.1", "1.21": "2.21.0"}
# A Service's name is at most 63 characters, and a task's has up to 15 more.
NAME = re.compile(r"[a-z]([-a-z0-9]{0,46}[a-z0-9])?")
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
CPUS = re.compile(r"(?=.*[1-9])([0-9]{1,9}(\.[0-9]{1,3})?|[0-9]{1,9}m)")
MEMORY = re.compile(r"(?=.*[1-9])[0-9]{1,15}(\.[0-9]{1,3})?([kMGTP]|[KMGTP]i)?")
# More than any cluster has, and few enough to write out.
MOST_TASKS = 10_000
MOST_ROWS = 65_536


class _Pod:
    """A pod's part of a manifest: its slice `tpu`, None on CPU hosts, its user and its permissions."""

    tpu: TpuSpec | None
    tpu_as_root: bool
    memory: str

    def node_selector(self) -> dict[str, str]:
        return self.tpu.node_selector() if self.tpu else {}

    def tolerations(self) -> list[dict[str, str]]:
        return self.tpu.tolerations() if self.tpu else []

    def limits(self) -> dict[str, str]:
        # As text, like the API returns them: a tool that compares finds no difference.
        of_tpu = self.tpu.resource_limits() if self.tpu else {}
        return {"memory": self.memory, **{name: str(count) for name, count in of_tpu.items()}}

    def pod_security(self) -> dict[str, Any]:
        """Returns the pod's securityContext."""
        user: dict[str, Any] = {"runAsUser": 0}
        if not self.tpu_as_root:
            user = {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                # Mounted volumes are writable.
                "fsGroup": USER,
            }
        return {**user, "seccompProfile": {"type": "RuntimeDefault"}}

    def container_security(self) -> dict[str, Any]:
        """Returns the container's securityContext."""
        # The only need for root is to lock memory that a TPU's driver reads.
        added = {"add": ["SYS_RESOURCE"]} if self.tpu_as_root else {}
        return {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], **added},
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One task of a cluster."""

    kind: str
    pod_name: str
    environment: Mapping[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingCluster(_Pod):
    """A training on several hosts, each a Job: a cluster under TF_CONFIG, or the hosts of a TPU slice."""

    name: str
    image: str
    command: tuple[str, ...]
    namespace: str = "default"
    workers: int = 0
    ps: int = 0
    evaluator: bool = False
    tpu: TpuSpec | None = None
    tpu_as_root: bool = False
    cpu: str = "4"
    memory: str = "16Gi"

    def __post_init__(self) -> None:
        _check_container(self)
        if not self.command:
            raise ValueError(
                "no command was given; end the line with one, such as python -m your.training"
            )
        if self.tpu is not None and (self.workers or self.ps or self.evaluator):
            raise ValueError(
                f"tpu={self.tpu.slice_name!r}: the tasks are the hosts of the slice; leave workers, ps and "
                "evaluator out"
            )
        if self.workers and not self.ps:
            raise ValueError(
                f"workers={self.workers} and no ps: each worker would train its own variables; set "
                "ps to 1 or more"
            )

    def tasks(self) -> list[Task]:
        """Returns all tasks, the chief first."""
        if self.tpu is not None:
            pods = [self._pod("host", index) for index in range(self.tpu.tpu_slice.hosts)]
            names = ",".join(f"{pod}.{self.name}" for pod in pods)
            return [
                Task(
                    kind="host",
                    pod_name=pod,
                    environment={"TPU_WORKER_ID": str(number), "TPU_WORKER_HOSTNAMES": names},
                )
                for number, pod in enumerate(pods)
            ]
        counts = {"chief": 1, "worker": self.workers, "ps": self.ps}
        cluster = {
            kind: [f"{self._pod(kind, index)}.{self.name}:{PORT}" for index in range(count)]
            for kind, count in counts.items()
            if count
        }
        # The other tasks do not know the evaluator, which only reads checkpoints.
        counts["evaluator"] = int(self.evaluator)
        return [
            Task(
                kind=kind,
                pod_name=self._pod(kind, index),
                environment={
                    "TF_CONFIG": json.dumps(
                        {"cluster": cluster, "task": {"type": kind, "index": index}}
                    )
                },
            )
            for kind, count in counts.items()
            for index in range(count)
        ]

    def _pod(self, kind: str, index: int) -> str:
        return f"{self.name}-{kind}-{index}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelServer(_Pod):
    """TensorFlow Serving for one model, by itself or under KServe."""

    name: str
    model_path: str
    namespace: str = "default"
    image: str | None = None
    version: str | None = None
    tpu: TpuSpec | None = None
    tpu_as_root: bool = False
    batching: bool = True
    batch_sizes: tuple[int, ...] = ()
    replicas: int = 1
    cpu: str = "2"
    memory: str = "4Gi"

    def __post_init__(self) -> None:
        _check_container(self)
        check_bucket_paths({"model": self.model_path})
        if self.tpu is not None and self.tpu.tpu_slice.hosts > 1:
            raise ValueError(
                f"tpu={self.tpu.slice_name!r} has {self.tpu.tpu_slice.hosts} hosts, but a server "
                "runs on one: use a slice of a single host, such as 'v5e:2x2'"
            )
        if self.batch_sizes and (self.tpu is None or not self.batching):
            raise ValueError(
                f"batch_sizes={list(self.batch_sizes)} apply only to a server on a TPU host: leave "
                "them out"
            )

    @property
    def status_path(self) -> str:
        """The URL path where the server reports the model's state."""
        return f"/v1/models/{self.name}"

    def arguments(self) -> list[str]:
        """Returns the whole command line."""
        return [
            "--port=8500",
            "--rest_api_port=8501",
            f"--model_name={self.name}",
            f"--model_base_path={self.model_path}",
            *self.added_arguments(),
        ]

    def added_arguments(self) -> list[str]:
        """Returns the arguments that KServe's runtime does not set itself."""
        batching = [
            "--enable_batching=true",
            "--batching_parameters_file=/config/batching_parameters.txt",
        ]
        return [
            *(["--saved_model_tags=serve,tpu"] if self.tpu else []),
            "--enable_model_warmup=true",
            *(batching if self.batching else []),
        ]

    def batching_text(self) -> str:
        """Returns the text of the batching parameters."""
        # Imported late: it imports TensorFlow, which logs at start-up.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        from tfx_tpu_trainer.serving import _server_config

        if self.tpu:
            return _server_config.batching_for_tpu(self.batch_sizes).to_text()
        return _server_config.CPU_BATCHING.to_text()


def render(template: str, **values: Any) -> str:
    """Renders a template of this folder; an undefined name is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template(template).render(**values)


def _check_container(made: TrainingCluster | ModelServer) -> None:
    """Finds what Kubernetes would reject, or silently accept, when the manifest is applied."""
    if not NAME.fullmatch(made.name):
        raise ValueError(
            f"name={made.name!r} is not a valid Kubernetes name: use up to 48 lower-case letters, "
            "digits and '-', starting with a letter"
        )
    if not NAMESPACE.fullmatch(made.namespace):
        raise ValueError(
            f"namespace={made.namespace!r} is not a valid Kubernetes namespace: use up to 63 "
            "lower-case letters, digits and '-'"
        )
    if made.tpu_as_root and made.tpu is None:
        raise ValueError(
            "tpu_as_root is for containers on TPU hosts; leave it out, or give a slice as tpu"
        )
    if made.image is not None:
        check_image(made.image)
    if not CPUS.fullmatch(made.cpu):
        raise ValueError(
            f"cpu={made.cpu!r} is not a number of CPUs; give one such as '4' or '500m'"
        )
    if not MEMORY.fullmatch(made.memory):
        raise ValueError(
            f"memory={made.memory!r} is not an amount of memory; give bytes, or a number such as "
            "'16Gi'"
        )


def _with_errors(function: Any) -> Any:
    """Prints an invalid setting as one line."""

    @functools.wraps(function)
    def wrapper(*args: Any, **keywords: Any) -> None:
        try:
            function(*args, **keywords)
        except ValueError as error:
            raise click.ClickException(printable(str(error))) from None

    return wrapper


_tpu_as_root = click.option(
    "--tpu-as-root",
    is_flag=True,
    help="On TPU hosts: runs as root, with the capability SYS_RESOURCE.",
)


@click.group(cls=PrintableGroup, help=HELP)
def main() -> None:
    pass


@main.command("multi-worker", context_settings={"allow_interspersed_args": False})
@click.option("--name", required=True, help="Name of the cluster.")
@click.option("--namespace", default="default", show_default=True)
@click.option("--image", help="Container image; default: the slice's runtime_image, if it has one.")
@click.option(
    "--workers",
    type=click.IntRange(0, MOST_TASKS),
    default=0,
    help="Number of workers besides the chief.",
)
@click.option("--ps", type=click.IntRange(0, MOST_TASKS), default=0, help="Parameter servers.")
@click.option("--evaluator", is_flag=True, help="Adds an evaluator task.")
@click.option(
    "--tpu", help="A slice such as v5e:4x4, or a TpuSpec as JSON; its hosts are the tasks."
)
@_tpu_as_root
@click.option("--cpu", default="4", show_default=True, help="CPUs of a task.")
@click.option("--memory", default="16Gi", show_default=True, help="Memory of a task.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@_with_errors
def multi_worker(tpu: str | None, image: str | None, **options: Any) -> None:
    """A training on several hosts, under TF_CONFIG or on a TPU slice, that runs COMMAND in each."""
    spec = None if tpu is None else TpuSpec.read(tpu)
    image = (spec.runtime_image if spec else None) or image
    if not image:
        raise ValueError("no image was given; name one with --image")
    cluster = TrainingCluster(tpu=spec, image=image, **options)
    click.echo(render("templates/multi_worker.yaml.j2", cluster=cluster, port=PORT), nl=False)


@main.command("serving")
@click.option("--name", required=True, help="Name of the server and of the model.")
@click.option("--namespace", default="default", show_default=True)
@click.option("--model", "model_path", required=True, help="Folder of the model's versions.")
@click.option("--kserve", is_flag=True, help="An InferenceService instead of a Deployment.")
@click.option(
    "--line",
    type=click.Choice(list(SERVER_VERSIONS)),
    help="The line of TFX that exported the model, which determines the server's version. Default: "
    "this environment's.",
)
@click.option(
    "--image", help="Container image. Default on CPUs: TensorFlow Serving's for that line."
)
@click.option("--tpu", help="A slice of one host such as v5e:2x2, or a TpuSpec as JSON.")
@_tpu_as_root
@click.option(
    "--batching/--no-batching",
    default=True,
    help="Whether the server batches requests; not for a model with a BatchConfig.",
)
@click.option(
    "--batch-size",
    "batch_sizes",
    multiple=True,
    type=click.IntRange(1, MOST_ROWS),
    help="On a TPU host, a size to pad to; repeatable.",
)
@click.option("--replicas", default=1, show_default=True, type=click.IntRange(1, MOST_TASKS))
@click.option("--cpu", default="2", show_default=True, help="CPUs of a server.")
@click.option("--memory", default="4Gi", show_default=True, help="Memory of a server.")
@_with_errors
def serving(
    kserve: bool, tpu: str | None, image: str | None, line: str | None, **options: Any
) -> None:
    """TensorFlow Serving for a pushed model."""
    spec = None if tpu is None else TpuSpec.read(tpu)
    image = image or (spec.runtime_image if spec else None)
    if not kserve and not image:
        if spec:
            raise ValueError(
                "a server on a TPU host needs an image with TensorFlow Serving for TPUs, but "
                "Docker Hub has none; name yours with --image"
            )
        image = f"tensorflow/serving:{_server_version(line)}"
    # KServe's default is TensorFlow 2.6.2, without TPU support.
    version = None if image or spec else _server_version(line)
    server = ModelServer(tpu=spec, image=image, version=version, **options)
    name = "kserve" if kserve else "tf_serving"
    click.echo(render(f"serving/{name}.yaml.j2", server=server), nl=False)


def _server_version(line: str | None) -> str:
    if line is None:
        try:
            installed = importlib.metadata.version("tfx")
        except importlib.metadata.PackageNotFoundError:
            installed = "none"
        line = ".".join(installed.split(".")[:2])
        if line not in SERVER_VERSIONS:
            raise ValueError(
                f"the TFX of this environment is {installed}, a line without a known server; give "
                f"the line that exported the model with --line: {' or '.join(SERVER_VERSIONS)}"
            )
    return SERVER_VERSIONS[line]


if __name__ == "__main__":
    main()
