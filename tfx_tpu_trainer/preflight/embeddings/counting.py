"""How many ids each SparseCore sends to each partition of a stack in one step.

As TensorFlow counts on the hosts (OpenXLA's page on SparseCore, "Calculating limits"): the rows of a batch go to the
replicas in order, those of a replica to its SparseCores in order, for each feature; an id that is twice in one sample
counts once. What goes from one SparseCore to one partition are its ids, and of these the unique ones, which
are fetched once for all of its samples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tfx_tpu_trainer.preflight.embeddings.ids import FeatureIds
from tfx_tpu_trainer.preflight.embeddings.layout import (
    FLOAT_BYTES,
    PADDING,
    Cores,
    Stack,
    TableLayout,
)

Integers = npt.NDArray[np.int64]

# Pairs of SparseCore and partition that are counted at once: what large slices would need is gigabytes.
_MOST_PAIRS = 2**22


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepCounts:
    """What one batch asks of a stack.

    Attributes:
        ids: Most ids from one SparseCore to one partition.
        unique_ids: Most unique ids from one SparseCore to one partition.
        replica_ids: Most ids of one replica, with the padding of each SparseCore's list for each partition to
            a multiple of 8, as the hosts send them.
        ids_of_partition: Ids that each partition gets, by number of the SparseCore that holds it.
        unique_ids_of_partition: Rows that each partition reads.
        gradient_bytes: Bytes of the gradients of all rows that are read, each once and without padding; 0
            where they are not counted.
    """

    ids: int
    unique_ids: int
    replica_ids: int
    ids_of_partition: Integers
    unique_ids_of_partition: Integers
    gradient_bytes: int = 0


class StackCounter:
    """Counts the ids of one stack."""

    def __init__(
        self,
        stack: Stack,
        *,
        cores: Cores,
        batch_size: int,
        samples_of_row: Mapping[str, int],
        counts_gradients: bool = False,
    ) -> None:
        self._stack = stack
        self._cores = cores
        self._samples_of_row = samples_of_row
        self._rows = batch_size // cores.count
        self._counts_gradients = counts_gradients
        for table in stack.tables:
            if cores.count * table.rows * self._samples(table.features) >= 2**63:
                raise ValueError(
                    f"table {table.name!r}: {table.rows:,} rows and a batch of {batch_size:,} are too many to "
                    "count; use a smaller batch size."
                )

    def count(self, batch: Mapping[str, FeatureIds]) -> StepCounts:
        """Counts a batch."""
        found = [self._pairs(table, batch) for table in self._stack.tables]
        pairs = [(ids, unique) for ids, unique, _ in found]
        cores = self._cores.count
        ids_of_partition = np.zeros(cores, np.int64)
        unique_of_partition = np.zeros(cores, np.int64)
        most = most_unique = most_of_replica = 0
        step = self._cores.per_replica
        step *= max(1, _MOST_PAIRS // cores // step)
        for first in range(0, cores, step):
            last = min(cores, first + step)
            ids = _matrix([each for each, _ in pairs], first, last, cores)
            unique = _matrix([each for _, each in pairs], first, last, cores)
            ids_of_partition += ids.sum(axis=0)
            unique_of_partition += unique.sum(axis=0)
            most, most_unique = max(most, int(ids.max())), max(most_unique, int(unique.max()))
            padded = -(-ids // PADDING) * PADDING
            of_replica = padded.reshape(-1, self._cores.per_replica * cores).sum(axis=1)
            most_of_replica = max(most_of_replica, int(of_replica.max()))
        return StepCounts(
            ids=most,
            unique_ids=most_unique,
            replica_ids=most_of_replica,
            ids_of_partition=ids_of_partition,
            unique_ids_of_partition=unique_of_partition,
            gradient_bytes=sum(size for _, _, size in found),
        )

    def _samples(self, features: Sequence[str]) -> int:
        return self._rows * sum(self._samples_of_row[name] for name in features)

    def _pairs(
        self, table: TableLayout, batch: Mapping[str, FeatureIds]
    ) -> tuple[Integers, Integers, int]:
        """Counts one table."""
        samples = self._samples(table.features)
        keys = []
        before = 0
        for name in table.features:
            ids = batch[name]
            each = self._samples_of_row[name]
            core, sample = np.divmod(ids.samples, self._rows * each)
            keys.append((core * table.rows + ids.values) * samples + (before + sample))
            before += self._rows * each
        # One sort puts the samples of an id of a core side by side, so that both counts are of neighbours.
        key = np.concatenate(keys) if len(keys) > 1 else keys[0]
        key.sort()
        key = key[_differs(key)]
        of_core = key // samples
        core, value = np.divmod(of_core, table.rows)
        cores = self._cores.count
        pair = core * cores + (value + table.rotation) % cores
        rows = len(np.unique(value)) if self._counts_gradients else 0
        return pair, pair[_differs(of_core)], rows * table.dim * FLOAT_BYTES


def _differs(values: Integers) -> npt.NDArray[np.bool_]:
    """Returns which of sorted values are the first of their kind."""
    first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return first


def _matrix(pairs: Sequence[Integers], first: int, last: int, cores: int) -> Integers:
    """Counts pairs by core, from the first to before the last, and partition."""
    counts = np.zeros((last - first) * cores, np.int64)
    for each in pairs:
        if first == 0 and last == cores:
            chosen = each
        else:
            # Sorted by core, but not by partition within one.
            begin, end = np.searchsorted(each // cores, (first, last))
            chosen = each[begin:end] - first * cores
        counts += np.bincount(chosen, minlength=len(counts))
    return counts.reshape(-1, cores)
