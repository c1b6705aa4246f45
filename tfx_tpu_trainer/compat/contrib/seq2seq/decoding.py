"""Implements decoders and the loop that runs them."""

import abc
import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer.compat.contrib.seq2seq.helpers import Helper

v1 = tf.compat.v1


class BasicDecoderOutput(NamedTuple):
    """The output of a `BasicDecoder`.

    Attributes:
        rnn_output: The cell's output, or the output layer's.
        sample_id: The helper's sample.
    """

    rnn_output: Any
    sample_id: Any


class Decoder(abc.ABC):
    """A decoder for `dynamic_decode`."""

    @property
    @abc.abstractmethod
    def batch_size(self) -> Any:
        """The number of rows."""

    @property
    @abc.abstractmethod
    def output_size(self) -> Any:
        """The sizes of a row's outputs, in their structure."""

    @property
    @abc.abstractmethod
    def output_dtype(self) -> Any:
        """The outputs' types."""

    @abc.abstractmethod
    def initialize(self, name: str | None = None) -> tuple[Any, Any, Any]:
        """Returns which rows have ended, the first inputs, and the first state."""

    @abc.abstractmethod
    def step(
        self, time: Any, inputs: Any, state: Any, name: str | None = None
    ) -> tuple[Any, Any, Any, Any]:
        """Returns the outputs, the next state, the next inputs, and which rows have ended."""

    def finalize(self, outputs: Any, final_state: Any, sequence_lengths: Any) -> tuple[Any, Any]:
        """Returns the outputs and the state, as they leave the loop."""
        raise NotImplementedError

    @property
    def tracks_own_finished(self) -> bool:
        """Whether finished rows may continue; the decoder then reports them at each step."""
        return False


class BasicDecoder(Decoder):
    """A decoder with a cell and a helper that makes its inputs."""

    def __init__(
        self, cell: Any, helper: Helper, initial_state: Any, output_layer: Any = None
    ) -> None:
        if not isinstance(helper, Helper):
            raise TypeError(
                f"helper must be one of tfx_tpu_trainer.compat.contrib.seq2seq's; got {helper!r}."
            )
        self._cell, self._helper = cell, helper
        self._initial_state, self._output_layer = initial_state, output_layer

    @property
    def batch_size(self) -> Any:
        """The number of rows."""
        return self._helper.batch_size

    def _rnn_output_size(self) -> Any:
        size = self._cell.output_size
        if self._output_layer is None:
            return size
        shapes = tf.nest.map_structure(lambda each: tf.TensorShape([None]).concatenate(each), size)
        shapes = self._output_layer.compute_output_shape(shapes)
        return tf.nest.map_structure(lambda each: each[1:], shapes)

    @property
    def output_size(self) -> BasicDecoderOutput:
        """The sizes of a row's outputs."""
        return BasicDecoderOutput(self._rnn_output_size(), self._helper.sample_ids_shape)

    @property
    def output_dtype(self) -> BasicDecoderOutput:
        """The outputs' types."""
        dtype = tf.nest.flatten(self._initial_state)[0].dtype
        return BasicDecoderOutput(
            tf.nest.map_structure(lambda _: dtype, self._rnn_output_size()),
            self._helper.sample_ids_dtype,
        )

    def initialize(self, name: str | None = None) -> tuple[Any, Any, Any]:
        """Returns which rows have ended, the first inputs, and the first state."""
        del name
        return (*self._helper.initialize(), self._initial_state)

    def step(
        self, time: Any, inputs: Any, state: Any, name: str | None = None
    ) -> tuple[Any, Any, Any, Any]:
        """Returns the outputs, the next state, the next inputs, and which rows have ended."""
        with v1.name_scope(name, "BasicDecoderStep"):
            outputs, state = self._cell(inputs, state)
            if self._output_layer is not None:
                outputs = self._output_layer(outputs)
            samples = self._helper.sample(time=time, outputs=outputs, state=state)
            finished, inputs, state = self._helper.next_inputs(
                time=time, outputs=outputs, state=state, sample_ids=samples
            )
        return BasicDecoderOutput(outputs, samples), state, inputs, finished


def dynamic_decode(
    decoder: Decoder,
    output_time_major: bool = False,
    impute_finished: bool = False,
    maximum_iterations: Any = None,
    parallel_iterations: int = 32,
    swap_memory: bool = False,
    scope: Any = None,
    **kwargs: Any,
) -> tuple[Any, Any, tf.Tensor]:
    """Runs a decoder until all rows have ended."""
    del kwargs
    if not isinstance(decoder, Decoder):
        raise TypeError(f"dynamic_decode takes a Decoder; got {type(decoder)}.")
    with v1.variable_scope(scope, "decoder"):
        finished, inputs, state = decoder.initialize()
        if maximum_iterations is not None:
            maximum_iterations = tf.convert_to_tensor(maximum_iterations, tf.int32)
            finished = tf.logical_or(finished, maximum_iterations <= 0)
        known = tf.get_static_value(tf.convert_to_tensor(decoder.batch_size))

        def shape_of(size: Any) -> tf.TensorShape:
            row = tf.TensorShape(size) if not isinstance(size, int) else tf.TensorShape([size])
            return tf.TensorShape([known]).concatenate(row)

        steps = 0 if maximum_iterations is None else maximum_iterations
        outputs = tf.nest.map_structure(
            lambda size, dtype: tf.TensorArray(
                dtype,
                steps,
                dynamic_size=maximum_iterations is None,
                element_shape=shape_of(size),
                clear_after_read=False,
            ),
            decoder.output_size,
            decoder.output_dtype,
        )

        def going_on(
            time: Any, outputs: Any, state: Any, inputs: Any, finished: Any, lengths: Any
        ) -> Any:
            del time, outputs, state, inputs, lengths
            return tf.logical_not(tf.reduce_all(finished))

        def step(
            time: Any, outputs: Any, state: Any, inputs: Any, finished: Any, lengths: Any
        ) -> Any:
            made, next_state, next_inputs, ended = decoder.step(time, inputs, state)
            if not decoder.tracks_own_finished:
                ended = tf.logical_or(ended, finished)
            # From the state before this step: the step in which a row ends still counts.
            lengths = tf.where(finished, lengths, time + 1)
            if impute_finished:
                made = tf.nest.map_structure(
                    lambda each: _where(finished, tf.zeros_like(each), each), made
                )
                next_state = tf.nest.map_structure(
                    lambda new, old: _where(finished, old, new), next_state, state
                )
            outputs = tf.nest.map_structure(lambda each, row: each.write(time, row), outputs, made)
            return time + 1, outputs, next_state, next_inputs, ended, lengths

        time, outputs, state, _, _, lengths = v1.while_loop(
            going_on,
            step,
            (tf.constant(0), outputs, state, inputs, finished, tf.zeros_like(finished, tf.int32)),
            parallel_iterations=parallel_iterations,
            maximum_iterations=maximum_iterations,
            swap_memory=swap_memory,
        )
        # With a limit there is room for all steps; only those that ran are returned.
        made = tf.nest.map_structure(lambda each: each.stack()[:time], outputs)
        with contextlib.suppress(NotImplementedError):
            made, state = decoder.finalize(made, state, lengths)
        if not output_time_major:
            made = tf.nest.map_structure(_batch_first, made)
    return made, state, lengths


def _where(condition: tf.Tensor, values: Any, others: Any) -> Any:
    """Chooses row by row; values without rows are always the new ones."""
    if isinstance(values, tf.TensorArray) or others.shape.rank == 0:
        return others
    others.set_shape(values.shape)
    shape = [-1] + [1] * (values.shape.rank - 1)
    return tf.where(tf.reshape(condition, shape), values, others)


def _batch_first(values: tf.Tensor) -> tf.Tensor:
    if values.shape.rank is not None and values.shape.rank < 2:
        return values
    return tf.transpose(values, [1, 0, *range(2, values.shape.rank)])


def sequence_loss(
    logits: Any,
    targets: Any,
    weights: Any,
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    sum_over_timesteps: bool = False,
    sum_over_batch: bool = False,
    softmax_loss_function: Callable[..., tf.Tensor] | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """Computes the cross-entropy of sequences, with a weight for each place."""
    for given, rank, label in (
        (logits, 3, "logits"),
        (targets, 2, "targets"),
        (weights, 2, "weights"),
    ):
        if len(given.shape) != rank:
            raise ValueError(f"sequence_loss takes {label} of {rank} axes; got {given.shape}.")
    if (average_across_timesteps and sum_over_timesteps) or (
        average_across_batch and sum_over_batch
    ):
        raise ValueError(
            "An axis is averaged or summed, not both: set average_across_... to False for "
            "sum_over_timesteps or sum_over_batch."
        )
    with v1.name_scope(name, "sequence_loss", [logits, targets, weights]):
        function = softmax_loss_function or tf.nn.sparse_softmax_cross_entropy_with_logits
        flat = function(
            labels=tf.reshape(targets, [-1]), logits=tf.reshape(logits, [-1, tf.shape(logits)[2]])
        )
        losses = tf.reshape(flat * tf.reshape(weights, [-1]), tf.shape(logits)[:2])
        if average_across_timesteps and average_across_batch:
            axes, averaged = [0, 1], True
        elif sum_over_timesteps and sum_over_batch:
            axes, averaged = [0, 1], False
        elif average_across_timesteps or average_across_batch:
            axes, averaged = [0 if average_across_batch else 1], True
        elif sum_over_timesteps or sum_over_batch:
            axes, averaged = [0 if sum_over_batch else 1], False
        else:
            return losses
        # As in contrib, a sum is divided, too: by the number of nonzero weights.
        if averaged:
            count = tf.reduce_sum(weights, axes)
        else:
            count = tf.math.count_nonzero(weights, axes, dtype=losses.dtype)
        return tf.math.divide_no_nan(tf.reduce_sum(losses, axes), count)


def tile_batch(t: Any, multiplier: int, name: str | None = None) -> Any:
    """Repeats each row, so copies of a row follow each other."""
    with v1.name_scope(name, "tile_batch"):
        return tf.nest.map_structure(lambda each: _tiled(each, multiplier), t)


def _tiled(each: Any, multiplier: int) -> tf.Tensor:
    each = tf.convert_to_tensor(each)
    if not each.shape.rank:
        raise ValueError(f"tile_batch needs tensors of known rank with rows; got {each.shape}.")
    repeated = tf.repeat(each, multiplier, axis=0)
    rows = each.shape[0]
    repeated.set_shape([None if rows is None else rows * multiplier, *each.shape[1:]])
    return repeated


def hardmax(logits: Any, name: str | None = None) -> tf.Tensor:
    """Puts 1 at the greatest value of the last axis, and 0 elsewhere."""
    with v1.name_scope(name, "Hardmax", [logits]):
        logits = tf.convert_to_tensor(logits)
        return tf.one_hot(tf.argmax(logits, -1), logits.shape[-1], dtype=logits.dtype)
