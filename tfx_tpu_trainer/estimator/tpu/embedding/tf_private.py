"""The private TensorFlow names of TPU embeddings: of their columns, and of the tables on a TPU.

The columns themselves are public: `tf.compat.v1.tpu.experimental.embedding_column` and `shared_embedding_columns`;
their classes, and their records of a model's use, are not. The public way to move tables to a TPU and back is to write
TensorFlow's object-based checkpoint to disk and read it again.

| name | why | if it goes away |
|---|---|---|
| `feature_column._TPU_FC_TO_SCOPE` | the collection of one dict in which columns note the scope that they are used in, which names their variables | name the variables after the columns |
| `feature_column._TPUBaseEmbeddingColumn` | what all TPU columns are: it knows tables, features and weights | the columns' methods, by name |
| `feature_column._TPUEmbeddingColumn`, `_TPUSharedEmbeddingColumn` | the deprecated kinds, which get a warning | no warning |
| `feature_column_v2._TPUDeviceSpecificEmbeddingColumnV2`, `_TPUSharedDeviceSpecificEmbeddingColumnV2`, `EmbeddingDevice` | whether a column stays on the tensor core | the columns' `_embedding_lookup_device` by name |
| `feature_column_v2._TENSOR_CORE_MASK_KEY_SUFFIX` | the feature under which such a column looks for its mask | its value, spelled out |
| `feature_column.get_sequence_length_feature_key_name_from_feature_key_name` | the feature under which a sequence column looks for its lengths | its value, spelled out |
| `feature_column_lib.EmbeddingColumn`, `NumericColumn`, `feature_column._EmbeddingColumn`, `_SharedEmbeddingColumn`, `_NumericColumn` | the ordinary columns that a spec may hold | the type of what the public functions make |
| `TPUEmbedding._variables` | the copies of tables and slots in the memory of the TPU's hosts, which are assigned before they are loaded and read after they were retrieved | save and restore a `tf.train.Checkpoint` of the object |
| `TPUEmbedding._load_variables`, `_retrieve_variables` | move these copies to and from the embedding cores | the same |
| `tpu_ops.is_tpu_embedding_initialized` | `TPUEmbedding` sets the cores up once, and its error does not name the fix | TensorFlow's error |
| `TPUEmbeddingV2._stacked_table_to_tables`, `_table_to_stacked_table_offset`, `_num_sc_per_chip` | how SparseCores stack, pad and rotate the tables, which checkpoints of ours don't | follow TensorFlow's rules for the layout |
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column as core_columns
from tensorflow.python.feature_column import feature_column_lib as core_columns_v2
from tensorflow.python.tpu import feature_column as tpu_columns
from tensorflow.python.tpu import feature_column_v2 as tpu_columns_v2
from tensorflow.python.tpu.ops import tpu_ops

v1 = tf.compat.v1


TPU_COLUMNS = (tpu_columns._TPUBaseEmbeddingColumn,)
"""The base class of all embedding columns for TPUs."""

DEPRECATED_TPU_COLUMNS = (tpu_columns._TPUEmbeddingColumn, tpu_columns._TPUSharedEmbeddingColumn)
"""The deprecated kinds."""

ORDINARY_COLUMNS = (
    core_columns._NumericColumn,
    core_columns_v2.NumericColumn,
    core_columns._EmbeddingColumn,
    core_columns_v2.EmbeddingColumn,
    core_columns._SharedEmbeddingColumn,
)
"""Columns without a TPU that a spec may have, for example for use_tpu=False."""

# A column's own variable, in its scope.
_VARIABLE = "embedding_weights"

MASK_SUFFIX = tpu_columns_v2._TENSOR_CORE_MASK_KEY_SUFFIX
"""The end of the name of the feature that marks a tensor-core column's real ids."""


def is_on_tensor_core(column: Any) -> bool:
    """Returns whether a column's table is an ordinary variable of the model, on the core."""
    kinds = (
        tpu_columns_v2._TPUDeviceSpecificEmbeddingColumnV2,
        tpu_columns_v2._TPUSharedDeviceSpecificEmbeddingColumnV2,
    )
    device = tpu_columns_v2.EmbeddingDevice.TPU_TENSOR_CORE
    return isinstance(column, kinds) and column._embedding_lookup_device == device


def padded_width(column: Any) -> int:
    """Returns the number of ids to which a tensor-core column's rows are padded."""
    return column._tensor_core_shape[1]


def lengths_key(feature: str) -> str:
    """Names the feature with a sequence feature's lengths."""
    return tpu_columns.get_sequence_length_feature_key_name_from_feature_key_name(feature)


@contextlib.contextmanager
def noting_names(graph: tf.Graph) -> Iterator[NotedNames]:
    """Lets columns record their variables' names while a model is built in a graph."""
    notes = NotedNames()
    graph.get_collection_ref(tpu_columns._TPU_FC_TO_SCOPE)[:] = [notes]
    try:
        yield notes
    finally:
        graph.clear_collection(tpu_columns._TPU_FC_TO_SCOPE)


class NotedNames(dict):
    """The columns' records: table -> (variable scope, name in it)."""

    def __init__(self) -> None:
        super().__init__()
        self._name_scopes: dict[str, str] = {}

    def __setitem__(self, table: str, noted: tuple[str, str]) -> None:
        """Records a name with the current name scope."""
        # The layers of Keras name their variables by it, and open no variable scope.
        super().__setitem__(table, noted)
        if noted[1] == _VARIABLE:
            self._name_scopes[table] = v1.get_default_graph().get_name_scope()

    def full_names(self) -> dict[str, str]:
        """Returns table -> its variable's full name in a run without a TPU."""
        return {
            table: "/".join(filter(None, (scope or self._name_scopes.get(table), name)))
            for table, (scope, name) in self.items()
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackedTable:
    """A table's place in SparseCores' stack of tables."""

    padded_rows: int  # A multiple of the number of SparseCores.
    padded_dim: int
    offset: int  # Rows of the preceding tables in the stack.
    rotation: int  # The number of SparseCores by which its rows are shifted.


def are_cores_set_up() -> bool:
    """Returns whether the TPU's embedding cores are set up; call it eagerly."""
    return bool(tpu_ops.is_tpu_embedding_initialized())


def variables_of_hosts(embedding: Any) -> Mapping[str, Mapping[str, Sequence[tf.Variable]]]:
    """Returns table -> slot -> its rows, one variable per host."""
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
    """Returns the number of SparseCores per device that a `TPUEmbeddingV2` assumes."""
    return embedding._num_sc_per_chip


def stacks(embedding: Any) -> dict[str, dict[str, StackedTable]]:
    """Returns stack -> table -> its place, in the order of the tables."""
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
