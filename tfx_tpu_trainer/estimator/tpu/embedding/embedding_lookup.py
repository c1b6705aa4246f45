"""Looks ids up in an embedding table, and finds the gradient that an optimizer takes of what was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
_logger = tf.get_logger()

_COMBINERS = {
    "mean": tf.sparse.segment_mean,
    "sum": tf.sparse.segment_sum,
    "sqrtn": tf.sparse.segment_sqrt_n,
}


def look_up(
    table: tf.Variable, ids: tf.SparseTensor, weights: tf.SparseTensor | None, *, combiner: str
) -> tf.Tensor:
    """Combines the embeddings of each row's ids.

    `tf.nn.safe_embedding_lookup_sparse` does the same in several times as many ops; here they are
    copied for each core and feature.
    """
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
    """Tells which ids an ordinary embedding looks up, the others being missing."""
    there = ids.values >= 0
    if weights is None or combiner == "sum":
        return there
    return tf.logical_and(there, weights.values > 0)


def look_up_dense(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    """Returns the embedding of each row's one id."""
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
    """Makes every position of every row a row of its own."""
    kept = tf.sparse.retain(sparse, sparse.indices[:, 1] < max_length)
    row, position, place = tf.unstack(kept.indices, num=3, axis=1)
    indices = tf.stack([row * max_length + position, place], axis=1)
    shape = tf.stack([sparse.dense_shape[0] * max_length, sparse.dense_shape[2]])
    return tf.SparseTensor(indices, kept.values, shape)


def sequence_lengths(ids: tf.SparseTensor, *, max_length: int) -> tf.Tensor:
    """Returns how long each row's sequence is: up to its last id, and at most `max_length`."""
    longest = tf.math.unsorted_segment_max(
        ids.indices[:, 1] + 1, ids.indices[:, 0], ids.dense_shape[0]
    )
    # The maximum over no ids is the smallest integer.
    return tf.clip_by_value(longest, 0, max_length)


_NAME = "tpu_embedding_gradient_tap"


class GradientTap:
    """Records gradients with respect to tensors that are no variables.

    A model differentiates what it likes: a loss that it scaled, as `CrossShardOptimizer` does, or
    clipped, or added to others. The tapped tensors are made to depend on a trainable variable, a
    stand-in of no effect, so that its optimizer goes through them; what comes by is recorded.
    """

    def __init__(self) -> None:
        """Makes the stand-in, in the default graph, before the model is built."""
        self._stand_in = v1.get_variable(
            _NAME,
            shape=[1],
            initializer=v1.zeros_initializer(),
            collections=[v1.GraphKeys.LOCAL_VARIABLES],
        )
        self._value = self._stand_in.read_value()
        self._tapped: dict[str, tf.Tensor] = {}
        self._recorded: dict[str, tf.Tensor] = {}

    def tap(self, name: str, tensor: tf.Tensor) -> tf.Tensor:
        """Returns a tensor of the same value for the model to use."""

        @tf.custom_gradient
        def passed_on(stand_in: tf.Tensor, value: tf.Tensor) -> Any:
            def record(gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                # Where a model differentiates more than once, the last time counts.
                self._recorded[name] = gradient
                return tf.zeros_like(stand_in), gradient

            return tf.identity(value), record

        self._tapped[name] = tensor
        tapped = passed_on(self._value, tensor)
        tapped.set_shape(tensor.shape)
        return tapped

    def close(self) -> Mapping[str, tf.Tensor]:
        """Ends the recording, after the model is built.

        The stand-in, and what the model's optimizer keeps of it, become local variables: they
        are not trained from here on and not saved.
        """
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
