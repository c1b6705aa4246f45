"""The TPU's compiler by way of its C API, without TensorFlow around it."""

import ctypes
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tfx_tpu_trainer.hardware import known_slices
from tfx_tpu_trainer.preflight.compiler import c_api
from tfx_tpu_trainer.preflight.compiler.tpu_compiler import (
    CompileRequest,
    CompileResponse,
    serialized_options,
)

ROOT = Path(__file__).parents[2]


def ask(folder: Path, **changed: object) -> CompileResponse:
    """Lets a separate process answer a request, whose program is not one."""
    import libtpu

    values: dict[str, object] = {
        "program": b"no program",
        "libtpu": str(Path(libtpu.__file__).with_name("libtpu.so")),
        "topology": "v5e:2x4",
        "topology_options": {},
        "num_replicas": 8,
        "num_partitions": 1,
        "effort": None,
        "memory_limit_bytes": None,
        **changed,
    }
    CompileRequest(**values).write(str(folder))  # type: ignore[arg-type]
    command = [sys.executable, "-m", "tfx_tpu_trainer.preflight.compiler.tpu_compiler", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    response = CompileResponse.read(str(folder))
    assert response is not None
    return response


@pytest.mark.parametrize(
    ("changed", "refused_by", "says"),
    [
        ({"libtpu": "nowhere/libtpu.so"}, "plugin", "cannot open shared object file"),
        ({"topology": "v9:2x4"}, "topology", "v9"),
        ({"topology": "v5e:3x5"}, "topology", "chips_per_host_bounds"),
        ({"num_replicas": 9}, "topology", "it has 8 devices, the program needs 9"),
        ({"num_partitions": 2}, "topology", "it has 8 devices, the program needs 16"),
        ({}, "compiler", "HLO"),
    ],
)
def test_who_refuses_and_why(tmp_path, changed, refused_by, says):
    response = ask(tmp_path, **changed)
    assert response.refused_by == refused_by
    assert says.lower() in response.message.lower()
    assert (response.costs, response.memory, response.program) == ({}, {}, b"")


def test_a_folder_without_an_answer(tmp_path):
    assert CompileResponse.read(str(tmp_path)) is None


def test_an_answer_is_read_as_it_was_written(tmp_path):
    response = CompileResponse(
        costs={"flops": 2.0}, memory={"temp": 8}, program=b"\x00\xff", message="ü"
    )
    response.write(str(tmp_path))
    assert CompileResponse.read(str(tmp_path)) == response


def test_options_are_the_bytes_of_the_message():
    # CompileOptionsProto { executable_build_options (3) { device_ordinal (1): -1, num_replicas (4): 2,
    # num_partitions (5): 1, device_assignment (9) { replica_count (1): 2, computation_count (2): 1,
    # computation_devices (3) { replica_device_ids (1): [0, 300] } }, effort (20): -1.0 } }
    devices = bytes([0x0A, 3, 0, 0xAC, 2])
    assignment = bytes([0x08, 2, 0x10, 1, 0x1A, len(devices)]) + devices
    build = bytes([0x08, *[0xFF] * 9, 1, 0x20, 2, 0x28, 1, 0x4A, len(assignment)]) + assignment
    effort = bytes([0xA5, 1]) + bytes.fromhex("000080bf")
    for given, expected in ((None, build), (-1.0, build + effort)):
        written = serialized_options([0, 300], effort=given)
        assert written == bytes([0x1A, len(expected)]) + expected


def test_a_replica_of_several_devices_is_an_assignment_by_partition():
    # num_replicas (4): 2, num_partitions (5): 3, use_spmd_partitioning (6): 1, and a device of each
    # replica for each partition.
    parts = [bytes([0x1A, 4, 0x0A, 2, part, part + 3]) for part in range(3)]
    assignment = bytes([0x08, 2, 0x10, 3]) + b"".join(parts)
    build = bytes([0x08, *[0xFF] * 9, 1, 0x20, 2, 0x28, 3, 0x30, 1, 0x4A, len(assignment)])
    build += assignment
    expected = bytes([0x1A, len(build)]) + build
    assert serialized_options(range(6), num_partitions=3, effort=None) == expected


def test_the_table_of_functions_has_the_headers_order():
    """A slip by one would call another function."""
    start = c_api._Api.Error_Destroy.offset
    places = {
        name: (getattr(c_api._Api, name).offset - start) // ctypes.sizeof(ctypes.c_void_p)
        for name in c_api._FUNCTIONS
    }
    assert places == _places_in_header(list(places))


def _places_in_header(names: list[str]) -> dict[str, int]:
    """Reads the header that TensorFlow's package carries."""
    spec = importlib.util.find_spec("tensorflow")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    header = (folder / "include" / "xla" / "pjrt" / "c" / "pjrt_c_api.h").read_text()
    fields = re.findall(r"^\s+_PJRT_API_STRUCT_FIELD\(PJRT_(\w+)\);", header, flags=re.MULTILINE)
    return {name: fields.index(name) for name in names}


@pytest.mark.sweep
@pytest.mark.parametrize(
    "target",
    # tpu7x wants a newer compiler than that of Python 3.10.
    [each.name for each in known_slices() if each.chip.generation != "tpu7x"],
)
def test_every_slice_of_the_table_is_known_to_the_compiler(tmp_path, target):
    tpu_slice = next(each for each in known_slices() if each.name == target)
    options: dict[str, object] = {}
    if tpu_slice.num_chips == 1:
        options["chips_per_host_bounds"] = [1, 1, 1]
    if tpu_slice.chip.generation == "v4":
        options["chip_config_name"] = "megacore"
    response = ask(
        tmp_path, topology=target, topology_options=options, num_replicas=tpu_slice.num_devices
    )
    # It has as many devices as in the table, and one more is too many.
    assert response.refused_by == "compiler", response.message
    response = ask(
        tmp_path, topology=target, topology_options=options, num_replicas=tpu_slice.num_devices + 1
    )
    assert response.refused_by == "topology"
    assert response.message.startswith(f"it has {tpu_slice.num_devices} devices, ")
