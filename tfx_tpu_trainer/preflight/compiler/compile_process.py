"""Compiles one program in this process, which may abort, hang or run out of memory for it.

    python -m tfx_tpu_trainer.preflight.compiler.compile_process FOLDER

The folder holds `request.json` and `program.hlo`; `compile_request.py` says what is in them and
what is left behind.
"""

from __future__ import annotations

import os
import resource
import sys

from tfx_tpu_trainer.preflight.compiler.c_api import PjrtError
from tfx_tpu_trainer.preflight.compiler.compile_request import CompileRequest, CompileResponse
from tfx_tpu_trainer.preflight.compiler.tpu_compiler import TpuCompiler

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
