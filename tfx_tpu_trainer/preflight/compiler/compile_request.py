"""What a compile process is asked and what it answers, as files of one folder."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from tfx_tpu_trainer._support.whole_files import write_whole

_REQUEST = "request.json"
_PROGRAM = "program.hlo"
_RESPONSE = "response.json"
_OPTIMIZED = "optimized.pb"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """What to compile, and how.

    Attributes:
        libtpu: Path of the plug-in.
        topology: Name of the slice.
        topology_options: Options of the slice.
        num_replicas: Copies of the program.
        num_partitions: Devices that each copy is spread over.
        effort: See `TpuCompiler.compile`.
        memory_limit_bytes: The most that the process may address, or `None`.
    """

    libtpu: str
    topology: str
    topology_options: Mapping[str, Any]
    num_replicas: int
    num_partitions: int
    effort: float | None
    memory_limit_bytes: int | None

    def write(self, folder: str, program: bytes) -> None:
        """Writes the request and the program, a serialized `HloModuleProto`."""
        with open(os.path.join(folder, _PROGRAM), "wb") as file:
            file.write(program)
        _write_json(os.path.join(folder, _REQUEST), dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: str) -> CompileRequest:
        """Reads the request of a folder."""
        return cls(**_read_json(os.path.join(folder, _REQUEST)))

    @staticmethod
    def read_program(folder: str) -> bytes:
        """Reads the program of a folder."""
        with open(os.path.join(folder, _PROGRAM), "rb") as file:
            return file.read()


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileResponse:
    """What became of it.

    Attributes:
        costs: See `Executable`; empty where it was refused.
        memory: The same.
        program: The optimized program, a serialized `HloModuleProtoWithConfig`.
        refused_by: What refused it: `"plugin"` (it can't be loaded), `"topology"` (there is no
            such slice), `"replicas"` (it has too few devices) or `"compiler"`; `None` where it
            compiled.
        code: Name of the compiler's status code.
        message: The refusal in the words of what refused.
    """

    costs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    memory: Mapping[str, int] = dataclasses.field(default_factory=dict)
    program: bytes = b""
    refused_by: str | None = None
    code: str | None = None
    message: str = ""

    def write(self, folder: str) -> None:
        """Writes the response; the file that says so comes last."""
        with open(os.path.join(folder, _OPTIMIZED), "wb") as file:
            file.write(self.program)
        values = {k: v for k, v in dataclasses.asdict(self).items() if k != "program"}
        _write_json(os.path.join(folder, _RESPONSE), values)

    @classmethod
    def read(cls, folder: str) -> CompileResponse | None:
        """Reads the response of a folder, `None` if there is none."""
        path = os.path.join(folder, _RESPONSE)
        if not os.path.exists(path):
            return None
        with open(os.path.join(folder, _OPTIMIZED), "rb") as file:
            return cls(program=file.read(), **_read_json(path))


def _write_json(path: str, values: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(values))


def _read_json(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        return json.load(file)
