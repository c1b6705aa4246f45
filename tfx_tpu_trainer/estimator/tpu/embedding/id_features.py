"""Moves ids and weights to the cores, with sparse rows cut and padded like dense ones, and looks them up there."""

import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import (
    as_tensors,
    split_features_and_labels,
)
from tfx_tpu_trainer.estimator.tpu.embedding import tf_private
from tfx_tpu_trainer.estimator.tpu.embedding.spec import EmbeddingPlan

v1 = tf.compat.v1

_IDS_DTYPE = tf.int64
_WEIGHTS_DTYPE = tf.float32


class IdFeatures:
    """Prepares an input's id features for cores, and reads them there."""

    # Sparse tensors can't be cut into the rows of each core, so they travel as encoded rows; dense ids of tables that
    # combine are made sparse first, without their zeros.

    def __init__(self, plan: EmbeddingPlan, *, padded: bool) -> None:
        self._plan = plan
        self._padded = padded

    def prepare_input(self, returned: Any) -> Any:
        """Prepares the result of an input_fn, and returns it in the same form."""
        if not isinstance(returned, tf.data.Dataset):
            return self._prepare_element(returned)

        @tf.autograph.experimental.do_not_convert
        def prepare(*element: Any) -> Any:
            return self._prepare_element(element[0] if len(element) == 1 else element)

        return returned.map(prepare)

    def take(
        self, features: dict[str, Any], name: str
    ) -> tuple[tf.SparseTensor | tf.Tensor, tf.SparseTensor | None]:
        """Takes a feature's ids and weights from one core's features."""
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
        # Ids that an ordinary embedding ignores are dropped here, on the host: -1, and those with weight 0 if weights
        # are averaged.
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
    # Weights taken by an earlier feature are strings: its encoded rows.
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
    """Returns [rows, any], or for a sequence [rows, positions, any]."""
    shape = sparse.dense_shape
    lead = shape[:2] if is_sequence else shape[:1]
    rest = tf.reduce_prod(shape[2:] if is_sequence else shape[1:], keepdims=True)
    return tf.sparse.reshape(sparse, tf.concat([lead, rest], axis=0))


def _pad_ids(column: Any, features: dict[str, Any], rows: int | None) -> None:
    """Returns the input of a tensor-core column: dense ids, and which of them are real."""
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
    """Returns the number of rows if any tensor of the batch has it."""
    for leaf in tf.nest.flatten((features, labels)):
        if leaf is not None and leaf.shape.rank and leaf.shape[0] is not None:
            return leaf.shape[0]
    return None


# The parts that `tf.io.serialize_many_sparse` writes per row: indices, values and shape.
_PARTS = 3


def encode_rows(sparse: tf.SparseTensor, *, rows: int | None) -> tf.Tensor:
    """Encodes each row of a sparse tensor as strings."""
    # The shape no longer depends on the number of values in a row, so a batch can be cut for the cores, and a short one
    # padded, as if it were dense.
    return tf.ensure_shape(tf.io.serialize_many_sparse(sparse), [rows, _PARTS])


def decode_rows(
    encoded: tf.Tensor, *, dtype: tf.DType, rank: int, padded: bool = False
) -> tf.SparseTensor:
    """Decodes rows encoded by `encode_rows`."""
    if not padded:
        return tf.io.deserialize_many_sparse(encoded, dtype, rank)
    no_values = tf.SparseTensor(
        indices=tf.zeros([0, rank], tf.int64),
        values=tf.zeros([0], dtype),
        dense_shape=[1] + [0] * (rank - 1),
    )
    # The feed pads a short batch with empty strings, which can't be decoded: a row of padding becomes the encoding of a
    # row without ids.
    empty_row = tf.io.serialize_many_sparse(no_values)
    is_padding = tf.equal(tf.strings.length(encoded), 0)
    filled = tf.where(is_padding, tf.broadcast_to(empty_row, tf.shape(encoded)), encoded)
    # One more row, since the op takes no empty batch; the shape below cuts it off again.
    decoded = tf.io.deserialize_many_sparse(tf.concat([filled, empty_row], axis=0), dtype, rank)
    rows = tf.shape(encoded, out_type=tf.int64)[:1]
    shape = tf.concat([rows, decoded.dense_shape[1:]], axis=0)
    return tf.SparseTensor(decoded.indices, decoded.values, shape)


_logger = tf.get_logger()

_COMBINERS = {
    "mean": tf.sparse.segment_mean,
    "sum": tf.sparse.segment_sum,
    "sqrtn": tf.sparse.segment_sqrt_n,
}


def look_up(
    table: tf.Variable, ids: tf.SparseTensor, weights: tf.SparseTensor | None, *, combiner: str
) -> tf.Tensor:
    """Combines the embeddings of each row's ids."""
    # `tf.nn.safe_embedding_lookup_sparse` does the same in several times as many ops; here they are copied for each
    # core and feature.
    # The segment ops need sorted rows, and get them: a sparse tensor serialized by rows is restored in row order.
    embedded = tf.gather(table, ids.values)
    row, rows = ids.indices[:, 0], tf.cast(ids.dense_shape[0], tf.int32)
    if weights is None:
        places = tf.range(tf.size(ids.values))
        return _COMBINERS[combiner](embedded, places, row, num_segments=rows)
    weight = weights.values[:, tf.newaxis]
    total = tf.math.unsorted_segment_sum(embedded * weight, row, rows)
    if combiner == "sum":
        return total
    if combiner == "mean":
        return tf.math.divide_no_nan(total, tf.math.unsorted_segment_sum(weight, row, rows))
    squares = tf.math.unsorted_segment_sum(tf.square(weight), row, rows)
    return tf.math.divide_no_nan(total, tf.sqrt(squares))


def is_there(ids: tf.SparseTensor, weights: tf.SparseTensor | None, *, combiner: str) -> tf.Tensor:
    """Returns which ids an ordinary embedding looks up."""
    # Like `tf.nn.safe_embedding_lookup_sparse`, this drops negative ids, and ids without a positive weight unless the
    # combiner is "sum".
    there = ids.values >= 0
    if weights is None or combiner == "sum":
        return there
    return tf.logical_and(there, weights.values > 0)


def look_up_dense(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    """Returns the embedding of each row's single id."""
    return tf.nn.embedding_lookup(table, tf.reshape(ids, [-1]))


def look_up_sequence(
    table: tf.Variable,
    ids: tf.SparseTensor,
    weights: tf.SparseTensor | None,
    *,
    combiner: str,
    max_length: int,
) -> tf.Tensor:
    """Combines the embeddings of the ids at each position of each row's sequence."""
    flat_ids = by_position(ids, max_length)
    flat_weights = None if weights is None else by_position(weights, max_length)
    embedded = look_up(table, flat_ids, flat_weights, combiner=combiner)
    return tf.reshape(embedded, [-1, max_length, table.shape[1]])


def by_position(sparse: tf.SparseTensor, max_length: int) -> tf.SparseTensor:
    """Makes a row of each position of each row."""
    kept = tf.sparse.retain(sparse, sparse.indices[:, 1] < max_length)
    # With `max_length` 3, the second position (1) of row 2 becomes row 2 * 3 + 1 = 7.
    row, position, place = tf.unstack(kept.indices, num=3, axis=1)
    indices = tf.stack([row * max_length + position, place], axis=1)
    shape = tf.stack([sparse.dense_shape[0] * max_length, sparse.dense_shape[2]])
    return tf.SparseTensor(indices, kept.values, shape)


def sequence_lengths(ids: tf.SparseTensor, *, max_length: int) -> tf.Tensor:
    """Returns the length of each row's sequence: up to its last id, and at most `max_length`."""
    longest = tf.math.unsorted_segment_max(
        ids.indices[:, 1] + 1, ids.indices[:, 0], ids.dense_shape[0]
    )
    # The maximum over no ids is the smallest integer.
    return tf.clip_by_value(longest, 0, max_length)


_NAME = "tpu_embedding_gradient_tap"


class GradientTap:
    """Records gradients with respect to tensors that are not variables."""

    # A model may differentiate any loss: a scaled one, as `CrossShardOptimizer` does, a clipped one, or a sum. The
    # tapped tensors depend on a trainable variable without effect (a stand-in), so the model's optimizer computes
    # gradients through them, which are recorded.

    def __init__(self) -> None:
        """Makes the stand-in in the default graph, before the model is built."""
        self._stand_in = v1.get_variable(
            _NAME,
            shape=[1],
            initializer=v1.zeros_initializer(),
            collections=[v1.GraphKeys.LOCAL_VARIABLES],
        )
        # Read once: all taps depend on this tensor, whose gradient the optimizer requests.
        self._value = self._stand_in.read_value()
        self._tapped: dict[str, tf.Tensor] = {}
        self._recorded: dict[str, tf.Tensor] = {}

    def tap(self, name: str, tensor: tf.Tensor) -> tf.Tensor:
        """Returns a tensor with the same value for the model to use."""

        @tf.custom_gradient
        def passed_on(stand_in: tf.Tensor, value: tf.Tensor) -> Any:
            def record(gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                # If a model differentiates more than once, the last gradient counts.
                self._recorded[name] = gradient
                return tf.zeros_like(stand_in), gradient

            return tf.identity(value), record

        self._tapped[name] = tensor
        tapped = passed_on(self._value, tensor)
        tapped.set_shape(tensor.shape)
        return tapped

    def close(self) -> Mapping[str, tf.Tensor]:
        """Ends the recording after the model is built."""
        # The stand-in, and the optimizer's slots for it, become local variables, which are neither trained from here on
        # nor saved.
        graph = v1.get_default_graph()
        trainable = graph.get_collection_ref(v1.GraphKeys.TRAINABLE_VARIABLES)
        trainable[:] = [variable for variable in trainable if variable is not self._stand_in]
        saved = graph.get_collection_ref(v1.GraphKeys.GLOBAL_VARIABLES)
        slots = [v for v in saved if v.op.name.startswith(f"{self._stand_in.op.name}/")]
        saved[:] = [variable for variable in saved if not any(variable is s for s in slots)]
        for slot in slots:
            graph.add_to_collection(v1.GraphKeys.LOCAL_VARIABLES, slot)
        missing = sorted(set(self._tapped) - set(self._recorded))
        if missing:
            _logger.warning(
                "The embeddings of %s have undefined gradients: the model does not use them, or "
                "its optimizer was given a var_list without all trainable variables. Zero "
                "gradients are used instead.",
                missing,
            )
        return {
            name: self._recorded.get(name, tf.zeros_like(tensor))
            for name, tensor in self._tapped.items()
        }
