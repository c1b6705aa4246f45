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
from typing import TYPE_CHECKING, Any

from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.preflight.compiler.c_api import PjrtError
from tfx_tpu_trainer.preflight.compiler.tpu_compiler import TpuCompiler

if TYPE_CHECKING:
    from typing_extensions import Self

# Without these libtpu asks Google Cloud's metadata server which TPU it is on, wants the machine's
# TPU for itself alone, and writes log files into the folder of temporary files.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Message:
    """Two files of a folder: a program, and the other fields as JSON."""

    # What is asked for: a serialized `HloModuleProto`. The answer: see `Executable`; empty where it was refused.
    program: bytes = b""

    def write(self, folder: str) -> None:
        """Writes the files; the one that `read` looks for comes last."""
        with open(os.path.join(folder, f"{type(self).__name__}.program"), "wb") as file:
            file.write(self.program)
        values = {key: value for key, value in vars(self).items() if key != "program"}
        write_whole(os.path.join(folder, f"{type(self).__name__}.json"), json.dumps(values))

    @classmethod
    def read(cls, folder: str) -> Self | None:
        """Reads the files of a folder, `None` if there are none."""
        path = os.path.join(folder, f"{cls.__name__}.json")
        if not os.path.exists(path):
            return None
        with open(os.path.join(folder, f"{cls.__name__}.program"), "rb") as file:
            program = file.read()
        with open(path, encoding="utf-8") as file:
            return cls(program=program, **json.load(file))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileRequest(_Message):
    """What to compile, and how."""

    libtpu: str  # path of the plug-in
    topology: str  # name of the slice
    topology_options: Mapping[str, Any]  # options of the slice
    num_replicas: int  # copies of the program
    num_partitions: int  # devices that each copy is spread over
    effort: float | None  # see `TpuCompiler.compile`
    memory_limit_bytes: int | None  # the most that the process may address, or `None`


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileResponse(_Message):
    """What the compiler made of it."""

    # See `Executable`; empty where it was refused.
    costs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    memory: Mapping[str, int] = dataclasses.field(default_factory=dict)
    # What refused it: `"plugin"` (it can't be loaded), `"topology"` (there is no such slice), `"replicas"` (it has too
    # few devices) or `"compiler"`; `None` where it compiled.
    refused_by: str | None = None
    code: str | None = None  # name of the compiler's status code
    message: str = ""  # the refusal in the words of what refused


def main(folder: str) -> None:
    """Compiles the request of a folder, and writes the response there."""
    os.environ.update(_ENVIRONMENT)
    request = CompileRequest.read(folder)
    assert request is not None
    if request.memory_limit_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (request.memory_limit_bytes,) * 2)
    # A compiler that aborts would leave a file of its whole memory.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _compile(request).write(folder)


def _compile(request: CompileRequest) -> CompileResponse:
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
            request.program,
            topology,
            num_replicas=request.num_replicas,
            num_partitions=request.num_partitions,
            effort=request.effort,
        )
    except PjrtError as error:
        return CompileResponse(refused_by="compiler", code=error.code, message=error.message)
    return CompileResponse(**executable._asdict())


if __name__ == "__main__":
    main(sys.argv[1])
