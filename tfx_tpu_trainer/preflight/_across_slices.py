"""Several slices, joined by the data center's network: what they send each other, and how long that takes.

Each slice holds whole copies of the model, so that only the sums over all replicas cross the network. A slice
sums among its own chips first; then no way of summing n bytes over s slices lets each send less than
2 (s - 1) / s of them, which the network adapters of all its machines send at once.
"""

from __future__ import annotations

from tfx_tpu_trainer.hardware import CHIPS, Slice


def check_slices(tpu_slice: Slice, num_slices: int) -> None:
    """Checks a number of slices.

    Args:
        tpu_slice: One of them.
        num_slices: How many.

    Raises:
        ValueError: If it is not positive, or nothing is known of the network between them.
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
    """Returns how long a slice takes to send bytes to others, all its machines at once."""
    if not sent:
        return 0.0
    assert tpu_slice.chip.dcn_gbit_per_s is not None  # check_slices
    return sent * 8 / (tpu_slice.num_chips * tpu_slice.chip.dcn_gbit_per_s * 1e9)
