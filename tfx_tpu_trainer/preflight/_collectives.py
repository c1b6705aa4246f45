"""What the devices of a compiled program tell each other: ops by kind, and their bytes.

They are counted in the optimized program, where the compiler has cut the model for the cores of a replica,
merged small sums and left out what it can do without. The body of a loop counts once.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any

from tfx_tpu_trainer.hardware import Slice
from tfx_tpu_trainer.preflight import _hlo_shapes
from tfx_tpu_trainer.preflight._results import Collective

KINDS = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all"),
    *("collective-permute", "collective-broadcast", "ragged-all-to-all"),
)
"""XLA's ops by which devices read each other."""


# Of the bytes of an op, what the busiest of two devices sends: (g - 1) / g of them in a group of g, and in a
# sum twice that.
_LEAST_SHARE_SENT = {"all-gather": 0.5, "reduce-scatter": 0.5, "all-to-all": 0.5}


def find_collectives(module: Any) -> tuple[Collective, ...]:
    """Adds up the ops of an optimized program by which its devices read each other."""
    by_id = module.by_id()
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    sizes: collections.Counter[tuple[str, str]] = collections.Counter()
    for instruction in module.instructions():
        kind = instruction.opcode.removesuffix("-start")
        if kind not in KINDS:
            continue
        # XLA numbers the channels of ops between the parts of a program, not of sums over replicas.
        key = kind, "cores" if instruction.channel_id > 0 else "replicas"
        counts[key] += 1
        given = sum(_hlo_shapes.unpadded_bytes(by_id[i].shape) for i in instruction.operand_ids)
        sizes[key] += max(given, _result_bytes(instruction))
    return tuple(
        Collective(kind=kind, between=between, count=counts[kind, between], bytes=size)
        for (kind, between), size in sizes.most_common()
    )


def bytes_between_replicas(found: Iterable[Collective]) -> int:
    """Returns the bytes of one device that go into sums over the replicas."""
    sizes = {each.kind: each.bytes for each in found if each.between == "replicas"}
    # A sum may have been made of these two, which would count it twice.
    if "reduce-scatter" in sizes:
        sizes.pop("all-gather", None)
    return sum(sizes.values())


def seconds_between_cores(found: Iterable[Collective], tpu_slice: Slice) -> float:
    """Returns a lower bound on the time that the cores of a replica take to tell each other what they must.

    How many cores take part in an op is not read: two are the fewest.
    """
    if tpu_slice.chip.devices > 1:
        return 0.0
    sent = sum(
        each.bytes * _LEAST_SHARE_SENT.get(each.kind, 1.0)
        for each in found
        if each.between == "cores"
    )
    return sent / (tpu_slice.chip.ici_gb_per_s * 1e9)


def _result_bytes(instruction: Any) -> int:
    shape = instruction.shape
    starts = instruction.opcode.endswith("-start") and instruction.opcode != "all-reduce-start"
    if starts and len(shape.tuple_shapes) > 1:
        # (what is read, what is made, flags)
        shape = shape.tuple_shapes[1]
    return _hlo_shapes.unpadded_bytes(shape)
