"""Provides cells that read the variables of cuDNN's layers on any device, with contrib's names.

They are Keras 2 layers, as all cells of TensorFlow 1 are: TensorFlow 2.16 has them with TF_USE_LEGACY_KERAS=1.
"""

from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.compat.contrib.rnn import LSTMBlockCell, rnn_cells

v1 = tf.compat.v1
_cells = rnn_cells()

__all__ = ["CudnnCompatibleGRUCell", "CudnnCompatibleLSTMCell"]


class CudnnCompatibleLSTMCell(LSTMBlockCell):
    """An LSTM cell that reads a `CudnnLSTM`'s variables."""

    def __init__(self, num_units: int, reuse: bool | None = None) -> None:
        super().__init__(num_units, 0.0, reuse=reuse, name="cudnn_compatible_lstm_cell")


class CudnnCompatibleGRUCell(_cells.RNNCell):
    """A GRU cell that reads a `CudnnGRU`'s variables."""

    def __init__(
        self, num_units: int, reuse: bool | None = None, kernel_initializer: Any = None
    ) -> None:
        super().__init__(_reuse=reuse)
        self._units, self._kernels = num_units, kernel_initializer

    @property
    def state_size(self) -> int:
        """The size of the state."""
        return self._units

    @property
    def output_size(self) -> int:
        """The size of the output."""
        return self._units

    def build(self, inputs_shape: Any) -> None:
        """Makes the variables."""
        size, units = tf.TensorShape(inputs_shape)[-1], self._units
        if size is None:
            raise ValueError(f"The inputs' last size must be known; the shape is {inputs_shape}.")

        def weights(name: str, shape: list[int]) -> Any:
            return self.add_weight(f"{name}/kernel", shape, initializer=self._kernels)

        def bias(name: str, count: int, value: float) -> Any:
            start = v1.constant_initializer(value)
            return self.add_weight(f"{name}/bias", [count], initializer=start)

        self._gates = weights("gates", [size + units, 2 * units]), bias("gates", 2 * units, 1.0)
        entering = weights("candidate/input_projection", [size, units])
        staying = weights("candidate/hidden_projection", [units, units])
        self._entering = entering, bias("candidate/input_projection", units, 0.0)
        self._staying = staying, bias("candidate/hidden_projection", units, 0.0)
        self.built = True

    @tf.autograph.experimental.do_not_convert
    def call(self, inputs: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Makes a step."""

        def product(values: tf.Tensor, pair: tuple[Any, Any]) -> tf.Tensor:
            return tf.nn.bias_add(tf.matmul(values, pair[0]), pair[1])

        gates = tf.sigmoid(product(tf.concat([inputs, state], 1), self._gates))
        reset, update = tf.split(gates, 2, 1)
        candidate = tf.tanh(product(inputs, self._entering) + reset * product(state, self._staying))
        output = (1.0 - update) * candidate + update * state
        return output, output
