"""The private names of TensorFlow's embedding classes by which tables get to a TPU and back.

Their public way is an object-based checkpoint of TensorFlow's own, written to disk and read again.

| name | why | if it goes away |
|---|---|---|
| `TPUEmbedding._variables` | the copies of tables and slots in the memory of the TPU's hosts, which are assigned before they are loaded and read after they were retrieved | save and restore a `tf.train.Checkpoint` of the object |
| `TPUEmbedding._load_variables`, `_retrieve_variables` | move these copies to and from the embedding cores | the same |
| `tpu_ops.is_tpu_embedding_initialized` | `TPUEmbedding` sets the cores up once, and its error does not say what to do | TensorFlow's error |
| `TPUEmbeddingV2._stacked_table_to_tables`, `_table_to_stacked_table_offset`, `_num_sc_per_chip` | how SparseCores stack, pad and rotate the tables, which checkpoints of ours don't | plan it: `preflight/embeddings/layout.py` follows TensorFlow's rules |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.tpu.ops import tpu_ops


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackedTable:
    """A table in a stack of TensorFlow's.

    Attributes:
        padded_rows: Rows with padding.
        padded_dim: Width with padding.
        offset: Rows of the tables before it.
        rotation: By how many SparseCores its rows are shifted.
    """

    padded_rows: int
    padded_dim: int
    offset: int
    rotation: int


def are_cores_set_up() -> bool:
    """Tells whether the TPU's embedding cores are set up; called in eager mode."""
    return bool(tpu_ops.is_tpu_embedding_initialized())


def variables_of_hosts(embedding: Any) -> Mapping[str, Mapping[str, Sequence[tf.Variable]]]:
    """Returns name of a table -> name of a slot -> its rows, a variable for each host."""
    return {
        table: {slot: variable.variables for slot, variable in slots.items()}
        for table, slots in embedding._variables.items()
    }


def load(embedding: Any) -> None:
    """Copies the hosts' variables to the embedding cores."""
    embedding._load_variables()


def retrieve(embedding: Any) -> None:
    """Copies the embedding cores' tables to the hosts' variables."""
    embedding._retrieve_variables()


def cores_of_device(embedding: Any) -> int:
    """Returns how many SparseCores a `TPUEmbeddingV2` reckons with for a device."""
    return embedding._num_sc_per_chip


def stacks(embedding: Any) -> dict[str, dict[str, StackedTable]]:
    """Returns name of a stack -> name of a table -> its place, in the order of the tables."""
    return {
        stack: {
            table.name: StackedTable(
                padded_rows=table.vocabulary_size,
                padded_dim=table.dim,
                offset=embedding._table_to_stacked_table_offset[table.name][1],
                rotation=embedding._table_to_stacked_table_offset[table.name][2],
            )
            for table in tables
        }
        for stack, tables in embedding._stacked_table_to_tables.items()
    }
