"""The private TensorFlow names that TPU embedding columns cannot be told by without.

The columns themselves are public: `tf.compat.v1.tpu.experimental.embedding_column` and
`shared_embedding_columns`; their classes, and what they note down while a model uses them, are not.

| name | why | if it goes away |
|---|---|---|
| `feature_column._TPU_FC_TO_SCOPE` | the collection of one dict in which columns note the scope that they are used in, which names their variables | name the variables after the columns |
| `feature_column._TPUBaseEmbeddingColumn` | what all TPU columns are: it knows tables, features and weights | the columns' methods, by name |
| `feature_column._TPUEmbeddingColumn`, `_TPUSharedEmbeddingColumn` | the deprecated kinds, which get a warning | no warning |
| `feature_column_v2._TPUDeviceSpecificEmbeddingColumnV2`, `_TPUSharedDeviceSpecificEmbeddingColumnV2`, `EmbeddingDevice` | whether a column stays on the tensor core | the columns' `_embedding_lookup_device` by name |
| `feature_column_v2._TENSOR_CORE_MASK_KEY_SUFFIX` | the feature under which such a column looks for its mask | its value, spelled out |
| `feature_column.get_sequence_length_feature_key_name_from_feature_key_name` | the feature under which a sequence column looks for its lengths | its value, spelled out |
| `feature_column_lib.EmbeddingColumn`, `NumericColumn`, `feature_column._EmbeddingColumn`, `_SharedEmbeddingColumn`, `_NumericColumn` | the ordinary columns that a spec may hold | the type of what the public functions make |
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column as core_columns
from tensorflow.python.feature_column import feature_column_lib as core_columns_v2
from tensorflow.python.tpu import feature_column as tpu_columns
from tensorflow.python.tpu import feature_column_v2 as tpu_columns_v2

v1 = tf.compat.v1

TPU_COLUMNS = (tpu_columns._TPUBaseEmbeddingColumn,)
"""Every embedding column made for a TPU."""

DEPRECATED_TPU_COLUMNS = (
    tpu_columns._TPUEmbeddingColumn,
    tpu_columns._TPUSharedEmbeddingColumn,
)
"""The kinds of old."""

ORDINARY_COLUMNS = (
    core_columns._NumericColumn,
    core_columns_v2.NumericColumn,
    core_columns._EmbeddingColumn,
    core_columns_v2.EmbeddingColumn,
    core_columns._SharedEmbeddingColumn,
)
"""Columns without a TPU that a spec may hold, as one does for use_tpu=False."""

# What a variable that belongs to one column is called in its scope.
_VARIABLE = "embedding_weights"

MASK_SUFFIX = tpu_columns_v2._TENSOR_CORE_MASK_KEY_SUFFIX
"""Ends the name of the feature that says which ids of a tensor-core column are real."""


def is_on_tensor_core(column: Any) -> bool:
    """Tells whether a column's table is an ordinary variable of the model, on the core."""
    kinds = (
        tpu_columns_v2._TPUDeviceSpecificEmbeddingColumnV2,
        tpu_columns_v2._TPUSharedDeviceSpecificEmbeddingColumnV2,
    )
    device = tpu_columns_v2.EmbeddingDevice.TPU_TENSOR_CORE
    return isinstance(column, kinds) and column._embedding_lookup_device == device


def padded_width(column: Any) -> int:
    """Returns to how many ids a tensor-core column's rows are padded."""
    return column._tensor_core_shape[1]


def lengths_key(feature: str) -> str:
    """Names the feature that holds the lengths of a sequence feature."""
    return tpu_columns.get_sequence_length_feature_key_name_from_feature_key_name(feature)


@contextlib.contextmanager
def noting_names(graph: tf.Graph) -> Iterator[NotedNames]:
    """Lets columns note the names of their variables while a model is built in a graph."""
    notes = NotedNames()
    graph.get_collection_ref(tpu_columns._TPU_FC_TO_SCOPE)[:] = [notes]
    try:
        yield notes
    finally:
        graph.clear_collection(tpu_columns._TPU_FC_TO_SCOPE)


class NotedNames(dict):
    """What columns note down: table -> (variable scope, name in it)."""

    def __init__(self) -> None:
        super().__init__()
        self._name_scopes: dict[str, str] = {}

    def __setitem__(self, table: str, noted: tuple[str, str]) -> None:
        """Takes a note, and the name scope with it.

        The layers of Keras name their variables by it, and open no variable scope.
        """
        super().__setitem__(table, noted)
        if noted[1] == _VARIABLE:
            self._name_scopes[table] = v1.get_default_graph().get_name_scope()

    def full_names(self) -> dict[str, str]:
        """Returns table -> full name of its variable as a run without a TPU calls it."""
        return {
            table: "/".join(filter(None, (scope or self._name_scopes.get(table), name)))
            for table, (scope, name) in self.items()
        }
