"""The options of a compilation, as the bytes of XLA's `CompileOptionsProto`.

Written by hand, field by field, because neither libtpu nor the standard library has the message
class. The numbers are those of `xla/pjrt/proto/compile_options.proto` and `xla/xla_data.proto`;
numbers of a protocol buffer never change.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

# CompileOptionsProto
_EXECUTABLE_BUILD_OPTIONS = 3
# ExecutableBuildOptionsProto
_DEVICE_ORDINAL = 1
_NUM_REPLICAS = 4
_NUM_PARTITIONS = 5
_DEVICE_ASSIGNMENT = 9
_EXEC_TIME_OPTIMIZATION_EFFORT = 20
# DeviceAssignmentProto
_REPLICA_COUNT = 1
_COMPUTATION_COUNT = 2
_COMPUTATION_DEVICES = 3
# ComputationDevice
_REPLICA_DEVICE_IDS = 1

_VARINT, _BYTES, _FIXED32 = 0, 2, 5


def serialized_options(device_ids: Sequence[int], *, effort: float | None) -> bytes:
    """Returns the options of a program that runs once on each of some devices.

    Args:
        device_ids: The device of each replica.
        effort: How much the compiler shall do for a fast program, from -1.0 (the least) to 1.0.
            `None` leaves it to the compiler.

    Returns:
        A serialized `CompileOptionsProto`.
    """
    devices = b"".join(_varint(device) for device in device_ids)
    assignment = (
        _number(_REPLICA_COUNT, len(device_ids))
        + _number(_COMPUTATION_COUNT, 1)
        + _block(_COMPUTATION_DEVICES, _block(_REPLICA_DEVICE_IDS, devices))
    )
    build = (
        _number(_DEVICE_ORDINAL, -1)
        + _number(_NUM_REPLICAS, len(device_ids))
        + _number(_NUM_PARTITIONS, 1)
        + _block(_DEVICE_ASSIGNMENT, assignment)
    )
    if effort is not None:
        build += _tag(_EXEC_TIME_OPTIMIZATION_EFFORT, _FIXED32) + struct.pack("<f", effort)
    return _block(_EXECUTABLE_BUILD_OPTIONS, build)


def _varint(number: int) -> bytes:
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
