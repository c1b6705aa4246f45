"""How fast a step can be at best: the roofline of a TPU.

A step can be no shorter than its operations take at the peak rate of the chip, than what it must read
and write takes at the full bandwidth of the memory, or than what the replicas must tell each other
takes on all links of a chip at once. The longest of the three is the bound; real steps take longer.

Rates are those of `tfx_tpu_trainer.hardware._chips`. Peak rates are in bfloat16, which is what the matrix
units multiply by default for float32 as well. Links count in one direction: what Google's pages call
bidirectional bandwidth is twice that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tfx_tpu_trainer.hardware import Slice


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roofline:
    """Bounds of one step on a slice.

    Attributes:
        compute_seconds: Its operations at the peak rate.
        memory_seconds: Its reads and writes at the bandwidth of the memory.
        collective_seconds: Its sums over the replicas on all links; 0 within one chip.
        rows: Rows of the step over all replicas, or `None` where that is not known.
        network_seconds: What slices must send each other (`_across_slices.py`); 0 with one.
    """

    compute_seconds: float
    memory_seconds: float
    collective_seconds: float
    rows: int | None = None
    network_seconds: float = 0.0

    @property
    def step_seconds(self) -> float:
        """Lower bound on the time of a step."""
        return max(self._parts.values())

    @property
    def limited_by(self) -> str:
        """What sets the bound: `"compute"`, `"memory"`, `"collectives"` or `"network"`."""
        return max(self._parts, key=lambda part: self._parts[part])

    @property
    def examples_per_second(self) -> float | None:
        """Upper bound on the rows of a second, over the whole slice; `None` where unknown."""
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
    num_replicas: int,
    rows: int | None = None,
) -> Roofline:
    """Computes the bounds of a step."""
    chip = tpu_slice.chip
    chips = min(tpu_slice.num_chips, -(-num_replicas // chip.devices))
    # The devices of a chip add up among themselves first. Then no way of summing n bytes over c
    # chips lets each send less than this.
    sent = 2 * (chips - 1) / chips * collective_bytes
    return Roofline(
        compute_seconds=flops * chip.devices / (chip.bf16_tflops * 1e12),
        memory_seconds=bytes_accessed * chip.devices / (chip.hbm_gb_per_s * 1e9),
        collective_seconds=sent / (chip.ici_gb_per_s * 1e9),
        rows=rows,
    )
