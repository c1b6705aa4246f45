"""Provides recurrent cells that `tf.compat.v1.nn.rnn_cell` lacks, with contrib's variables.

They are Keras 2 layers, as all cells of TensorFlow 1 are: TensorFlow 2.16 has them with TF_USE_LEGACY_KERAS=1.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.imports import without_notice
from tfx_tpu_trainer.compat.contrib.layers.normalization import layer_norm as normalize

v1 = tf.compat.v1
_State = tuple[Any, Any]

__all__ = [
    "InputProjectionWrapper",
    "LSTMBlockCell",
    "LayerNormBasicLSTMCell",
    "OutputProjectionWrapper",
    "stack_bidirectional_dynamic_rnn",
]


def rnn_cells() -> Any:
    """Returns `tf.compat.v1.nn.rnn_cell`."""
    cells = tf.compat.v1.nn.rnn_cell
    try:
        assert cells.RNNCell
    except (AttributeError, ImportError) as error:
        raise ImportError(
            "Recurrent cells of TensorFlow 1 are Keras 2 layers: install tf-keras, and set TF_USE_LEGACY_KERAS=1 "
            "before tf.keras is used."
        ) from error
    return cells


_cells = rnn_cells()


class _LstmCell(_cells.RNNCell):
    """A cell whose state is a pair of vectors, each with one value per unit."""

    _num_units: int

    @property
    def state_size(self) -> Any:
        """The sizes of the cell's state and of the output."""
        return _cells.LSTMStateTuple(self._num_units, self._num_units)

    @property
    def output_size(self) -> int:
        """The size of the output."""
        return self._num_units


class LSTMBlockCell(_LstmCell):
    """An LSTM cell with the variables of contrib's, which was a single op."""

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        dtype: Any = None,
        reuse: bool | None = None,
        name: str = "lstm_cell",
    ) -> None:
        super().__init__(_reuse=reuse, dtype=dtype, name=name)
        self._num_units, self._forget_bias = num_units, forget_bias
        self._cell_clip, self._use_peephole = cell_clip, use_peephole

    def build(self, inputs_shape: Any) -> None:
        """Makes the variables."""
        size = tf.TensorShape(inputs_shape)[-1]
        if size is None:
            raise ValueError(f"The inputs' last size must be known; the shape is {inputs_shape}.")
        units = self._num_units
        self._kernel = self.add_weight("kernel", [size + units, 4 * units])
        self._bias = self.add_weight("bias", [4 * units], initializer=v1.zeros_initializer())
        names = ("w_i_diag", "w_f_diag", "w_o_diag") if self._use_peephole else ()
        self._diagonals = [self.add_weight(name, [units]) for name in names]
        self.built = True

    @tf.autograph.experimental.do_not_convert
    def call(self, inputs: tf.Tensor, state: _State) -> tuple[tf.Tensor, Any]:
        """Makes a step."""
        before, output = state
        gates = tf.nn.bias_add(tf.matmul(tf.concat([inputs, output], 1), self._kernel), self._bias)
        # The order of contrib's op. In another order a checkpoint's kernel would fit, with mixed-up columns.
        enter, candidate, forget, leave = tf.split(gates, 4, 1)
        if self._use_peephole:
            enter += before * self._diagonals[0]
            forget += before * self._diagonals[1]
        after = tf.sigmoid(forget + self._forget_bias) * before
        after += tf.sigmoid(enter) * tf.tanh(candidate)
        if self._cell_clip is not None and self._cell_clip > 0:
            after = tf.clip_by_value(after, -self._cell_clip, self._cell_clip)
        if self._use_peephole:
            leave += after * self._diagonals[2]
        output = tf.sigmoid(leave) * tf.tanh(after)
        return output, _cells.LSTMStateTuple(after, output)


class LayerNormBasicLSTMCell(_LstmCell):
    """An LSTM cell with layer normalization of gates and state, and dropout of the state's input."""

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        input_size: Any = None,
        activation: Callable[[tf.Tensor], tf.Tensor] = tf.tanh,
        layer_norm: bool = True,
        norm_gain: float = 1.0,
        norm_shift: float = 0.0,
        dropout_keep_prob: Any = 1.0,
        dropout_prob_seed: int | None = None,
        reuse: bool | None = None,
    ) -> None:
        del input_size
        super().__init__(_reuse=reuse)
        self._num_units, self._forget_bias, self._activation = num_units, forget_bias, activation
        self._layer_norm, self._gain, self._shift = layer_norm, norm_gain, norm_shift
        self._keep_prob, self._seed = dropout_keep_prob, dropout_prob_seed

    def _norm(self, values: tf.Tensor, scope: str) -> tf.Tensor:
        if not self._layer_norm:
            return values
        # `layer_norm` takes no initial values: the variables are made here, and it reuses them.
        shape = values.shape[-1:]
        with v1.variable_scope(scope):
            for name, value in (("gamma", self._gain), ("beta", self._shift)):
                start = v1.constant_initializer(value)
                v1.get_variable(name, shape, values.dtype, initializer=start)
        return normalize(values, reuse=True, scope=scope)

    @tf.autograph.experimental.do_not_convert
    def call(self, inputs: tf.Tensor, state: _State) -> tuple[tf.Tensor, Any]:
        """Makes a step."""
        before, output = state
        given = tf.concat([inputs, output], 1)
        kernel = v1.get_variable("kernel", [given.shape[-1], 4 * self._num_units], given.dtype)
        gates = tf.matmul(given, kernel)
        if not self._layer_norm:
            gates = tf.nn.bias_add(
                gates, v1.get_variable("bias", [4 * self._num_units], given.dtype)
            )
        names = ("input", "transform", "forget", "output")
        enter, candidate, forget, leave = (
            self._norm(each, name) for each, name in zip(tf.split(gates, 4, 1), names)
        )
        candidate = self._activation(candidate)
        # A tensor's value may be below 1 in some steps.
        if not isinstance(self._keep_prob, float) or self._keep_prob < 1:
            candidate = tf.nn.dropout(candidate, 1 - self._keep_prob, seed=self._seed)
        after = before * tf.sigmoid(forget + self._forget_bias) + tf.sigmoid(enter) * candidate
        after = self._norm(after, "state")
        output = self._activation(after) * tf.sigmoid(leave)
        return output, _cells.LSTMStateTuple(after, output)


class _Projection(_cells.RNNCell):
    """A cell with a dense projection (`kernel`, `bias`) before or after it."""

    def __init__(
        self, cell: Any, size: int, activation: Callable[[tf.Tensor], tf.Tensor] | None, reuse: Any
    ) -> None:
        super().__init__(_reuse=reuse)
        self._cell, self._size, self._activation = cell, size, activation

    @property
    def state_size(self) -> Any:
        """The sizes of the cell's state."""
        return self._cell.state_size

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """Returns the cell's first state."""
        return self._cell.zero_state(batch_size, dtype)

    def _projected(self, values: tf.Tensor) -> tf.Tensor:
        kernel = v1.get_variable("kernel", [values.shape[-1], self._size], values.dtype)
        bias = v1.get_variable(
            "bias", [self._size], values.dtype, initializer=v1.zeros_initializer()
        )
        projected = tf.nn.bias_add(tf.matmul(values, kernel), bias)
        return projected if self._activation is None else self._activation(projected)


class InputProjectionWrapper(_Projection):
    """A cell with projected inputs."""

    def __init__(
        self,
        cell: Any,
        num_proj: int,
        activation: Callable[[tf.Tensor], tf.Tensor] | None = None,
        input_size: Any = None,
        reuse: bool | None = None,
    ) -> None:
        del input_size
        super().__init__(cell, num_proj, activation, reuse)

    @property
    def output_size(self) -> Any:
        """The size of the output."""
        return self._cell.output_size

    @tf.autograph.experimental.do_not_convert
    def call(self, inputs: tf.Tensor, state: Any) -> tuple[tf.Tensor, Any]:
        """Makes a step."""
        return self._cell(self._projected(inputs), state)


class OutputProjectionWrapper(_Projection):
    """A cell with a projected output."""

    def __init__(
        self,
        cell: Any,
        output_size: int,
        activation: Callable[[tf.Tensor], tf.Tensor] | None = None,
        reuse: bool | None = None,
    ) -> None:
        super().__init__(cell, output_size, activation, reuse)

    @property
    def output_size(self) -> int:
        """The size of the output."""
        return self._size

    @tf.autograph.experimental.do_not_convert
    def call(self, inputs: tf.Tensor, state: Any) -> tuple[tf.Tensor, Any]:
        """Makes a step."""
        output, new = self._cell(inputs, state)
        return self._projected(output), new


def stack_bidirectional_dynamic_rnn(
    cells_fw: Sequence[Any],
    cells_bw: Sequence[Any],
    inputs: tf.Tensor,
    initial_states_fw: Sequence[Any] | None = None,
    initial_states_bw: Sequence[Any] | None = None,
    dtype: Any = None,
    sequence_length: Any = None,
    parallel_iterations: int | None = None,
    time_major: bool = False,
    scope: Any = None,
    swap_memory: bool = False,
) -> tuple[tf.Tensor, tuple[Any, ...], tuple[Any, ...]]:
    """Stacks bidirectional layers; each reads the outputs of the one below."""
    count = len(cells_fw)
    lists = (cells_fw, cells_bw, initial_states_fw, initial_states_bw)
    if not count or any(each is not None and len(each) != count for each in lists):
        lengths = [None if each is None else len(each) for each in lists]
        raise ValueError(f"Cells and states are lists of one length, 1 or more; got {lengths}.")
    states: list[_State] = []
    with v1.variable_scope(scope or "stack_bidirectional_rnn"):
        for layer in range(count):
            with v1.variable_scope(f"cell_{layer}"):
                outputs, last = without_notice(v1.nn.bidirectional_dynamic_rnn)(
                    cells_fw[layer],
                    cells_bw[layer],
                    inputs,
                    initial_state_fw=initial_states_fw[layer] if initial_states_fw else None,
                    initial_state_bw=initial_states_bw[layer] if initial_states_bw else None,
                    sequence_length=sequence_length,
                    parallel_iterations=parallel_iterations,
                    dtype=dtype,
                    swap_memory=swap_memory,
                    time_major=time_major,
                )
                inputs = tf.concat(outputs, 2)
            states.append(last)
    return inputs, tuple(each[0] for each in states), tuple(each[1] for each in states)
