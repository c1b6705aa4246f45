"""Lists the generations of TPU chips and the slices that can be requested, with their names on GKE and Vertex.

Peak rates, memory and links are those that Google publishes for a chip
(https://cloud.google.com/tpu/docs/system-architecture-tpu-vm and its page for each generation). Topologies, machine
types and node labels are those of "Plan TPUs in GKE"
(https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus), Vertex's machine types those of
"Configure compute resources for training"
(https://cloud.google.com/vertex-ai/docs/training/configure-compute).
"""

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """A generation of TPU chips.

    Attributes:
        generation: Its name, such as `"v5e"`.
        devices: TPU devices of a chip in TensorFlow: 2 cores on v2 and v3, and one if the chip has one core or its two
            act as one (v4 and v5p).
        hbm_gib: Memory of a chip, GiB.
        program_hbm_gib: Memory that a program may use on one TPU device, GiB, according to the TPU compiler (libtpu
            0.0.21); the system uses the rest.
        bf16_tflops: Peak rate of a chip in bfloat16, 10^12 operations a second.
        hbm_gb_per_s: Bandwidth of its memory, 10^9 bytes a second.
        ici_gb_per_s: Bandwidth of all its links to other chips in one direction, 10^9 bytes a second: half of the
            bidirectional bandwidth on Google's pages.
        dcn_gbit_per_s: Bandwidth of the data center's network for a chip's share of its machine, 10^9 bits a second; it
            joins several slices. Published by Google for v5p, v6e and tpu7x; for v5e, a pod's bandwidth divided by its
            256 chips. `None` if it is not published.
        session_training: Whether its runtimes train in a `Session`. On newer ones that is reported to crash (TensorFlow
            issue 90807), so `TPUStrategy` is used.
        sparse_cores: SparseCores of a chip, which look up embeddings; 0 if it has none. Those of v4, v5p and v6e are
            from OpenXLA's page on SparseCore (https://openxla.org/xla/sparsecore), and for v5p also from Google's page;
            those of tpu7x, two for each of its devices, from jax-tpu-embedding.
        runs_tensorflow: Whether TensorFlow is supported on it; according to Google's page, tpu7x does not support it.
    """

    generation: str
    devices: int
    hbm_gib: int
    program_hbm_gib: float
    bf16_tflops: float
    hbm_gb_per_s: float
    ici_gb_per_s: float
    dcn_gbit_per_s: float | None
    sparse_cores: int
    session_training: bool
    runs_tensorflow: bool

    @property
    def program_hbm_bytes(self) -> int:
        """Memory that a program may use on one TPU device, in bytes."""
        return int(self.program_hbm_gib * 2**30)


_NUMBERS = (
    *("devices", "hbm_gib", "program_hbm_gib", "bf16_tflops", "hbm_gb_per_s", "ici_gb_per_s"),
    *("dcn_gbit_per_s", "sparse_cores"),
)
_CHIPS: Mapping[str, tuple[Any, ...]] = {
    "v2": (2, 16, 7.48, 46, 700, 248, None, 0),
    "v3": (2, 32, 15.48, 123, 900, 328, None, 0),
    "v4": (1, 32, 30.75, 275, 1228, 300, None, 4),
    "v5e": (1, 16, 15.75, 197, 819, 200, 25, 0),
    "v5p": (1, 95, 95.74, 459, 2765, 600, 50, 4),
    "v6e": (1, 32, 31.25, 918, 1640, 448, 100, 2),
    # Two devices per chip, as its compiler lists them; the memory limit is that of libtpu 0.0.42.1.
    "tpu7x": (2, 192, 94.74, 2307, 7380, 600, 100, 4),
}

CHIPS: Mapping[str, Chip] = {
    generation: Chip(
        generation=generation,
        session_training=generation in ("v2", "v3", "v4"),
        runs_tensorflow=generation != "tpu7x",
        **dict(zip(_NUMBERS, numbers, strict=True)),
    )
    for generation, numbers in _CHIPS.items()
}
"""Generation -> chip."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """Chips that one job gets, linked to each other.

    Attributes:
        chip: Their generation.
        topology: Their arrangement, such as `"2x4"`.
        hosts: Number of their machines.
        gke_machine_type: Machine type of a node; `None` if GKE has no nodes of this kind.
        gke_accelerator: Value of the node label `cloud.google.com/gke-tpu-accelerator`, or `None`.
        vertex_machine_type: Machine type of a Vertex worker, or `None`.
        vertex_accelerator_type: Accelerator type of a Vertex worker if its machine type does not imply it, or `None`.
    """

    chip: Chip
    topology: str
    hosts: int
    gke_machine_type: str | None = None
    gke_accelerator: str | None = None
    vertex_machine_type: str | None = None
    vertex_accelerator_type: str | None = None

    @property
    def name(self) -> str:
        """Generation and topology, such as `"v5e:2x4"`."""
        return f"{self.chip.generation}:{self.topology}"

    @property
    def num_chips(self) -> int:
        """The number of chips."""
        return _chips_in(self.topology)

    @property
    def chips_per_host(self) -> int:
        """Chips of one machine: the number that a pod requests as `google.com/tpu`."""
        return self.num_chips // self.hosts

    @property
    def num_devices(self) -> int:
        """The number of TPU devices in TensorFlow, and so the largest number of replicas."""
        return self.num_chips * self.chip.devices


# Single machines, then slices of machines with four chips each.
_V2 = ("2x2", "4x4", "8x8", "16x16")
_V3 = ("4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32")
_THREE_DIMENSIONS = (
    *("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16"),
    "8x16x16",
)
_LITE = ("4x4", "4x8", "8x8", "8x16", "16x16")


@lru_cache(maxsize=1)
def known_slices() -> tuple[Slice, ...]:
    """Returns all slices, smallest first within a generation."""
    v2, v3 = ("cloud-tpu", "TPU_V2"), ("cloud-tpu", "TPU_V3")
    v4, v5p = ("ct4p-hightpu-4t", "tpu-v4-podslice"), ("ct5p-hightpu-4t", "tpu-v5p-slice")
    return (
        *(_slice("v2", each, vertex=v2) for each in _V2),
        _slice("v3", "2x2", gke=("ct3-hightpu-4t", "tpu-v3-device"), vertex=v3),
        *(_slice("v3", each, gke=("ct3p-hightpu-4t", "tpu-v3-slice"), vertex=v3) for each in _V3),
        *(_slice("v4", each, gke=v4) for each in _THREE_DIMENSIONS),
        *_lite("v5e", "ct5lp-hightpu", "tpu-v5-lite-podslice"),
        *(_slice("v5p", each, gke=v5p, vertex=(v5p[0], None)) for each in _THREE_DIMENSIONS),
        *_lite("v6e", "ct6e-standard", "tpu-v6e-slice"),
        *(_slice("tpu7x", each, gke=("tpu7x-standard-4t", "tpu7x")) for each in _THREE_DIMENSIONS),
    )


def find_slice(name: str) -> Slice:
    """Finds a slice.

    Examples:
        >>> from tfx_tpu_trainer.hardware import find_slice
        >>> found = find_slice("v5e:8")
        >>> found.topology, found.chip.hbm_gib, found.num_devices
        ('2x4', 16, 8)

    Args:
        name: Generation and topology, such as `"v5e:2x4"`, or generation and number of chips, such
            as `"v5e:8"`.

    Returns:
        The slice; if several have that many chips, the one with the fewest hosts.

    Raises:
        ValueError: If it does not exist; the message names the nearest ones.
    """
    generation, _, shape = name.partition(":")
    if generation not in CHIPS:
        raise ValueError(
            f"TPU {name!r}: unknown generation {generation!r}; use one of {', '.join(CHIPS)}, as "
            "in 'v5e:2x4'."
        )
    same = [each for each in known_slices() if each.chip.generation == generation]
    found = [each for each in same if shape in (each.topology, str(each.num_chips))]
    if found:
        return min(found, key=lambda each: each.hosts)
    raise ValueError(
        f"TPU {name!r}: {generation} has no slice {shape!r}; nearest: {_nearest(shape, same)}."
    )


def _nearest(shape: str, slices: Iterable[Slice]) -> str:
    """Names the slices with the next smaller and larger number of chips."""
    slices = list(slices)
    try:
        wanted = _chips_in(shape)
    except ValueError:
        # Slices with different machines may share a topology's name.
        topologies = dict.fromkeys(each.topology for each in slices)
        close = difflib.get_close_matches(shape, list(topologies), 3, 0)
        return ", ".join(f"{slices[0].chip.generation}:{topology}" for topology in close)
    ordered = sorted(slices, key=lambda each: (abs(each.num_chips - wanted), each.hosts))
    names = dict.fromkeys(f"{each.name} ({each.num_chips} chips)" for each in ordered)
    return ", ".join(list(names)[:3])


def _slice(
    generation: str,
    topology: str,
    *,
    chips_per_host: int = 4,
    gke: tuple[str, str] | tuple[None, None] = (None, None),
    vertex: tuple[str, str | None] | tuple[None, None] = (None, None),
) -> Slice:
    """Makes a slice with its types of machines and accelerators on GKE and Vertex."""
    return Slice(
        chip=CHIPS[generation],
        topology=topology,
        hosts=_chips_in(topology) // chips_per_host,
        gke_machine_type=gke[0],
        gke_accelerator=gke[1],
        vertex_machine_type=vertex[0],
        vertex_accelerator_type=vertex[1],
    )


def _chips_in(topology: str) -> int:
    return math.prod(map(int, topology.split("x")))


def _lite(generation: str, machines: str, accelerator: str) -> list[Slice]:
    """Returns the slices of v5e and v6e: machines of one, four and eight chips, larger ones of four each."""
    # A 2x4 is one machine of eight chips or two of four: `find_slice` returns the former, TpuSpec(hosts=2) the latter.
    forms = [("1x1", 1), ("2x2", 4), ("2x4", 8), ("2x4", 4), *((each, 4) for each in _LITE)]
    return [
        _slice(
            generation,
            topology,
            chips_per_host=chips,
            gke=(f"{machines}-{chips}t", accelerator),
            vertex=(f"{machines}-{chips}t", None),
        )
        for topology, chips in forms
    ]
