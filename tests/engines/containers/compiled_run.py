"""Runs a compiled pipeline without a cluster: each container's own command and arguments, as a local process.

What a backend does in between is done here as Vertex AI does it: it orders the tasks, chooses URIs, names artifacts
by resource names, fills in the `{{$}}` of the arguments, reads what the container has written, and answers resolvers
from the artifacts that there are. As with Kubeflow Pipelines, no `lifecycle.preCacheCheck` is run, and inputs have no
type.
"""

import dataclasses
import graphlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from ml_metadata.proto.metadata_store_pb2 import Artifact, Value

ROOT = Path(__file__).parents[3]
TASK_SECONDS = 400

_STORE = "projects/7/locations/here/metadataStores/default/artifacts/"
_JOB = "7/taxi-20260101000000"
_CONDITION = re.compile(r'(?P<field>[\w.]+)="?(?P<value>[^"]*)"?')
_METADATA_OF_INPUT = re.compile(r"{{\$\.inputs\.artifacts\['(\w+)'\]\.metadata\['(\w+)'\]}}")


@dataclasses.dataclass
class TaskProcess:
    """A task that runs.

    Attributes:
        task: Its name.
        process: The container's process.
        invocation: The container's executor input.
        log: File with both of its streams.
    """

    task: str
    process: subprocess.Popen[bytes]
    invocation: dict[str, Any]
    log: Path

    def wait(self) -> int:
        return self.process.wait(TASK_SECONDS)


class CompiledRun:
    """One run of a compiled pipeline.

    Attributes:
        artifacts: The metadata store: every artifact that a task has written, oldest first.
        outputs: Of the last attempt at each task, its artifacts by key.
    """

    def __init__(self, job: Mapping[str, Any], folder: Path) -> None:
        """Reads a job.

        Args:
            job: The compiled document.
            folder: Where logs go, and each container's working directory.
        """
        spec = job["pipelineSpec"]
        self._root = job["runtimeConfig"]["gcsOutputDirectory"]
        self._tasks = spec["root"]["dag"]["tasks"]
        self._components = spec["components"]
        self._executors = spec["deploymentSpec"]["executors"]
        self._folder = folder
        self._attempts = 0
        self.artifacts: list[dict[str, Any]] = []
        self.outputs: dict[str, dict[str, list[dict[str, Any]]]] = {}

    @property
    def order(self) -> list[str]:
        """The tasks' names, each after those that it depends on."""
        graph = {}
        for name, task in self._tasks.items():
            inputs = task.get("inputs", {}).get("artifacts", {}).values()
            producers = {given["taskOutputArtifact"]["producerTask"] for given in inputs}
            graph[name] = {*task.get("dependentTasks", ()), *producers}
        return list(graphlib.TopologicalSorter(graph).static_order())

    def run(self, task: str) -> None:
        """Runs a task to its end."""
        executor = self._executor(task)
        if "resolver" in executor:
            self._resolve(task, executor["resolver"]["outputArtifactQueries"])
        else:
            self.finish(self.start(task))

    def start(self, task: str) -> TaskProcess:
        """Starts an attempt at a task, with its own URIs."""
        self._attempts += 1
        invocation = self._invocation(task)
        container = self._executor(task)["container"]
        started = self._start(task, container, invocation)
        return dataclasses.replace(started, task=task)

    def finish(self, started: TaskProcess) -> None:
        """Waits for a task and reads its outputs."""
        code = started.wait()
        assert code == 0, f"{started.task}: {code}\n{started.log.read_text()[-5000:]}"
        path = Path(started.invocation["outputs"]["outputFile"])
        written = json.loads(path.read_text(encoding="utf-8"))["artifacts"]
        told = started.invocation["outputs"]["artifacts"]
        self.outputs[started.task] = {}
        for key, value in written.items():
            (artifact,), (expected,) = value["artifacts"], told[key]["artifacts"]
            assert artifact["name"] == expected["name"]
            artifact["type"] = expected["type"]
            self.artifacts.append(artifact)
            self.outputs[started.task][key] = [artifact]

    def take(self, task: str, artifacts: Mapping[str, Artifact]) -> None:
        """Uses outputs that a task made elsewhere, like a run that finds them in its cache.

        Args:
            task: Its name.
            artifacts: Each of its outputs, of ML Metadata.
        """
        self._attempts += 1
        told = self._invocation(task)["outputs"]["artifacts"]
        self.outputs[task] = {}
        for key, expected in told.items():
            (artifact,) = expected["artifacts"]
            made = artifacts[key]
            properties = {**made.properties, **made.custom_properties}
            metadata = {name: _plain(value) for name, value in properties.items()}
            artifact = {**artifact, "uri": made.uri, "metadata": metadata}
            self.artifacts.append(artifact)
            self.outputs[task][key] = [artifact]

    def uri(self, task: str, key: str) -> Path:
        """The folder of an output of the last attempt at a task."""
        (artifact,) = self.outputs[task][key]
        return Path(artifact["uri"])

    def _executor(self, task: str) -> Mapping[str, Any]:
        component = self._components[self._tasks[task]["componentRef"]["name"]]
        return self._executors[component["executorLabel"]]

    def _invocation(self, task: str) -> dict[str, Any]:
        definition = self._components[self._tasks[task]["componentRef"]["name"]]
        # Vertex: <root>/<project>/<job>/<task>_<id>
        folder = f"{self._root}/{_JOB}/{task}_{self._attempts}"
        outputs = {
            key: {
                "artifacts": [
                    {
                        "name": f"{_STORE}{self._attempts}{number}",
                        "uri": f"{folder}/{key}",
                        "type": output["artifactType"],
                        "metadata": output.get("metadata", {}),
                    }
                ]
            }
            for number, (key, output) in enumerate(
                definition.get("outputDefinitions", {}).get("artifacts", {}).items()
            )
        }
        return {
            "inputs": {
                "artifacts": {
                    key: {"artifacts": [_without_type(artifact) for artifact in artifacts]}
                    for key, artifacts in self._inputs(task).items()
                },
                "parameterValues": {
                    key: given["runtimeValue"]["constant"]
                    for key, given in self._tasks[task]["inputs"].get("parameters", {}).items()
                },
            },
            "outputs": {"artifacts": outputs, "outputFile": f"{folder}/executor_output.json"},
        }

    def _inputs(self, task: str) -> dict[str, list[dict[str, Any]]]:
        given = self._tasks[task].get("inputs", {}).get("artifacts", {})
        sources = {key: value["taskOutputArtifact"] for key, value in given.items()}
        return {
            key: self.outputs[source["producerTask"]][source["outputArtifactKey"]]
            for key, source in sources.items()
        }

    def _start(
        self, name: str, command: Mapping[str, Any], invocation: dict[str, Any]
    ) -> TaskProcess:
        filled = {"{{$}}": json.dumps(invocation)}
        arguments = [filled.get(text, text) for text in command["args"]]
        assert not any("{{$" in text for text in arguments)
        # The image has its interpreter first on PATH and the pipelines on PYTHONPATH.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        log = self._folder / f"{name}-{self._attempts}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*command["command"], *arguments],
                cwd=self._folder,
                env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        return TaskProcess(name, process, invocation, log)

    def _resolve(self, task: str, queries: Mapping[str, Any]) -> None:
        inputs = self._inputs(task)

        def metadata_of(match: re.Match[str]) -> str:
            found = inputs[match[1]]
            return str(found[0]["metadata"][match[2]]) if found else "nothing"

        self.outputs[task] = {}
        for key, query in queries.items():
            text = _METADATA_OF_INPUT.sub(metadata_of, query["filter"])
            conditions = [_CONDITION.fullmatch(part) for part in text.split(" AND ")]
            assert all(conditions), text
            found = [
                artifact
                for artifact in self.artifacts
                if all(_holds(match["field"], match["value"], artifact) for match in conditions)
            ]
            self.outputs[task][key] = found[-1:]


def _without_type(artifact: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in artifact.items() if key != "type"}


def _plain(value: Value) -> Any:
    kind = value.WhichOneof("value")
    if kind == "struct_value":
        told = json_format.MessageToDict(value.struct_value)
        # TFX's field for JSON that is not an object.
        return told.get("__value__", told)
    return getattr(value, kind)


def _holds(field: str, value: str, artifact: Mapping[str, Any]) -> bool:
    """Tells whether a condition of a resolver's query holds."""
    if field == "state":
        return value == "LIVE"
    if field == "name":
        return artifact["name"] == value
    if field == "schema_title":
        return artifact["type"].get("instanceSchema", "").startswith(f"title: {value}\n")
    metadata = re.fullmatch(r"metadata\.(\w+)\.number_value", field)
    assert metadata, field
    return artifact["metadata"].get(metadata[1]) == float(value)
