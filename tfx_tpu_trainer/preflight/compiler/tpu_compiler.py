"""Compiles HLO for a TPU that is not present; `_compiling.py` runs this module in a process.

    python -m tfx_tpu_trainer.preflight.compiler.tpu_compiler FOLDER

The request and the response are files of the folder.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import resource
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.preflight.compiler import c_api
from tfx_tpu_trainer.preflight.compiler.c_api import NamedValue, PjrtError, PjrtPlugin

OptionValue = str | int | Sequence[int]


class Topology(NamedTuple):
    """A slice as the plug-in describes it."""

    handle: int  # the plug-in's handle
    device_ids: tuple[int, ...]


class Executable(NamedTuple):
    """A compiled program."""

    # The compiler's estimates for one run, by its own names: `"flops"`, `"bytes accessed"` and others.
    costs: dict[str, float]
    # Bytes of HBM: `generated_code`, `argument`, `output`, `alias`, `temp`, and `peak`, the most in use at a time; 0 if
    # unknown.
    memory: dict[str, int]
    program: bytes  # the optimized program, a serialized `HloModuleProtoWithConfig`


class TpuCompiler:
    """The compiler of a libtpu."""

    def __init__(self, path: str) -> None:
        """Loads a libtpu."""
        self._plugin = PjrtPlugin(path)

    def topology(self, name: str, options: Mapping[str, OptionValue] | None = None) -> Topology:
        """Describes a slice."""
        values, kept = _named_values(options or {})
        encoded = name.encode()
        created = c_api.CreateTopology(
            name=encoded, name_size=len(encoded), options=values, num_options=len(options or {})
        )
        self._plugin.call("TopologyDescription_Create", created)
        del kept
        devices = c_api.TopologyDevices(topology=created.topology)
        self._plugin.call("TopologyDescription_GetDeviceDescriptions", devices)
        ids = []
        for index in range(devices.num_descriptions):
            device = c_api.DeviceId(description=devices.descriptions[index])
            self._plugin.call("DeviceDescription_Id", device)
            ids.append(device.id)
        return Topology(created.topology, tuple(ids))

    def compile(
        self,
        hlo: bytes,
        topology: Topology,
        *,
        num_replicas: int,
        num_partitions: int = 1,
        effort: float | None = None,
    ) -> Executable:
        """Compiles a program, which takes from a second to minutes."""
        code = ctypes.create_string_buffer(hlo, len(hlo))
        program_format = b"hlo"
        program = c_api.Program(
            code=ctypes.cast(code, ctypes.c_void_p),
            code_size=len(hlo),
            format=ctypes.cast(ctypes.c_char_p(program_format), ctypes.c_void_p),
            format_size=len(program_format),
        )
        program.struct_size = ctypes.sizeof(program)
        options = serialized_options(
            topology.device_ids[: num_replicas * num_partitions],
            num_partitions=num_partitions,
            effort=effort,
        )
        call = c_api.Compile(
            topology=topology.handle,
            program=ctypes.pointer(program),
            options=options,
            options_size=len(options),
        )
        self._plugin.call("Compile", call)
        return Executable(
            costs=self._costs(call.executable),
            memory=self._memory(call.executable),
            program=self._optimized(call.executable),
        )

    def _costs(self, executable: int) -> dict[str, float]:
        analysis = c_api.CostAnalysis(executable=executable)
        self._plugin.call("Executable_GetCostAnalysis", analysis)
        costs = {}
        for index in range(analysis.num_properties):
            each = analysis.properties[index]
            if each.type == NamedValue.FLOAT:
                costs[ctypes.string_at(each.name, each.name_size).decode()] = each.value.float
        return costs

    def _memory(self, executable: int) -> dict[str, int]:
        # The size at a structure's beginning distinguishes its forms. The longer one comes first, since only it has the
        # peak.
        stats: Any = c_api.LongMemoryStats(executable=executable)
        try:
            self._plugin.call("Executable_GetCompiledMemoryStats", stats)
        except PjrtError:
            stats = c_api.MemoryStats(executable=executable)
            self._plugin.call("Executable_GetCompiledMemoryStats", stats)
        names = ("generated_code", "argument", "output", "alias", "temp", "peak")
        return {name: getattr(stats, name, 0) for name in names}

    def _optimized(self, executable: int) -> bytes:
        program = c_api.Program()
        program.struct_size = ctypes.sizeof(program)
        call = c_api.OptimizedProgram(executable=executable, program=ctypes.pointer(program))
        # The first call returns the length, the second one writes the program.
        self._plugin.call("Executable_OptimizedProgram", call)
        buffer = ctypes.create_string_buffer(program.code_size)
        program.code = ctypes.cast(buffer, ctypes.c_void_p)
        self._plugin.call("Executable_OptimizedProgram", call)
        return buffer.raw


def _named_values(options: Mapping[str, OptionValue]) -> tuple[Any, list[Any]]:
    """Returns options in the API's form, with the objects that must stay alive while they are used."""
    values = (NamedValue * max(1, len(options)))()
    kept: list[Any] = []
    for entry, (name, value) in zip(values, options.items()):
        entry.struct_size = ctypes.sizeof(NamedValue)
        entry.name, entry.name_size = _text(name, kept)
        if isinstance(value, str):
            entry.type = NamedValue.STRING
            entry.value.string, entry.value_size = _text(value, kept)
        elif isinstance(value, int):
            entry.type, entry.value.int64, entry.value_size = NamedValue.INT64, value, 1
        else:
            numbers = (ctypes.c_int64 * len(value))(*value)
            kept.append(numbers)
            entry.type = NamedValue.INT64_LIST
            entry.value.int64s = ctypes.cast(numbers, ctypes.POINTER(ctypes.c_int64))
            entry.value_size = len(value)
    return values, kept


def _text(text: str, kept: list[Any]) -> tuple[Any, int]:
    encoded = text.encode()
    pointer = ctypes.c_char_p(encoded)
    kept.append((encoded, pointer))
    return ctypes.cast(pointer, ctypes.c_void_p), len(encoded)


# Field numbers of XLA's protos, which are written by hand: the process only has the standard library.
_EXECUTABLE_BUILD_OPTIONS = 3
# ExecutableBuildOptionsProto
_DEVICE_ORDINAL = 1
_NUM_REPLICAS = 4
_NUM_PARTITIONS = 5
_USE_SPMD_PARTITIONING = 6
_DEVICE_ASSIGNMENT = 9
_EXEC_TIME_OPTIMIZATION_EFFORT = 20
# DeviceAssignmentProto
_REPLICA_COUNT = 1
_COMPUTATION_COUNT = 2
_COMPUTATION_DEVICES = 3
# ComputationDevice
_REPLICA_DEVICE_IDS = 1

_VARINT, _BYTES, _FIXED32 = 0, 2, 5


def serialized_options(
    device_ids: Sequence[int], *, num_partitions: int = 1, effort: float | None
) -> bytes:
    """Returns the options of a program that runs once on each group of devices."""
    num_replicas = len(device_ids) // num_partitions
    assignment = _number(_REPLICA_COUNT, num_replicas) + _number(_COMPUTATION_COUNT, num_partitions)
    # The proto lists partitions, the devices are listed by replica. Example: for the devices [0 1 2 3] with two
    # partitions, the first partition has 0 and 2 and the second has 1 and 3, so the first replica is on 0 and 1,
    # next to each other.
    for partition in range(num_partitions):
        devices = b"".join(_varint(device) for device in device_ids[partition::num_partitions])
        assignment += _block(_COMPUTATION_DEVICES, _block(_REPLICA_DEVICE_IDS, devices))
    build = (
        _number(_DEVICE_ORDINAL, -1)
        + _number(_NUM_REPLICAS, num_replicas)
        + _number(_NUM_PARTITIONS, num_partitions)
        + (_number(_USE_SPMD_PARTITIONING, 1) if num_partitions > 1 else b"")
        + _block(_DEVICE_ASSIGNMENT, assignment)
    )
    if effort is not None:
        build += _tag(_EXEC_TIME_OPTIMIZATION_EFFORT, _FIXED32) + struct.pack("<f", effort)
    return _block(_EXECUTABLE_BUILD_OPTIONS, build)


def _varint(number: int) -> bytes:
    # A negative number takes ten bytes: protobuf writes its 64-bit two's complement.
    number &= (1 << 64) - 1
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


def _tag(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _number(field: int, number: int) -> bytes:
    return _tag(field, _VARINT) + _varint(number)


def _block(field: int, content: bytes) -> bytes:
    return _tag(field, _BYTES) + _varint(len(content)) + content


if TYPE_CHECKING:
    from typing_extensions import Self

# Without these, libtpu looks up its TPU on Google Cloud's metadata server, claims the machine's TPU exclusively, and
# writes log files into the temporary folder.
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

    # In a request, a serialized `HloModuleProto`. In a response, see `Executable`; empty if it was rejected.
    program: bytes = b""

    def write(self, folder: str) -> None:
        """Writes the files; the one that `read` looks for comes last."""
        with open(os.path.join(folder, f"{type(self).__name__}.program"), "wb") as file:
            file.write(self.program)
        values = {key: value for key, value in vars(self).items() if key != "program"}
        write_whole(os.path.join(folder, f"{type(self).__name__}.json"), json.dumps(values))

    @classmethod
    def read(cls, folder: str) -> Self | None:
        """Reads a folder's files; `None` if there are none."""
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

    libtpu: str  # the plug-in's path
    topology: str  # the slice's name
    topology_options: Mapping[str, Any]  # the slice's options
    num_replicas: int  # copies of the program
    num_partitions: int  # devices of each copy
    effort: float | None  # see `TpuCompiler.compile`
    memory_limit_bytes: int | None  # the most that the process may address; `None` for no limit


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileResponse(_Message):
    """The compiler's result."""

    # See `Executable`; empty if it was rejected.
    costs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    memory: Mapping[str, int] = dataclasses.field(default_factory=dict)
    # The refusing part: `"plugin"` (it can't be loaded), `"topology"` (the slice does not exist or has too few devices)
    # or `"compiler"`; `None` if it compiled.
    refused_by: str | None = None
    code: str | None = None  # name of the compiler's status code
    message: str = ""  # the refusing part's message


def main(folder: str) -> None:
    """Compiles a folder's request, and writes the response there."""
    os.environ.update(_ENVIRONMENT)
    request = CompileRequest.read(folder)
    assert request is not None
    if request.memory_limit_bytes is not None:
        # Set before libtpu is loaded: otherwise Linux would kill some process of the machine, not necessarily this one.
        resource.setrlimit(resource.RLIMIT_AS, (request.memory_limit_bytes,) * 2)
    # An aborting compiler would dump its whole memory into a file.
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
    wanted, devices = request.num_replicas * request.num_partitions, len(topology.device_ids)
    if wanted > devices:
        return CompileResponse(
            refused_by="topology", message=f"it has {devices} devices, the program needs {wanted}"
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
