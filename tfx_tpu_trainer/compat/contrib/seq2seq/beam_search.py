"""Implements a decoder that keeps the best sequences of each row."""

from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer.compat.contrib.seq2seq.decoding import Decoder
from tfx_tpu_trainer.compat.contrib.seq2seq.helpers import checked_tokens, embedding_fn

v1 = tf.compat.v1


class BeamSearchDecoderState(NamedTuple):
    """The state of a beam search.

    Attributes:
        cell_state: That of the cell, `[batch, beam, ...]`.
        log_probs: The logarithm of each sequence's probability, `[batch, beam]`.
        finished: Which sequences have ended.
        lengths: Their lengths, int64.
        accumulated_attention_probs: `()`.
    """

    cell_state: Any
    log_probs: Any
    finished: Any
    lengths: Any
    accumulated_attention_probs: Any


class BeamSearchDecoderOutput(NamedTuple):
    """The output of a step, `[batch, beam]` each.

    Attributes:
        scores: The sequences' scores.
        predicted_ids: Their last ids.
        parent_ids: Which sequences of the step before they continue.
    """

    scores: Any
    predicted_ids: Any
    parent_ids: Any


class FinalBeamSearchDecoderOutput(NamedTuple):
    """The output of the search.

    Attributes:
        predicted_ids: The sequences, the best first, `[batch, length, beam]`.
        beam_search_decoder_output: The steps' outputs.
    """

    predicted_ids: Any
    beam_search_decoder_output: Any


def gather_tree(
    step_ids: Any,
    parent_ids: Any,
    max_sequence_lengths: Any,
    end_token: Any,
    name: str | None = None,
) -> tf.Tensor:
    """Follows the sequences of a beam search back to their beginnings."""
    with v1.name_scope(name, "GatherTree"):
        ids = tf.convert_to_tensor(step_ids)
        length, batch, beam = tf.unstack(tf.shape(ids))
        end = tf.cast(end_token, ids.dtype)
        inside = tf.range(length)[:, tf.newaxis] < tf.cast(max_sequence_lengths, tf.int32)
        start = tf.zeros([batch, 1], tf.int32) + tf.range(beam)

        # Sequences change their beams from step to step, so only the last step knows which beam is
        # which sequence. From there each step's id is read, and its parent is the beam to read in
        # the step before. Example: ids [[1, 2], [3, 4]] and parents [[0, 0], [1, 0]]: the first
        # sequence ends with 3, which came from beam 1, and so it is [2, 3].
        def back(last: tuple[tf.Tensor, tf.Tensor], at: tuple[tf.Tensor, ...]) -> Any:
            here, parents, there = at
            _, beams = last
            found = tf.gather(here, beams, axis=1, batch_dims=1)
            before = tf.gather(parents, beams, axis=1, batch_dims=1)
            there = there[:, tf.newaxis]
            return tf.where(there, found, end), tf.where(there, before, beams)

        first = (tf.zeros_like(ids[0]), start)
        found, _ = tf.scan(back, (ids, tf.cast(parent_ids, tf.int32), inside), first, reverse=True)
        ended = tf.cumsum(tf.cast(tf.equal(found, end), tf.int32), 0, exclusive=True) > 0
        return tf.where(ended, end, found)


class BeamSearchDecoder(Decoder):
    """A decoder with a cell that keeps the best sequences of each row."""

    def __init__(
        self,
        cell: Any,
        embedding: Any,
        start_tokens: Any,
        end_token: Any,
        initial_state: Any,
        beam_width: int,
        output_layer: Any = None,
        length_penalty_weight: Any = 0.0,
        coverage_penalty_weight: Any = 0.0,
        reorder_tensor_arrays: bool = True,
    ) -> None:
        del reorder_tensor_arrays
        if not isinstance(coverage_penalty_weight, (int, float)) or coverage_penalty_weight:
            raise ValueError(
                "Coverage penalty is not supported; coverage_penalty_weight must be 0.0, got "
                f"{coverage_penalty_weight!r}."
            )
        self._embedding_fn = embedding_fn(embedding)
        tokens, self._end_token = checked_tokens(start_tokens, end_token)
        self._cell, self._output_layer, self._beam_width = cell, output_layer, beam_width
        self._length_weight = length_penalty_weight
        self._batch_size = tf.size(tokens)
        self._initial_state = tf.nest.map_structure(self._split, initial_state)
        self._start_inputs = self._embedding_fn(tf.tile(tokens[:, tf.newaxis], [1, beam_width]))

    @property
    def batch_size(self) -> Any:
        """The number of rows, without their copies."""
        return self._batch_size

    @property
    def tracks_own_finished(self) -> bool:
        """True: sequences change places, so the decoder itself tracks which ones have ended."""
        return True

    @property
    def _dtype(self) -> Any:
        return tf.nest.flatten(self._initial_state)[0].dtype

    @property
    def output_size(self) -> BeamSearchDecoderOutput:
        """The sizes of a row's outputs."""
        return BeamSearchDecoderOutput(*[tf.TensorShape([self._beam_width])] * 3)

    @property
    def output_dtype(self) -> BeamSearchDecoderOutput:
        """The outputs' types."""
        return BeamSearchDecoderOutput(self._dtype, tf.int32, tf.int32)

    def _split(self, values: Any) -> Any:
        """Gives each row's copies their own axis."""
        if isinstance(values, tf.TensorArray) or values.shape.rank == 0:
            return values
        shape = tf.concat([[self._batch_size, self._beam_width], tf.shape(values)[1:]], 0)
        split = tf.reshape(values, shape)
        known = tf.get_static_value(self._batch_size)
        split.set_shape([known, self._beam_width, *values.shape[1:]])
        return split

    def _merge(self, values: Any) -> Any:
        if isinstance(values, tf.TensorArray) or values.shape.rank == 0:
            return values
        merged = tf.reshape(values, tf.concat([[-1], tf.shape(values)[2:]], 0))
        known = tf.get_static_value(self._batch_size)
        merged.set_shape([None if known is None else known * self._beam_width, *values.shape[2:]])
        return merged

    def initialize(self, name: str | None = None) -> tuple[Any, Any, Any]:
        """Returns which sequences have ended, the first inputs, and the first state."""
        del name
        # All beams begin with the same state, so only the first one counts.
        first = tf.zeros([self._batch_size], tf.int32)
        finished = tf.one_hot(
            first, self._beam_width, on_value=False, off_value=True, dtype=tf.bool
        )
        dtype = self._dtype
        log_probs = tf.one_hot(
            first,
            self._beam_width,
            on_value=tf.constant(0.0, dtype),
            off_value=tf.constant(float("-inf"), dtype),
        )
        state = BeamSearchDecoderState(
            cell_state=self._initial_state,
            log_probs=log_probs,
            finished=finished,
            lengths=tf.zeros([self._batch_size, self._beam_width], tf.int64),
            accumulated_attention_probs=(),
        )
        return finished, self._start_inputs, state

    def step(
        self, time: Any, inputs: Any, state: Any, name: str | None = None
    ) -> tuple[Any, Any, Any, Any]:
        """Returns the outputs, the next state, the next inputs, and which sequences have ended."""
        del time
        with v1.name_scope(name, "BeamSearchDecoderStep"):
            logits, cell_state = self._cell(
                tf.nest.map_structure(self._merge, inputs),
                tf.nest.map_structure(self._merge, state.cell_state),
            )
            logits = self._split(logits)
            if self._output_layer is not None:
                logits = self._output_layer(logits)
            output, state = self._chosen(
                logits, tf.nest.map_structure(self._split, cell_state), state
            )
            return output, state, self._embedding_fn(output.predicted_ids), state.finished

    def _chosen(
        self, logits: tf.Tensor, cell_state: Any, before: BeamSearchDecoderState
    ) -> tuple[BeamSearchDecoderOutput, BeamSearchDecoderState]:
        count = logits.shape[-1] or tf.shape(logits)[-1]
        ended = before.finished[:, :, tf.newaxis]
        # A sequence that has ended continues only with the end token.
        only_end = tf.one_hot(
            self._end_token, count, on_value=0.0, off_value=logits.dtype.min, dtype=logits.dtype
        )
        log_probs = tf.where(ended, only_end, tf.nn.log_softmax(logits))
        total = before.log_probs[:, :, tf.newaxis] + log_probs
        longer = tf.one_hot(self._end_token, count, on_value=0, off_value=1, dtype=tf.int64)
        lengths = before.lengths[:, :, tf.newaxis] + tf.where(ended, tf.zeros_like(longer), longer)
        # As in contrib, the end token does not count in the length that a score uses, but does in the state's
        # `lengths`.
        weight = tf.cast(self._length_weight, logits.dtype)
        scores = total / tf.pow((5.0 + tf.cast(lengths, logits.dtype)) / 6.0, weight)
        # One choice among all continuations of all beams: place 7 of 2 beams and 5 ids is id 2 of beam 1. It uses the
        # scores, which include the length penalty; `log_probs` continues without it, or it would count again in each
        # step.
        flat = tf.reshape(scores, [self._batch_size, -1])
        best, places = tf.math.top_k(flat, self._beam_width)
        known = tf.get_static_value(self._batch_size)
        for each in (best, places):
            each.set_shape([known, self._beam_width])
        ids, parents = places % count, places // count

        def of_parents(values: Any) -> Any:
            if isinstance(values, tf.TensorArray) or values.shape.rank < 2:
                return values
            return tf.gather(values, parents, axis=1, batch_dims=1)

        was_finished = of_parents(before.finished)
        by_row = tf.reshape(total, [self._batch_size, -1])
        log_probs = tf.ensure_shape(
            tf.gather(by_row, places, axis=1, batch_dims=1), [known, self._beam_width]
        )
        state = BeamSearchDecoderState(
            cell_state=tf.nest.map_structure(of_parents, cell_state),
            log_probs=log_probs,
            finished=tf.logical_or(was_finished, tf.equal(ids, self._end_token)),
            lengths=of_parents(before.lengths) + tf.cast(tf.logical_not(was_finished), tf.int64),
            accumulated_attention_probs=(),
        )
        return BeamSearchDecoderOutput(best, ids, parents), state

    def finalize(self, outputs: Any, final_state: Any, sequence_lengths: Any) -> tuple[Any, Any]:
        """Returns the sequences and the unchanged state."""
        del sequence_lengths
        longest = tf.reduce_max(final_state.lengths, 1)
        found = gather_tree(outputs.predicted_ids, outputs.parent_ids, longest, self._end_token)
        return FinalBeamSearchDecoderOutput(found, outputs), final_state
