"""What a plan for embeddings says, as plain values."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tfx_tpu_trainer.hardware import find_slice
from tfx_tpu_trainer.preflight._across_slices import seconds_at_least
from tfx_tpu_trainer.preflight.embeddings.layout import Cores, Stack


@dataclasses.dataclass(frozen=True, kw_only=True)
class Need:
    """What batches need of one buffer.

    Attributes:
        median: Of the batches that were planned with.
        high: At most so much in 99 % of them.
        most: The most in any of them.
        buffer: The size to give it.
        held_out: The most in any batch that was held out.
    """

    median: float
    high: float
    most: float
    buffer: int
    held_out: float

    @property
    def is_enough(self) -> bool:
        """Whether no held-out batch needs more than the buffer holds."""
        return self.held_out <= self.buffer

    def to_json(self) -> dict[str, Any]:
        """Returns the values as JSON has them."""
        return {**dataclasses.asdict(self), "is_enough": self.is_enough}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackPlan:
    """What one stacked table needs.

    Attributes:
        stack: The tables in it.
        ids: From one SparseCore to one partition: `max_ids_per_table`.
        unique_ids: Unique ids from one SparseCore to one partition: `max_unique_ids_per_table`.
        ids_per_sample: Of one replica, for each of its samples, with padding.
        ids_of_chip: Ids that are looked up on each chip, in all batches.
        rows_of_chip: Rows that each chip reads for them: unique ids of each SparseCore and batch.
        table_bytes: HBM of a chip for the tables and the optimizer's values.
        activation_bytes: HBM of a chip for activations and their gradients.
        input_bytes: HBM of a chip for the lists of ids.
        buffer_bytes: HBM of a chip for rows on their way, as OpenXLA's page on SparseCore estimates it.
    """

    stack: Stack
    ids: Need
    unique_ids: Need
    ids_per_sample: Need
    ids_of_chip: tuple[int, ...]
    rows_of_chip: tuple[int, ...]
    table_bytes: int
    activation_bytes: int
    input_bytes: int
    buffer_bytes: int

    @property
    def hbm_bytes(self) -> int:
        """HBM of a chip."""
        return self.table_bytes + self.activation_bytes + self.input_bytes + self.buffer_bytes

    @property
    def imbalance(self) -> float:
        """Ids of the busiest chip by those of the mean one."""
        return _imbalance(self.ids_of_chip)

    def to_json(self) -> dict[str, Any]:
        """Returns the values as JSON has them."""
        return {
            **dataclasses.asdict(self),
            **{
                name: getattr(self, name).to_json()
                for name in ("ids", "unique_ids", "ids_per_sample")
            },
            "name": self.stack.name,
            "padded_rows": self.stack.padded_rows,
            "padded_dim": self.stack.padded_dim,
            "hbm_bytes": self.hbm_bytes,
            "imbalance": self.imbalance,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingPlan:
    """What embeddings need on the SparseCores of a slice.

    Attributes:
        tpu: The slice, as `"v6e:2x4"`.
        batch_size: Rows of a step over all replicas of all slices.
        cores: The SparseCores of one slice.
        rows: Rows that were read.
        ids: Ids that were read.
        batches: Batches that were planned with.
        held_out_batches: Batches that were held out.
        dropping_batches: Held-out batches that need more than some buffer holds.
        margin: Room in a buffer beyond the largest number of ids seen, as a share of it.
        stacks: Each stacked table's needs.
        max_ids_per_chip_per_sample: Its value in `SparseCoreEmbeddingConfig`.
        limit_bytes: HBM of a chip that a program may use.
        num_slices: Slices that train one model, each with tables of its own.
        network_bytes: Bytes that a slice must send to the others in a step, at least, by the mean of all
            batches: the gradient of each row that it has read, once. 0 with one slice.
    """

    tpu: str
    batch_size: int
    cores: Cores
    rows: int
    ids: int
    batches: int
    held_out_batches: int
    dropping_batches: int
    margin: float
    stacks: tuple[StackPlan, ...]
    max_ids_per_chip_per_sample: int
    limit_bytes: int
    num_slices: int = 1
    network_bytes: int = 0

    @property
    def network_seconds(self) -> float:
        """Lower bound on the time of a step that the network between slices sets; 0 with one."""
        return seconds_at_least(self.network_bytes, find_slice(self.tpu))

    @property
    def hbm_bytes(self) -> int:
        """HBM of a chip for all stacks."""
        return sum(stack.hbm_bytes for stack in self.stacks)

    @property
    def imbalance(self) -> float:
        """Bytes that the busiest chip reads from its tables, by those of the mean one."""
        read = [
            np.array(each.rows_of_chip, np.int64) * each.stack.padded_dim for each in self.stacks
        ]
        return _imbalance(np.sum(read, axis=0))

    @property
    def ok(self) -> bool:
        """Whether it fits the chips, and no held-out batch drops an id."""
        return self.hbm_bytes <= self.limit_bytes and not self.dropping_batches

    def settings(self) -> dict[str, Any]:
        """Returns the arguments for `tf.tpu.experimental.embedding.SparseCoreEmbeddingConfig`.

        TensorFlow 2.16 has no such class: it takes the sizes from a file of the compiler's.
        """
        return {
            "max_ids_per_chip_per_sample": self.max_ids_per_chip_per_sample,
            "max_ids_per_table": {each.stack.name: each.ids.buffer for each in self.stacks},
            "max_unique_ids_per_table": {
                each.stack.name: each.unique_ids.buffer for each in self.stacks
            },
        }

    def to_json(self) -> dict[str, Any]:
        """Returns the values as JSON has them, those that follow from others included."""
        return {
            **dataclasses.asdict(self),
            "stacks": [stack.to_json() for stack in self.stacks],
            "hbm_bytes": self.hbm_bytes,
            "imbalance": self.imbalance,
            "network_seconds": self.network_seconds,
            "settings": self.settings(),
            "ok": self.ok,
        }


def _imbalance(of_chip: Any) -> float:
    values = np.asarray(of_chip)
    return float(values.max() / values.mean()) if values.sum() else 1.0
