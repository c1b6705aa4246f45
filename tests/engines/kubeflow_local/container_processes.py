"""Stands in for the package `docker`, as far as Kubeflow's local engine uses it: containers are processes here.

The engine's DockerRunner imports it by that name. A container's image is not looked at: each command runs with the
programs of `PROGRAMS` first on its PATH, as in our images.
"""

import os
import subprocess
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

PROGRAMS = ""
"""A folder; set it before a container is started."""
SOURCES = ""
"""What containers have as PYTHONPATH."""


class NotFoundError(Exception):
    """A container that is gone; none is."""


errors = types.SimpleNamespace(NotFound=NotFoundError)


class Container:
    """A container's process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def logs(self, *, stream: bool) -> Iterator[bytes]:
        assert stream
        return iter(self._process.stdout)

    def wait(self) -> dict[str, int]:
        return {"StatusCode": self._process.wait()}


class DockerClient:
    """A client whose engine has every image."""

    def __init__(self) -> None:
        self.containers = self
        self.images = types.SimpleNamespace(list=list, pull=lambda image: None)

    def info(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass

    def run(
        self,
        *,
        image: str,
        command: Sequence[str],
        volumes: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        **how: Any,
    ) -> Container:
        """Starts a container; the root of the outputs has the same path outside, and no other volume is used."""
        path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
        own = {**os.environ, "PATH": path, "PYTHONPATH": SOURCES, **(environment or {})}
        return Container(
            subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        )


def from_env() -> DockerClient:
    return DockerClient()
