"""Computes how long a step takes on a slice: a lower bound (the roofline) and an estimate.

The bound: a step can't be shorter than its operations at the peak rate of the chip, its reads and writes at the full
bandwidth of HBM, or its communication between replicas on all links of a chip at once. Peak rates are in bfloat16, in
which the matrix units multiply by default even for float32. Links count in one direction, half of the bidirectional
bandwidth on Google's pages.

The estimate: a kernel takes as long as its operations or its bytes, whichever is longer, at the share of the peak rates
that real steps reach; kernels run one after the other. The shares were fitted to published speeds and tested on others:
`benchmarks/published_tpus/` has them all, docs/preflight-time.md the errors. Real steps take longer, since some parts
are left out: reading the input, the host, and computations of the vector units on values that are already on the chip.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from tfx_tpu_trainer.hardware import CHIPS, Slice
from tfx_tpu_trainer.preflight._hlo_cost import OpCost
from tfx_tpu_trainer.preflight._results import Collective

# The share of an op's bytes that the busiest of two devices sends: (g - 1) / g in a group of g, and twice that in a
# sum.
_LEAST_SHARE_SENT = {"all-gather": 0.5, "reduce-scatter": 0.5, "all-to-all": 0.5}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roofline:
    """Bounds of one step on a slice."""

    compute_seconds: float  # operations at the peak rate
    memory_seconds: float  # reads and writes at the memory's bandwidth
    collective_seconds: float  # sums over the replicas on all links; 0 within one chip
    rows: int | None = None  # rows of the step over all replicas; `None` if unknown
    network_seconds: float = 0.0  # traffic between slices (`bytes_sent`); 0 for one slice

    @property
    def step_seconds(self) -> float:
        """Lower bound on the time of a step."""
        return max(self._parts.values())

    @property
    def limited_by(self) -> str:
        """The part that sets the bound: `"compute"`, `"memory"`, `"collectives"` or `"network"`."""
        return max(self._parts, key=lambda part: self._parts[part])

    @property
    def examples_per_second(self) -> float | None:
        """Upper bound on rows per second over the whole slice; `None` if unknown."""
        if self.rows is None or not self.step_seconds:
            return None
        return self.rows / self.step_seconds

    @property
    def _parts(self) -> Mapping[str, float]:
        return {
            "compute": self.compute_seconds,
            "memory": self.memory_seconds,
            "collectives": self.collective_seconds,
            "network": self.network_seconds,
        }


def roofline(
    tpu_slice: Slice,
    *,
    flops: float,
    bytes_accessed: float,
    collective_bytes: float,
    collectives: Iterable[Collective] = (),
    network_bytes: int = 0,
    num_replicas: int,
    rows: int | None = None,
) -> Roofline:
    """Computes a step's bounds."""
    chip = tpu_slice.chip
    chips = min(tpu_slice.num_chips, -(-num_replicas // chip.devices))
    # The devices of a chip first sum among themselves. After that, no way of summing n bytes over c chips lets each
    # send less than this.
    sent = 2 * (chips - 1) / chips * collective_bytes
    return Roofline(
        compute_seconds=flops * chip.devices / (chip.bf16_tflops * 1e12),
        memory_seconds=bytes_accessed * chip.devices / (chip.hbm_gb_per_s * 1e9),
        collective_seconds=sent / (chip.ici_gb_per_s * 1e9)
        + seconds_between_cores(collectives, tpu_slice),
        network_seconds=seconds_at_least(network_bytes, tpu_slice),
        rows=rows,
    )


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


def seconds_between_cores(found: Iterable[Collective], tpu_slice: Slice) -> float:
    """Returns a lower bound on the communication time between a replica's cores.

    The number of cores in an op is not read: two is the smallest.
    """
    if tpu_slice.chip.devices > 1:
        return 0.0
    sent = sum(
        each.bytes * _LEAST_SHARE_SENT.get(each.kind, 1.0)
        for each in found
        if each.between == "cores"
    )
    return sent / (tpu_slice.chip.ici_gb_per_s * 1e9)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ErrorSpread:
    """The distance of estimates from published speeds to which they were not fitted."""

    results: int  # all published results
    held_out: int  # those to which nothing was fitted; the values below are about these
    low: float  # the 10 % quantile of (estimate - published) / published
    median: float  # the median error
    high: float  # the 90 % quantile

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
    """An instruction with its estimated time."""

    cost: OpCost
    compute_seconds: float  # one run's operations at the reached rate
    memory_seconds: float  # one run's HBM traffic
    link_seconds: float  # one run's bytes to other chips

    @property
    def seconds(self) -> float:
        """The time of one run, including the way to the next kernel."""
        return max(self.compute_seconds, self.memory_seconds, self.link_seconds) + KERNEL_SECONDS

    @property
    def limited_by(self) -> str:
        """`"compute"`, `"memory"`, `"collectives"`, or `"launch"` if it moves nothing."""
        parts = {
            "compute": self.compute_seconds,
            "memory": self.memory_seconds,
            "collectives": self.link_seconds,
        }
        longest = max(parts, key=lambda part: parts[part])
        return longest if parts[longest] > KERNEL_SECONDS else "launch"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """The time of a step on a slice."""

    compute_seconds: float  # in kernels that the matrix units limit
    memory_seconds: float  # in kernels that HBM limits, and in copies that nothing hides
    # In collectives that nothing hides; over several slices, including the traffic on the network between them, at its
    # full rate.
    collective_seconds: float
    launch_seconds: float  # from one kernel to the next
    unknown_loops: int = 0  # loops that count once because their number of runs depends on data
    rows: int | None = None  # rows of the step over all replicas; `None` if unknown

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
        """Rows per second over the whole slice; `None` if unknown."""
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
            # As in the bound: 2 (c - 1) / c of the bytes leave each of c chips.
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
    network_bytes: int = 0,
    rows: int | None = None,
) -> Estimate:
    """Estimates the time of a step."""
    # A copy or collective that starts early overlaps kernels, and adds time only if they leave HBM or the
    # links no room. Example: kernels that compute for 3 ms and read for 1 ms leave HBM idle for 2 ms; copies of
    # 5 ms meanwhile add 3 ms to the step.
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
        # An op counts completely for its limit, so the parts add up to the step's time.
        if op.link_seconds == longest:
            links += runs * longest
        elif op.compute_seconds == longest:
            compute += runs * longest
        else:
            memory += runs * longest
    return Estimate(
        compute_seconds=compute,
        memory_seconds=memory + max(0.0, copied - idle_memory),
        # The network's traffic is not part of the compiled program; it waits for the step's gradients.
        collective_seconds=links
        + max(0.0, sent - idle_links)
        + seconds_at_least(network_bytes, tpu_slice),
        launch_seconds=launch,
        unknown_loops=unknown_loops,
        rows=rows,
    )


# Several slices are joined by the data center's network. Each holds whole copies of the model, so only the sums
# over all replicas cross it. A slice sums among its own chips first; then no way of summing n bytes over s slices lets
# each send less than 2 (s - 1) / s of them, which the network adapters of all its machines send at once.


def check_slices(tpu_slice: Slice, num_slices: int) -> None:
    """Checks that a number of slices can train together.

    Args:
        tpu_slice: One of them.
        num_slices: Their number.

    Raises:
        ValueError: If it is not positive, or the network between them is unknown.
    """
    if num_slices < 1:
        raise ValueError(f"num_slices={num_slices} must be at least 1.")
    if num_slices > 1 and tpu_slice.chip.dcn_gbit_per_s is None:
        known = ", ".join(name for name, chip in CHIPS.items() if chip.dcn_gbit_per_s is not None)
        raise ValueError(
            f"num_slices={num_slices}: no bandwidth is published for the network between slices of "
            f"{tpu_slice.chip.generation}. Use one slice, or chips of {known}."
        )


def bytes_sent(collective_bytes: float, *, num_cores_per_replica: int, num_slices: int) -> int:
    """Returns the bytes that each slice must send to the others in a step."""
    summed = collective_bytes * num_cores_per_replica
    return int(2 * (num_slices - 1) / num_slices * summed)


def seconds_at_least(sent: float, tpu_slice: Slice) -> float:
    """Returns the time in which a slice can send bytes to others, all its machines at once."""
    if not sent:
        return 0.0
    assert tpu_slice.chip.dcn_gbit_per_s is not None  # check_slices
    return sent * 8 / (tpu_slice.num_chips * tpu_slice.chip.dcn_gbit_per_s * 1e9)
