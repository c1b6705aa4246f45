"""The model server of model_server/, compiled and running, and its REST."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

from tests.engines import jars

SOURCES = pathlib.Path(__file__).parent / "model_server"
NAME = "taxi"
START_SECONDS = 120


class RefusedError(Exception):
    """The server's answer to a request that it does not take."""


@dataclasses.dataclass(frozen=True)
class JavaServer:
    """A running server.

    Attributes:
        address: Of the model in its REST API.
        tensorflow: Version of its TensorFlow.
        warmup: What the warm-up requests gave: signature, rows and predictions of each.
    """

    address: str
    tensorflow: str
    warmup: Sequence[dict[str, Any]]

    def status(self) -> Any:
        return self._call(self.address, None)

    def predict(self, instances: Sequence[Any], **request: Any) -> Any:
        """Asks for predictions, as one asks TensorFlow Serving, in its row format."""
        body = json.dumps({"instances": list(instances), **request}).encode()
        return self._call(f"{self.address}:predict", body)["predictions"]

    def _call(self, address: str, body: bytes | None) -> Any:
        try:
            with urllib.request.urlopen(address, data=body, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise RefusedError(json.load(error)["error"]) from None


@contextlib.contextmanager
def java_server(saved_model: str, folder: pathlib.Path) -> Iterator[JavaServer]:
    """Compiles the server, starts it for a SavedModel, and ends it.

    Args:
        saved_model: Folder of the SavedModel.
        folder: Where classes, log and address go.

    Raises:
        UnavailableError: If its libraries can't be had here.
    """
    libraries = jars.fetch(SOURCES / "pom.xml")
    classes, log, address = folder / "classes", folder / "server.log", folder / "address.json"
    subprocess.run(
        ["javac", "-Xlint:all", "-Werror", "-d", str(classes), "-cp", jars.class_path(libraries)]
        + [str(source) for source in sorted(SOURCES.glob("*.java"))],
        check=True,
        timeout=START_SECONDS,
    )
    command = ["java", "-Xmx512m", "-cp", jars.class_path(libraries, classes), "ModelServer"]
    with log.open("wb") as written:
        process = subprocess.Popen(
            [*command, saved_model, NAME, str(address)],
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not address.exists():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text("utf-8")
            time.sleep(0.05)
        told = json.loads(address.read_text("utf-8"))
        yield JavaServer(
            address=f"http://localhost:{told['port']}/v1/models/{NAME}",
            tensorflow=told["tensorflow"],
            warmup=told["warmup"],
        )
    finally:
        process.kill()
        process.wait()
