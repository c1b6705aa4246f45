"""Compiles one program; `_compiling.py` runs this module in a process.

    python -m tfx_tpu_trainer.preflight.compiler.compile_process FOLDER

The request and the response are files of the folder.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
from collections.abc import Mapping
from typing import Any

from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.preflight.compiler.c_api import PjrtError
from tfx_tpu_trainer.preflight.compiler.tpu_compiler import TpuCompiler

_REQUEST = "request.json"
_PROGRAM = "program.hlo"
_RESPONSE = "response.json"
_OPTIMIZED = "optimized.pb"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """What to compile, and how."""

    libtpu: str  # path of the plug-in
    topology: str  # name of the slice
    topology_options: Mapping[str, Any]  # options of the slice
    num_replicas: int  # copies of the program
    num_partitions: int  # devices that each copy is spread over
    effort: float | None  # see `TpuCompiler.compile`
    memory_limit_bytes: int | None  # the most that the process may address, or `None`

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
    """What became of it."""

    # See `Executable`; empty where it was refused.
    costs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    memory: Mapping[str, int] = dataclasses.field(default_factory=dict)  # the same
    program: bytes = b""  # the optimized program, a serialized `HloModuleProtoWithConfig`
    # What refused it: `"plugin"` (it can't be loaded), `"topology"` (there is no such slice), `"replicas"` (it has too
    # few devices) or `"compiler"`; `None` where it compiled.
    refused_by: str | None = None
    code: str | None = None  # name of the compiler's status code
    message: str = ""  # the refusal in the words of what refused

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


# Without these libtpu asks Google Cloud's metadata server which TPU it is on, wants the machine's
# TPU for itself alone, and writes log files into the folder of temporary files.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def main(folder: str) -> None:
    """Compiles what the folder asks for, and leaves the response there."""
    os.environ.update(_ENVIRONMENT)
    request = CompileRequest.read(folder)
    if request.memory_limit_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (request.memory_limit_bytes,) * 2)
    # A compiler that aborts would leave a file of its whole memory.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _compile(request, folder).write(folder)


def _compile(request: CompileRequest, folder: str) -> CompileResponse:
    try:
        compiler = TpuCompiler(request.libtpu)
    except (OSError, AttributeError, PjrtError) as error:
        return CompileResponse(refused_by="plugin", message=str(error))
    try:
        topology = compiler.topology(request.topology, request.topology_options)
    except PjrtError as error:
        return CompileResponse(refused_by="topology", message=error.message)
    if request.num_replicas * request.num_partitions > len(topology.device_ids):
        return CompileResponse(
            refused_by="replicas", message=f"it has {len(topology.device_ids)} devices"
        )
    try:
        executable = compiler.compile(
            CompileRequest.read_program(folder),
            topology,
            num_replicas=request.num_replicas,
            num_partitions=request.num_partitions,
            effort=request.effort,
        )
    except PjrtError as error:
        return CompileResponse(refused_by="compiler", code=error.code, message=error.message)
    return CompileResponse(
        costs=executable.costs, memory=executable.memory, program=executable.program
    )


if __name__ == "__main__":
    main(sys.argv[1])
