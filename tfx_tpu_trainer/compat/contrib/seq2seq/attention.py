"""Implements attention over a memory, and the cell that applies it.

Their layers are Keras 2's, as all cells of TensorFlow 1 are: TensorFlow 2.16 has them with TF_USE_LEGACY_KERAS=1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer.compat.contrib.rnn import rnn_cells

v1 = tf.compat.v1
_cells = rnn_cells()
_Probability = Callable[[tf.Tensor], tf.Tensor]


class AttentionWrapperState(NamedTuple):
    """The state of an `AttentionWrapper`.

    Attributes:
        cell_state: That of the cell.
        attention: The last step's attention.
        time: The number of steps.
        alignments: The last step's weights for the memory.
        alignment_history: Those of all steps, a `TensorArray`; `()` if they are not kept.
        attention_state: That of the mechanism.
    """

    cell_state: Any
    attention: Any
    time: Any
    alignments: Any
    alignment_history: Any
    attention_state: Any

    def clone(self, **kwargs: Any) -> AttentionWrapperState:
        """Returns a state with other values."""
        return self._replace(**kwargs)


class AttentionMechanism:
    """The attention of an `AttentionWrapper`."""


class _OfMemory(AttentionMechanism):
    """Weighs the places of a memory for a query."""

    def __init__(
        self,
        memory: Any,
        memory_layer: Any,
        *,
        query_layer: Any = None,
        probability_fn: _Probability | None = None,
        memory_sequence_length: Any = None,
        score_mask_value: float | None = None,
        custom_key_value_fn: Callable[[Any, Any], tuple[Any, Any]] | None = None,
        name: str | None = None,
    ) -> None:
        with v1.name_scope(name, "AttentionMechanismInit"):
            memory = tf.convert_to_tensor(memory)
            self._mask = None
            self.values = memory
            if memory_sequence_length is not None:
                self._mask = tf.sequence_mask(memory_sequence_length, tf.shape(memory)[1])
                self.values = memory * tf.cast(self._mask, memory.dtype)[:, :, tf.newaxis]
            self.query_layer, self.memory_layer = query_layer, memory_layer
            self.keys = memory_layer(self.values)
            if custom_key_value_fn is not None:
                self.keys, self.values = custom_key_value_fn(self.keys, self.values)
            self._probability_fn = probability_fn or tf.nn.softmax
            self._masked = -math.inf if score_mask_value is None else score_mask_value

    @property
    def dtype(self) -> Any:
        """The keys' type."""
        return self.keys.dtype

    @property
    def batch_size(self) -> Any:
        """The number of rows."""
        return self.keys.shape[0] or tf.shape(self.keys)[0]

    @property
    def alignments_size(self) -> Any:
        """The length of the memory."""
        return self.keys.shape[1] or tf.shape(self.keys)[1]

    state_size = alignments_size

    def initial_alignments(self, batch_size: Any, dtype: Any) -> tf.Tensor:
        """Returns the weights before the first step: zeros."""
        zeros = tf.zeros([batch_size, self.alignments_size], dtype)
        zeros.set_shape([None, self.keys.shape[1]])
        return zeros

    initial_state = initial_alignments

    def _weights(self, scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if self._mask is not None:
            # A score of -inf has the weight 0 after the softmax.
            scores = tf.where(self._mask, scores, self._masked * tf.ones_like(scores))
        # The state of these mechanisms is the weights of the last step.
        weights = self._probability_fn(scores)
        return weights, weights


class LuongAttention(_OfMemory):
    """Scores by a product of query and keys."""

    def __init__(
        self,
        num_units: int,
        memory: Any,
        memory_sequence_length: Any = None,
        scale: bool = False,
        probability_fn: _Probability | None = None,
        score_mask_value: float | None = None,
        dtype: Any = None,
        custom_key_value_fn: Callable[[Any, Any], tuple[Any, Any]] | None = None,
        name: str = "LuongAttention",
    ) -> None:
        layer = v1.layers.Dense(
            num_units, name="memory_layer", use_bias=False, dtype=dtype or tf.float32
        )
        super().__init__(
            memory,
            layer,
            probability_fn=probability_fn,
            memory_sequence_length=memory_sequence_length,
            score_mask_value=score_mask_value,
            custom_key_value_fn=custom_key_value_fn,
            name=name,
        )
        self._scale = scale

    def __call__(self, query: tf.Tensor, state: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the weights, which are also the next state."""
        del state
        with v1.variable_scope(None, "luong_attention", [query]):
            scores = tf.squeeze(tf.matmul(query[:, tf.newaxis], self.keys, transpose_b=True), 1)
            if self._scale:
                ones = v1.ones_initializer()
                scores *= v1.get_variable("attention_g", [], query.dtype, initializer=ones)
        return self._weights(scores)


class BahdanauAttention(_OfMemory):
    """Scores by a tanh of the sum of query and keys."""

    def __init__(
        self,
        num_units: int,
        memory: Any,
        memory_sequence_length: Any = None,
        normalize: bool = False,
        probability_fn: _Probability | None = None,
        score_mask_value: float | None = None,
        dtype: Any = None,
        custom_key_value_fn: Callable[[Any, Any], tuple[Any, Any]] | None = None,
        name: str = "BahdanauAttention",
    ) -> None:
        dtype = dtype or tf.float32
        super().__init__(
            memory,
            v1.layers.Dense(num_units, name="memory_layer", use_bias=False, dtype=dtype),
            query_layer=v1.layers.Dense(num_units, name="query_layer", use_bias=False, dtype=dtype),
            probability_fn=probability_fn,
            memory_sequence_length=memory_sequence_length,
            score_mask_value=score_mask_value,
            custom_key_value_fn=custom_key_value_fn,
            name=name,
        )
        self._num_units, self._normalize = num_units, normalize

    def __call__(self, query: tf.Tensor, state: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the weights, which are also the next state."""
        del state
        units = self._num_units
        with v1.variable_scope(None, "bahdanau_attention", [query]):
            total = self.query_layer(query)[:, tf.newaxis] + self.keys
            vector = v1.get_variable("attention_v", [units], query.dtype)
            if self._normalize:
                start = v1.constant_initializer(math.sqrt(1.0 / units))
                gain = v1.get_variable("attention_g", [], query.dtype, initializer=start)
                bias = v1.get_variable(
                    "attention_b", [units], query.dtype, initializer=v1.zeros_initializer()
                )
                length = tf.math.rsqrt(tf.reduce_sum(tf.square(vector)))
                vector, total = gain * vector * length, total + bias
            scores = tf.reduce_sum(vector * tf.tanh(total), 2)
        return self._weights(scores)


class AttentionWrapper(_cells.RNNCell):
    """A cell that attends to one memory or several."""

    def __init__(
        self,
        cell: Any,
        attention_mechanism: Any,
        attention_layer_size: Any = None,
        alignment_history: bool = False,
        cell_input_fn: Callable[[Any, Any], Any] | None = None,
        output_attention: bool = True,
        initial_cell_state: Any = None,
        name: str | None = None,
        attention_layer: Any = None,
        attention_fn: Callable[..., Any] | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self._is_multi = isinstance(attention_mechanism, (list, tuple))
        mechanisms = list(attention_mechanism) if self._is_multi else [attention_mechanism]
        for each in mechanisms:
            if not isinstance(each, AttentionMechanism):
                raise TypeError(f"attention_mechanism must be an AttentionMechanism; got {each!r}.")
        if attention_layer_size is not None and attention_layer is not None:
            raise ValueError("Give attention_layer_size or attention_layer, not both.")
        given = attention_layer_size if attention_layer is None else attention_layer
        layers: list[Any] = [None] * len(mechanisms)
        if given is not None:
            layers = list(given) if isinstance(given, (list, tuple)) else [given]
            if len(layers) != len(mechanisms):
                raise ValueError(
                    f"Got {len(mechanisms)} mechanisms, but {len(layers)} attention layers; give "
                    "one layer per mechanism."
                )
        depths = [int(each.values.shape[-1]) for each in mechanisms]
        if attention_layer_size is not None:
            sizes = [int(each) for each in layers]
            layers = [
                v1.layers.Dense(size, name="attention_layer", use_bias=False, dtype=each.dtype)
                for size, each in zip(sizes, mechanisms)
            ]
        else:
            sizes = [
                depth
                if layer is None
                else int(layer.compute_output_shape([None, cell.output_size + depth])[-1])
                for layer, depth in zip(layers, depths)
            ]
        self._cell, self._mechanisms, self._attention_layers = cell, mechanisms, layers
        self._attention_size, self._keeps_history = sum(sizes), alignment_history
        self._cell_input_fn = cell_input_fn or (
            lambda inputs, other: tf.concat([inputs, other], -1)
        )
        self._output_attention, self._attention_fn = output_attention, attention_fn or _attend
        self._initial_cell_state = initial_cell_state

    def _one_or_all(self, values: Any) -> Any:
        return tuple(values) if self._is_multi else next(iter(values))

    @property
    def output_size(self) -> Any:
        """The size of the output."""
        return self._attention_size if self._output_attention else self._cell.output_size

    @property
    def state_size(self) -> AttentionWrapperState:
        """The sizes of the state."""
        lengths = [each.alignments_size for each in self._mechanisms]
        return AttentionWrapperState(
            cell_state=self._cell.state_size,
            time=tf.TensorShape([]),
            attention=self._attention_size,
            alignments=self._one_or_all(lengths),
            attention_state=self._one_or_all(each.state_size for each in self._mechanisms),
            alignment_history=self._one_or_all(
                each if self._keeps_history else () for each in lengths
            ),
        )

    def zero_state(self, batch_size: Any, dtype: Any) -> AttentionWrapperState:
        """Returns the first state."""
        with v1.name_scope("AttentionWrapperZeroState"):
            cell_state = self._initial_cell_state
            if cell_state is None:
                cell_state = self._cell.zero_state(batch_size, dtype)
            weights = [each.initial_alignments(batch_size, dtype) for each in self._mechanisms]
            return AttentionWrapperState(
                cell_state=tf.nest.map_structure(tf.identity, cell_state),
                time=tf.zeros([], tf.int32),
                attention=tf.zeros([batch_size, self._attention_size], dtype),
                alignments=self._one_or_all(weights),
                attention_state=self._one_or_all(
                    each.initial_state(batch_size, dtype) for each in self._mechanisms
                ),
                alignment_history=self._one_or_all(
                    tf.TensorArray(dtype, 0, dynamic_size=True, element_shape=each.shape)
                    if self._keeps_history
                    else ()
                    for each in weights
                ),
            )

    @tf.autograph.experimental.do_not_convert
    def call(
        self, inputs: tf.Tensor, state: AttentionWrapperState
    ) -> tuple[tf.Tensor, AttentionWrapperState]:
        """Makes a step."""
        if not isinstance(state, AttentionWrapperState):
            raise TypeError(f"The state must be an AttentionWrapperState; got {type(state)}.")
        output, cell_state = self._cell(
            self._cell_input_fn(inputs, state.attention), state.cell_state
        )
        states, histories = (
            each if self._is_multi else [each]
            for each in (state.attention_state, state.alignment_history)
        )
        attentions, weights, new_states, new_histories = [], [], [], []
        for at, mechanism in enumerate(self._mechanisms):
            attention, alignments, new_state = self._attention_fn(
                mechanism, output, states[at], self._attention_layers[at]
            )
            attentions.append(attention)
            weights.append(alignments)
            new_states.append(new_state)
            kept = histories[at].write(state.time, alignments) if self._keeps_history else ()
            new_histories.append(kept)
        attention = tf.concat(attentions, 1)
        new = AttentionWrapperState(
            cell_state=cell_state,
            attention=attention,
            time=state.time + 1,
            alignments=self._one_or_all(weights),
            alignment_history=self._one_or_all(new_histories),
            attention_state=self._one_or_all(new_states),
        )
        return attention if self._output_attention else output, new


def _attend(
    mechanism: Any, output: tf.Tensor, state: Any, layer: Any
) -> tuple[tf.Tensor, tf.Tensor, Any]:
    weights, next_state = mechanism(output, state)
    context = tf.squeeze(tf.matmul(weights[:, tf.newaxis], mechanism.values), 1)
    attention = context if layer is None else layer(tf.concat([output, context], 1))
    return attention, weights, next_state
