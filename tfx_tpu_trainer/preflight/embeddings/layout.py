"""Where TensorFlow puts the rows of embedding tables on SparseCores: stacks, padding, shards.

The rules are those of `tf.tpu.experimental.embedding.TPUEmbeddingV2` and of the layout stacker below it
(tensorflow/core/tpu/kernels/sparse_core_layout.cc), whose functions have no public names:

- A table's columns are padded to a multiple of 8 floats, its rows to 8 for each SparseCore.
- Tables of the same padded width and optimizer are stacked, in the order of their names, until a stack
  would reach a limit. A combiner is not asked for: it goes into the weights of the ids.
- Row i of a table is on SparseCore (i + rotation) mod cores. Each table of a stack is rotated by one chip
  more than the one before it, so that their first rows, often the most frequent ones, are on several.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

_embedding = tf.tpu.experimental.embedding

FLOAT_BYTES = 4
PADDING = 8

# The defaults of tf_xla_sparse_core_stacking_mem_limit_bytes, which is for the activations of one
# SparseCore, and of tf_xla_sparse_core_stacking_table_shard_limit_bytes, for a stack's part on a replica.
_ACTIVATION_LIMIT = 2 * 2**20
_SHARD_LIMIT = 2 * 2**30
# Rows are numbered by 32 bits.
_ROW_LIMIT = 2**31 - 1

OPTIMIZER_SLOTS: Mapping[str, int] = {
    "SGD": 0,
    "Adagrad": 1,
    "AdagradMomentum": 2,
    "FTRL": 2,
    "Adam": 2,
}
"""Class in `tf.tpu.experimental.embedding` -> how many more values it keeps for each of a table's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cores:
    """The SparseCores of a slice.

    Attributes:
        chips: Chips of the slice.
        replicas: TPU devices of the slice: each trains on its share of a batch.
        per_replica: SparseCores of a TPU device.
    """

    chips: int
    replicas: int
    per_replica: int

    @property
    def count(self) -> int:
        """SparseCores of the slice: over so many partitions each table is spread."""
        return self.replicas * self.per_replica

    @property
    def per_chip(self) -> int:
        """SparseCores of a chip."""
        return self.count // self.chips


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableLayout:
    """A table in a stack.

    Attributes:
        name: Its name.
        rows: Its vocabulary.
        dim: Its width.
        padded_rows: Rows with their padding.
        padded_dim: Width with its padding.
        rotation: By how many SparseCores its rows are shifted.
        features: Names of the features that are looked up in it.
    """

    name: str
    rows: int
    dim: int
    padded_rows: int
    padded_dim: int
    rotation: int
    features: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stack:
    """Tables that SparseCores look up as one.

    Attributes:
        name: TensorFlow's name: those of its tables with "_" between, the key in `max_ids_per_table`.
        tables: The tables, in their order.
        optimizer: Class of the optimizer.
        slots: Values that it keeps for each of the tables'.
        samples: Activations that a replica gets of it in a step: rows of its share of the batch, for each
            feature, and for each position of a sequence.
    """

    name: str
    tables: tuple[TableLayout, ...]
    optimizer: str
    slots: int
    samples: int

    @property
    def padded_rows(self) -> int:
        """Rows of all tables with their padding."""
        return sum(table.padded_rows for table in self.tables)

    @property
    def padded_dim(self) -> int:
        """Width, the same for all tables."""
        return self.tables[0].padded_dim

    @property
    def bytes(self) -> int:
        """Bytes of the tables on all chips, with the optimizer's values."""
        return self.padded_rows * self.padded_dim * FLOAT_BYTES * (1 + self.slots)


def samples_of_row(feature: Any) -> int:
    """Returns how many activations a feature has for a row: one, or one for each position."""
    if feature.output_shape.rank:
        return int(feature.output_shape[1:].num_elements() or 1)
    return feature.max_sequence_length or 1


def lay_out(
    features: Mapping[str, Any],
    *,
    optimizer: Any,
    cores: Cores,
    batch_size: int,
    stacking: bool = True,
) -> tuple[Stack, ...]:
    """Stacks the tables of features as TensorFlow does."""
    rows = batch_size // cores.replicas
    groups: dict[tuple[Any, ...], list[_Growing]] = {}
    for table in sorted(_tables(features.values()), key=lambda table: table.name):
        names = tuple(name for name, each in features.items() if each.table is table)
        chosen = table.optimizer or optimizer
        slots = _slots(table.name, chosen)
        padded_dim = _padded(table.dim, PADDING)
        padded_rows = _padded(table.vocabulary_size, PADDING * cores.count)
        if padded_rows >= _ROW_LIMIT:
            raise ValueError(
                f"table {table.name!r}: vocabulary_size={table.vocabulary_size:,} is more rows "
                f"than SparseCores can number; use fewer than {_ROW_LIMIT:,}."
            )
        samples = sum(rows * samples_of_row(features[name]) for name in names)
        growing = _Growing(
            activations=FLOAT_BYTES * padded_dim * (samples // cores.per_replica),
            shard=FLOAT_BYTES * padded_dim * padded_rows // cores.replicas,
            rows=padded_rows,
        )
        # Optimizers are equal where their hyperparameters are; quantizations have no equality.
        key = (padded_dim, chosen, repr(table.quantization_config))
        stacks = groups.setdefault(key, [])
        stack = next((each for each in stacks if stacking and each.takes(growing)), None)
        if stack is None:
            stack = _Growing(optimizer=type(chosen).__name__, slots=slots)
            stacks.append(stack)
        layout = TableLayout(
            name=table.name,
            rows=table.vocabulary_size,
            dim=table.dim,
            padded_rows=padded_rows,
            padded_dim=padded_dim,
            rotation=len(stack.tables) * cores.per_replica % cores.count,
            features=names,
        )
        stack.add(growing, layout, samples)
    done = [stack.finished() for stacks in groups.values() for stack in stacks]
    return tuple(sorted(done, key=lambda stack: stack.name))


@dataclasses.dataclass(kw_only=True)
class _Growing:
    """A stack while tables are added, or what one table adds to it."""

    activations: int = 0
    shard: int = 0
    rows: int = 0
    samples: int = 0
    optimizer: str = ""
    slots: int = 0
    tables: list[TableLayout] = dataclasses.field(default_factory=list)

    def takes(self, more: _Growing) -> bool:
        return (
            self.activations + more.activations < _ACTIVATION_LIMIT
            and self.shard + more.shard < _SHARD_LIMIT
            and self.rows + more.rows < _ROW_LIMIT
        )

    def add(self, more: _Growing, layout: TableLayout, samples: int) -> None:
        self.activations += more.activations
        self.shard += more.shard
        self.rows += more.rows
        self.samples += samples
        self.tables.append(layout)

    def finished(self) -> Stack:
        return Stack(
            name="_".join(table.name for table in self.tables),
            tables=tuple(self.tables),
            optimizer=self.optimizer,
            slots=self.slots,
            samples=self.samples,
        )


def _tables(features: Iterable[Any]) -> list[Any]:
    tables = list({id(feature.table): feature.table for feature in features}.values())
    names = [table.name for table in tables]
    for name in names:
        if not name:
            raise ValueError("a table has no name: SparseCores need TableConfig(name=...).")
        if names.count(name) > 1:
            raise ValueError(
                f"two tables have the name {name!r}: rename one, or give both features the same "
                "TableConfig."
            )
    return tables


def _slots(table: str, optimizer: Any) -> int:
    if optimizer is None:
        raise ValueError(
            f"table {table!r} has no optimizer, whose slots take HBM too: give one of "
            f"{', '.join(OPTIMIZER_SLOTS)}."
        )
    for name, slots in OPTIMIZER_SLOTS.items():
        if isinstance(optimizer, getattr(_embedding, name)):
            return slots
    raise ValueError(
        f"table {table!r}: SparseCores don't support the optimizer {type(optimizer).__name__}; use "
        f"one of {', '.join(OPTIMIZER_SLOTS)}, of tf.tpu.experimental.embedding."
    )


def _padded(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
