"""Writes a step's compiled program as a profile for XProf, without a TPU and without a run.

XProf (`pip install xprof`, `xprof --logdir DIR`; or TensorBoard with its profile plug-in) reads a folder of a run with
two kinds of files. `NAME.hlo_proto.pb` is the optimized program with its buffer assignment, as libtpu dumps it: the
graph viewer draws the one, the memory viewer the other. `preflight.xplane.pb` contains the program again, in which
XProf looks for it, and events on a device's lines: here the kernels of the program, one after the other, each with its
estimated time (`_step_time.py`), its operations and bytes, its TensorFlow op and that op's line in the model. XProf
computes its op tables and its roofline from them. A kernel in a loop is one event, as long as all its runs together.
"""

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from tensorflow.compiler.xla.service import hlo_pb2

# A wire format like hlo_pb2, whose field numbers are stable.
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.hardware import Slice
from tfx_tpu_trainer.preflight._step_time import OpTime

_PICOSECONDS = 1e12
_PROGRAM_ID = 1

# The name of a chip's runtime in a profile, by which XProf looks up its peak rates.
_DEVICE_TYPES = {
    "v2": "TPU v2",
    "v3": "TPU v3",
    "v4": "TPU v4",
    "v5e": "TPU v5 Lite",
    "v5p": "TPU v5",
    "v6e": "TPU v6 Lite",
}

SourceOf = Callable[[str], str | None]
"""Name of a TensorFlow op -> `"file.py:12: the line's text"`, or `None`."""


def write_profile(
    folder: str,
    *,
    run: str,
    program: bytes,
    times: Sequence[OpTime],
    tpu_slice: Slice,
    source_of: SourceOf,
) -> str:
    """Writes the two files of one step; returns their folder."""
    run = _plain(run)
    proto = hlo_pb2.HloProto.FromString(program)
    module = proto.hlo_module
    # XProf names a program's file after it, and graph_viewer's links use the name, too.
    module.name = f"{run}({_PROGRAM_ID})"
    module.id = _PROGRAM_ID
    for instruction in (each for part in module.computations for each in part.instructions):
        source = source_of(instruction.metadata.op_name)
        # Replaces TensorFlow's "dummy_file_name".
        instruction.metadata.source_file, instruction.metadata.source_line = _place(source)
    space = _space(module.name, times, tpu_slice, source_of)
    programs = _Plane(space.planes.add(id=2, name="/host:metadata"))
    programs.event(module.name, **{"Hlo Proto": proto.SerializeToString(deterministic=True)})
    where = os.path.join(folder, "plugins", "profile", run)
    write_whole(
        os.path.join(where, f"{module.name}.hlo_proto.pb"),
        proto.SerializeToString(deterministic=True),
    )
    write_whole(
        os.path.join(where, "preflight.xplane.pb"), space.SerializeToString(deterministic=True)
    )
    return where


def _space(module: str, times: Sequence[OpTime], tpu_slice: Slice, source_of: SourceOf) -> Any:
    space = xplane_pb2.XSpace(hostnames=["preflight"])
    plane = _Plane(space.planes.add(id=1, name="/device:TPU:0"))
    chip = tpu_slice.chip
    plane.describe(
        plane.proto.stats,
        device_type_string=_DEVICE_TYPES.get(chip.generation, chip.generation),
        peak_teraflops_per_second=chip.bf16_tflops / chip.devices,
        peak_hbm_bw_gigabytes_per_second=chip.hbm_gb_per_s / chip.devices,
        core_count=1,
    )
    ops = plane.proto.lines.add(id=3, name="XLA Ops")
    aside = plane.proto.lines.add(id=4, name="Async XLA Ops")
    now = 0.0
    for number, op in enumerate(times):
        seconds = op.cost.runs * op.seconds
        metadata = plane.event(
            op.cost.name,
            display=op.cost.name,
            program_id=_PROGRAM_ID,
            symbol_id=number + 1,
            hlo_category=_category(op),
            tf_op=f"{op.cost.op_name}:{op.cost.op_type}" if op.cost.op_name else "",
            flops=int(op.cost.flops),
            model_flops=int(op.cost.flops),
            bytes_accessed=op.cost.hbm_bytes,
            source=_line(source_of(op.cost.op_name)),
        )
        line = aside if op.cost.overlaps else ops
        line.events.add(
            metadata_id=metadata,
            offset_ps=round(now * _PICOSECONDS),
            duration_ps=max(1, round(seconds * _PICOSECONDS)),
        )
        now += 0.0 if op.cost.overlaps else seconds
    whole = {"offset_ps": 0, "duration_ps": max(1, round(now * _PICOSECONDS))}
    modules = plane.proto.lines.add(id=2, name="XLA Modules")
    event = modules.events.add(metadata_id=plane.event(module, program_id=_PROGRAM_ID), **whole)
    plane.describe(event.stats, run_id=1)
    steps = plane.proto.lines.add(id=1, name="Steps")
    event = steps.events.add(metadata_id=plane.event("0"), **whole)
    plane.describe(event.stats, group_id=0)
    return space


class _Plane:
    """A plane, whose events and statistics are named by numbers."""

    def __init__(self, proto: Any) -> None:
        self.proto = proto
        self._stats: dict[str, int] = {}

    def describe(self, stats: Any, **values: Any) -> None:
        for name, value in values.items():
            if value == "":
                # XProf reports an error for each place that it can't read.
                continue
            stat = stats.add(metadata_id=self._number_of(name))
            if isinstance(value, str):
                stat.str_value = value
            elif isinstance(value, bytes):
                stat.bytes_value = value
            elif isinstance(value, float):
                stat.double_value = value
            elif name in ("program_id", "symbol_id"):
                stat.uint64_value = value
            else:
                stat.int64_value = value

    def event(self, name: str, *, display: str = "", **values: Any) -> int:
        number = len(self.proto.event_metadata) + 1
        metadata = self.proto.event_metadata[number]
        metadata.id, metadata.name, metadata.display_name = number, name, display
        self.describe(metadata.stats, **values)
        return number

    def _number_of(self, name: str) -> int:
        if name not in self._stats:
            number = self._stats[name] = len(self._stats) + 1
            self.proto.stat_metadata[number].id = number
            self.proto.stat_metadata[number].name = name
        return self._stats[name]


def _category(op: OpTime) -> str:
    """Names a kernel's category as in a TPU's profile; XProf groups its tables by it."""
    cost = op.cost
    if cost.opcode != "fusion":
        return cost.opcode
    return "convolution fusion" if cost.flops else "loop fusion"


def _line(source: str | None) -> str:
    file, line = _place(source)
    return f"{file}:{line}" if file else ""


def _place(source: str | None) -> tuple[str, int]:
    found = re.match(r"(.+?):(\d+)(?::|$)", source or "")
    return (found[1], int(found[2])) if found else ("", 0)


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)
