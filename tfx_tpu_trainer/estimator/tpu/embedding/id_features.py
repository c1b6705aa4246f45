"""Ids and weights on their way from the input to the cores: sparse rows, cut and padded like dense ones."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import (
    as_tensors,
    split_features_and_labels,
)
from tfx_tpu_trainer.estimator.tpu.embedding import tf_private
from tfx_tpu_trainer.estimator.tpu.embedding.embedding_lookup import is_there
from tfx_tpu_trainer.estimator.tpu.embedding.spec import EmbeddingPlan

_IDS_DTYPE = tf.int64
_WEIGHTS_DTYPE = tf.float32


class IdFeatures:
    """Prepares the id features of an input for cores, and reads them there.

    Sparse tensors can't be cut into the rows of each core, so they travel as encoded rows; dense
    ids of tables that combine are made sparse first, without their zeros.
    """

    def __init__(self, plan: EmbeddingPlan, *, padded: bool) -> None:
        """Prepares for the features of a plan."""
        self._plan = plan
        self._padded = padded

    def prepare_input(self, returned: Any) -> Any:
        """Prepares what an input_fn returned, and returns it in the same form."""
        if not isinstance(returned, tf.data.Dataset):
            return self._prepare_element(returned)

        @tf.autograph.experimental.do_not_convert
        def prepare(*element: Any) -> Any:
            return self._prepare_element(element[0] if len(element) == 1 else element)

        return returned.map(prepare)

    def take(
        self, features: dict[str, Any], name: str
    ) -> tuple[tf.SparseTensor | tf.Tensor, tf.SparseTensor | None]:
        """Takes a feature's ids and weights out of what one core got."""
        config = self._plan.features[name]
        rank = 3 if config.max_sequence_length else 2
        read = functools.partial(decode_rows, rank=rank, padded=self._padded)
        ids, weights = features.pop(name), None
        if self._plan.combiner(name) is not None:
            ids = read(ids, dtype=_IDS_DTYPE)
        if config.weight_key is not None:
            encoded = features.pop(config.weight_key)
            weights = read(encoded, dtype=_WEIGHTS_DTYPE)
        return ids, weights

    def _prepare_element(self, element: Any) -> Any:
        features, labels = split_features_and_labels(element)
        if not isinstance(features, Mapping):
            raise ValueError(
                "With embedding_config_spec the features must be a dict, as ids are found by their "
                f"names; got {features!r}."
            )
        prepared, labels = as_tensors(dict(features)), as_tensors(labels)
        rows = _static_rows(prepared, labels)
        for name in self._plan.features:
            self._prepare(name, prepared, rows)
        for column in self._plan.tensor_core_columns:
            _pad_ids(column, prepared, rows)
        return prepared if labels is None else (prepared, labels)

    def _prepare(self, name: str, features: dict[str, Any], rows: int | None) -> None:
        config = self._plan.features[name]
        ids = _integer_ids(name, features)
        combiner = self._plan.combiner(name)
        if combiner is None:
            _check_without_combiner(name, ids, config.weight_key, config.max_sequence_length)
            features[name] = ids
            return
        was_sparse = isinstance(ids, tf.SparseTensor)
        if not was_sparse:
            ids = tf.sparse.from_dense(ids)
        given = {name: tf.cast(ids, _IDS_DTYPE)}
        weights = None
        if config.weight_key is not None:
            weights = given[config.weight_key] = _weights(name, config.weight_key, features)
            if not was_sparse:
                raise ValueError(
                    f"Found weights {config.weight_key} for weighted_categorical_column, which is "
                    f"not compatible with feature {name} given as a dense tensor: give sparse ids."
                )
        there = is_there(ids, weights, combiner=combiner)
        for key, sparse in given.items():
            kept = _with_known_rank(tf.sparse.retain(sparse, there), config.max_sequence_length > 0)
            features[key] = encode_rows(kept, rows=rows)


def _integer_ids(name: str, features: dict[str, Any]) -> tf.Tensor | tf.SparseTensor:
    if name not in features:
        raise ValueError(
            f"The features lack {name!r}, which embedding_config_spec embeds; they are "
            f"{sorted(features)}."
        )
    ids = features.pop(name)
    if not ids.dtype.is_integer:
        raise ValueError(
            "SparseTensor with string as values are not supported. If you are using "
            "categorical_column_with_vocabulary_file or categorical_column_with_vocabulary_list, "
            "please look the strings up in your input_fn() to convert them to int, with "
            "tf.lookup.StaticVocabularyTable for instance. "
            f"feature_key = {name}, dtype = {ids.dtype.name}."
        )
    return ids.to_sparse() if isinstance(ids, tf.RaggedTensor) else ids


def _weights(name: str, key: str, features: dict[str, Any]) -> tf.SparseTensor:
    weights = features.pop(key, None)
    # What another feature took is there as encoded rows.
    if weights is None or weights.dtype == tf.string:
        raise ValueError(
            f"Cannot find weights {key} for weighted_categorical_column. Please check if the "
            f"weights are present in feature dict; they are those of {name}. Also note weight-sharing among "
            "weighted_categorical_column is not supported on TPU: give them a second name."
        )
    if isinstance(weights, tf.RaggedTensor):
        weights = weights.to_sparse()
    if not isinstance(weights, tf.SparseTensor):
        raise ValueError(
            f"weighted_categorical_column with weight key name {key} has dense weights. Dense "
            "weights are not supported on TPU. Please use sparse weights instead."
        )
    return tf.cast(weights, _WEIGHTS_DTYPE)


def _check_without_combiner(name: str, ids: Any, weight_key: str | None, max_length: int) -> None:
    if isinstance(ids, tf.SparseTensor) or max_length:
        raise ValueError(
            f"Feature {name} is {'a sequence' if max_length else 'sparse'}, but its table has the "
            'combiner None, which allows only one dense id per row: give it combiner="mean" or '
            '"sum".'
        )
    if weight_key is not None:
        raise ValueError(
            f"Found weights {weight_key} for weighted_categorical_column, which is not compatible "
            f"with feature {name} enqueued as dense tensor: its table has the combiner None."
        )
    if ids.shape.rank not in (1, 2) or (ids.shape.rank == 2 and ids.shape[1] != 1):
        raise ValueError(
            f"Feature {name} of shape {ids.shape} must have one id per row, as its table has the "
            "combiner None: shape [rows] or [rows, 1]."
        )


def _with_known_rank(sparse: tf.SparseTensor, is_sequence: bool) -> tf.SparseTensor:
    """Returns [rows, any], or of a sequence [rows, positions, any]."""
    shape = sparse.dense_shape
    lead = shape[:2] if is_sequence else shape[:1]
    rest = tf.reduce_prod(shape[2:] if is_sequence else shape[1:], keepdims=True)
    return tf.sparse.reshape(sparse, tf.concat([lead, rest], axis=0))


def _pad_ids(column: Any, features: dict[str, Any], rows: int | None) -> None:
    """Makes what a tensor-core column reads: dense ids, and which of them are real."""
    name = column.categorical_column.key
    ids = _integer_ids(name, features)
    if not isinstance(ids, tf.SparseTensor):
        raise ValueError(f"Feature {name} of a Tensor Core embedding must be sparse; got {ids!r}.")
    mask_key = f"{name}{tf_private.MASK_SUFFIX}"
    if mask_key in features:
        raise ValueError(
            f"Mask key {mask_key} for Tensor Core embedding is already in use: rename the feature."
        )
    width = tf_private.padded_width(column)
    kept = tf.sparse.retain(ids, ids.indices[:, 1] < width)
    shape = tf.stack([ids.dense_shape[0], width])
    padded = tf.scatter_nd(kept.indices, tf.cast(kept.values, tf.int32), shape)
    mask = tf.scatter_nd(kept.indices, tf.ones_like(kept.values, tf.float32), shape)
    features[name] = tf.ensure_shape(padded, [rows, width])
    features[mask_key] = tf.ensure_shape(mask, [rows, width])


def _static_rows(features: Any, labels: Any) -> int | None:
    """Returns the number of rows where any tensor of the batch knows it."""
    for leaf in tf.nest.flatten((features, labels)):
        if leaf is not None and leaf.shape.rank and leaf.shape[0] is not None:
            return leaf.shape[0]
    return None


# What `tf.io.serialize_many_sparse` gives for a row: its indices, values and shape.
_PARTS = 3


def encode_rows(sparse: tf.SparseTensor, *, rows: int | None) -> tf.Tensor:
    """Writes each row of a sparse tensor as strings.

    How many values a row has is not in its shape any more, so that a batch can be cut into the
    pieces of the cores, and a short one padded, as if it were dense.
    """
    return tf.ensure_shape(tf.io.serialize_many_sparse(sparse), [rows, _PARTS])


def decode_rows(
    encoded: tf.Tensor, *, dtype: tf.DType, rank: int, padded: bool = False
) -> tf.SparseTensor:
    """Reads what `encode_rows` wrote."""
    if not padded:
        return tf.io.deserialize_many_sparse(encoded, dtype, rank)
    no_values = tf.SparseTensor(
        indices=tf.zeros([0, rank], tf.int64),
        values=tf.zeros([0], dtype),
        dense_shape=[1] + [0] * (rank - 1),
    )
    # The feed pads a short batch with zeros, which of strings are "", and those can't be decoded: a
    # row of padding becomes the encoding of a row without ids.
    empty_row = tf.io.serialize_many_sparse(no_values)
    is_padding = tf.equal(tf.strings.length(encoded), 0)
    filled = tf.where(is_padding, tf.broadcast_to(empty_row, tf.shape(encoded)), encoded)
    # One row more, as the op takes no empty batch; the shape below cuts it off again.
    decoded = tf.io.deserialize_many_sparse(tf.concat([filled, empty_row], axis=0), dtype, rank)
    rows = tf.shape(encoded, out_type=tf.int64)[:1]
    shape = tf.concat([rows, decoded.dense_shape[1:]], axis=0)
    return tf.SparseTensor(decoded.indices, decoded.values, shape)
