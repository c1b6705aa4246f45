"""Computes linear-chain conditional random fields: the likelihood of tags, and the best tags."""

from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1

__all__ = [
    "crf_decode",
    "crf_log_likelihood",
    "crf_log_norm",
    "crf_sequence_score",
    "viterbi_decode",
]


def _mask(lengths: Any, inputs: tf.Tensor) -> tf.Tensor:
    return tf.sequence_mask(lengths, tf.shape(inputs)[1], inputs.dtype)


def crf_sequence_score(
    inputs: Any, tag_indices: Any, sequence_lengths: Any, transition_params: Any
) -> tf.Tensor:
    """Sums the scores of a sequence's tags and transitions."""
    inputs, tags = tf.convert_to_tensor(inputs), tf.cast(tag_indices, tf.int32)
    mask = _mask(sequence_lengths, inputs)
    single = tf.gather(inputs, tags, axis=2, batch_dims=2) * mask
    steps = tf.stack([tags[:, :-1], tags[:, 1:]], -1)
    pairs = tf.gather_nd(transition_params, steps) * mask[:, 1:]
    return tf.reduce_sum(single, 1) + tf.reduce_sum(pairs, 1)


def crf_log_norm(inputs: Any, sequence_lengths: Any, transition_params: Any) -> tf.Tensor:
    """Computes the logarithm of the sum over all tag sequences."""
    inputs = tf.convert_to_tensor(inputs)
    inside = tf.transpose(_mask(sequence_lengths, inputs))[1:, :, tf.newaxis]
    later = tf.transpose(inputs, [1, 0, 2])[1:]

    # The forward algorithm: for each tag, `alphas` is the logarithm of the sum over all prefixes that end with it. It
    # stays constant after a sequence's end, so the last row is right for all lengths.
    def forward(alphas: tf.Tensor, at: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        scores, there = at
        moved = tf.reduce_logsumexp(alphas[:, :, tf.newaxis] + transition_params, 1) + scores
        return tf.where(there > 0, moved, alphas)

    alphas = tf.concat(
        [inputs[:, 0][tf.newaxis], tf.scan(forward, (later, inside), inputs[:, 0])], 0
    )
    norm = tf.reduce_logsumexp(alphas[-1], 1)
    return tf.where(tf.less_equal(sequence_lengths, 0), tf.zeros_like(norm), norm)


def crf_log_likelihood(
    inputs: Any, tag_indices: Any, sequence_lengths: Any, transition_params: Any = None
) -> tuple[tf.Tensor, Any]:
    """Computes the log-likelihood of tag sequences."""
    inputs = tf.convert_to_tensor(inputs)
    if transition_params is None:
        count = inputs.shape[2]
        transition_params = v1.get_variable("transitions", [count, count])
    score = crf_sequence_score(inputs, tag_indices, sequence_lengths, transition_params)
    return score - crf_log_norm(inputs, sequence_lengths, transition_params), transition_params


def crf_decode(
    potentials: Any, transition_params: Any, sequence_length: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the best tag sequences."""
    potentials = tf.convert_to_tensor(potentials)
    mask = _mask(sequence_length, potentials)
    inside = tf.transpose(mask)[1:, :, tf.newaxis] > 0
    later = tf.transpose(potentials, [1, 0, 2])[1:]
    count = tf.shape(potentials)[2]
    stay = tf.zeros([tf.shape(potentials)[0], 1], tf.int32) + tf.range(count)

    def forward(last: tuple[tf.Tensor, tf.Tensor], at: tuple[tf.Tensor, tf.Tensor]) -> Any:
        steps = last[0][:, :, tf.newaxis] + transition_params
        best = tf.reduce_max(steps, 1) + at[0]
        came_from = tf.argmax(steps, 1, output_type=tf.int32)
        return tf.where(at[1], best, last[0]), tf.where(at[1], came_from, stay)

    first = potentials[:, 0]
    scores, pointers = tf.scan(forward, (later, inside), (first, stay))
    last_scores = tf.concat([first[tf.newaxis], scores], 0)[-1]
    last_tags = tf.argmax(last_scores, 1, output_type=tf.int32)

    # Viterbi backwards: the last step's best tag, then for each step the tag that it came from. Steps after a
    # sequence's end point at themselves (`stay`), so short sequences keep their last tag.
    def backward(tags: tf.Tensor, came_from: tf.Tensor) -> tf.Tensor:
        return tf.gather(came_from, tags, axis=1, batch_dims=1)

    before = tf.scan(backward, pointers, last_tags, reverse=True)
    tags = tf.transpose(tf.concat([before, last_tags[tf.newaxis]], 0))
    return tags * tf.cast(mask, tf.int32), tf.reduce_max(last_scores, 1)


def viterbi_decode(score: np.ndarray, transition_params: np.ndarray) -> tuple[list[int], float]:
    """Finds the best tag sequence, outside a graph."""
    best, pointers = score[0], []
    for row in score[1:]:
        steps = best[:, np.newaxis] + transition_params
        pointers.append(steps.argmax(0))
        best = row + steps.max(0)
    tags = [int(best.argmax())]
    for came_from in reversed(pointers):
        tags.append(int(came_from[tags[-1]]))
    return tags[::-1], best.max()
