"""How long a step takes, as far as its compiled program tells: an estimate, beside the lower bound.

A kernel takes as long as its operations on the matrix units or its bytes through HBM, whichever is
longer, at the share of the peak rates that real steps reach; kernels run one after the other. Copies
and collectives that the compiler starts early run beside them, and count where they are longer than
what hides them. The shares were fitted to published speeds and tested on others:
`benchmarks/published_tpus/` has them all, docs/preflight-time.md the errors.

What is left out makes real steps longer: reading the input, the host, and what the vector units
compute in values that are on the chip already.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tfx_tpu_trainer.hardware import Slice
from tfx_tpu_trainer.preflight._hlo_costs import OpCost

_MATRIX_SHARES: Mapping[str, float] = {
    "v2": 0.80,
    "v3": 0.80,
    "v4": 0.75,
    "v5e": 0.81,
    "v5p": 0.78,
    "v6e": 0.52,
}

MEMORY_SHARE = 0.80
"""Share of the peak bandwidth that HBM reaches; fitted."""

LINK_SHARE = 0.85
"""Share of the links' bandwidth that collectives reach; assumed, as no published result isolates it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ErrorSpread:
    """How far estimates were from published speeds that nothing was fitted to.

    Attributes:
        results: Published results in all.
        held_out: Those that nothing was fitted to; what follows is of these.
        low: The error that a tenth is below, (estimate - published) / published.
        median: The error in the middle.
        high: The error that a tenth is above.
    """

    results: int
    held_out: int
    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return (
            f"{self.held_out} of {self.results} published results, to which nothing was fitted: "
            f"median {self.median:+.0%}, 80 % of them from {self.low:+.0%} to {self.high:+.0%}"
        )


PUBLISHED_ERRORS = ErrorSpread(results=30, held_out=23, low=-0.15, median=0.0, high=0.13)
"""The errors of the estimate; `python -m benchmarks.published_tpus` prints each."""

KERNEL_SECONDS = 1e-6
"""From one kernel to the next; assumed, and significant only in steps below a millisecond."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpTime:
    """An instruction with its estimated time.

    Attributes:
        cost: The instruction.
        compute_seconds: One run's operations at the rate that is reached.
        memory_seconds: One run's bytes through HBM.
        link_seconds: One run's bytes to other chips.
    """

    cost: OpCost
    compute_seconds: float
    memory_seconds: float
    link_seconds: float

    @property
    def seconds(self) -> float:
        """One run, with the way to the next kernel."""
        return max(self.compute_seconds, self.memory_seconds, self.link_seconds) + KERNEL_SECONDS

    @property
    def limited_by(self) -> str:
        """`"compute"`, `"memory"`, `"collectives"`, or `"launch"` where it moves nothing."""
        parts = {
            "compute": self.compute_seconds,
            "memory": self.memory_seconds,
            "collectives": self.link_seconds,
        }
        longest = max(parts, key=lambda part: parts[part])
        return longest if parts[longest] > KERNEL_SECONDS else "launch"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """The time of a step on a slice.

    Attributes:
        compute_seconds: In kernels that the matrix units limit.
        memory_seconds: In kernels that HBM limits, and in copies that nothing hides.
        collective_seconds: In collectives that nothing hides; over several slices, with what goes over
            the network between them, at its full rate.
        launch_seconds: From one kernel to the next.
        unknown_loops: Loops that count once because only data tells how often they run.
        rows: Rows of the step over all replicas, or `None` where that is not known.
    """

    compute_seconds: float
    memory_seconds: float
    collective_seconds: float
    launch_seconds: float
    unknown_loops: int = 0
    rows: int | None = None

    @property
    def step_seconds(self) -> float:
        """The time of a step."""
        return (
            self.compute_seconds
            + self.memory_seconds
            + self.collective_seconds
            + self.launch_seconds
        )

    @property
    def examples_per_second(self) -> float | None:
        """Rows of a second over the whole slice; `None` where unknown."""
        if self.rows is None or not self.step_seconds:
            return None
        return self.rows / self.step_seconds


def matrix_share(generation: str) -> float:
    """Returns the share of the peak rate that the matrix units reach in large products; fitted."""
    return _MATRIX_SHARES.get(generation, _MATRIX_SHARES["v6e"])


def time_ops(costs: Sequence[OpCost], tpu_slice: Slice, *, num_replicas: int) -> list[OpTime]:
    """Estimates the time of each instruction."""
    chip = tpu_slice.chip
    flops = matrix_share(chip.generation) * chip.bf16_tflops * 1e12 / chip.devices
    memory = MEMORY_SHARE * chip.hbm_gb_per_s * 1e9 / chip.devices
    chips = min(tpu_slice.num_chips, -(-num_replicas // chip.devices))
    links = LINK_SHARE * chip.ici_gb_per_s * 1e9
    return [
        OpTime(
            cost=cost,
            compute_seconds=cost.flops / flops,
            memory_seconds=cost.hbm_bytes / memory,
            # As the bound has it: 2 (c - 1) / c of the bytes leave each of c chips.
            link_seconds=2 * (chips - 1) / chips * cost.collective_bytes / links,
        )
        for cost in costs
    ]


def estimate(
    costs: Sequence[OpCost],
    tpu_slice: Slice,
    *,
    num_replicas: int,
    unknown_loops: int = 0,
    rows: int | None = None,
) -> Estimate:
    """Estimates the time of a step."""
    compute = memory = links = launch = 0.0
    copied = idle_memory = sent = idle_links = 0.0
    for op in time_ops(costs, tpu_slice, num_replicas=num_replicas):
        runs = op.cost.runs
        if op.cost.overlaps:
            copied += runs * op.memory_seconds
            sent += runs * op.link_seconds
            continue
        launch += runs * KERNEL_SECONDS
        longest = max(op.compute_seconds, op.memory_seconds, op.link_seconds)
        idle_memory += runs * (longest - op.memory_seconds)
        idle_links += runs * (longest - op.link_seconds)
        if op.link_seconds == longest:
            links += runs * longest
        elif op.compute_seconds == longest:
            compute += runs * longest
        else:
            memory += runs * longest
    return Estimate(
        compute_seconds=compute,
        memory_seconds=memory + max(0.0, copied - idle_memory),
        collective_seconds=links + max(0.0, sent - idle_links),
        launch_seconds=launch,
        unknown_loops=unknown_loops,
        rows=rows,
    )
