"""The memory of embedding cores (TPU v2 to v4), for TensorFlow's `TPUEmbedding` where there is no TPU."""

from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.tpu import tpu
from tensorflow.python.tpu.ops import tpu_ops

_SLOTS = {
    "stochastic_gradient_descent": (),
    "adagrad": ("accumulators",),
    "adam": ("momenta", "velocities"),
    "ftrl": ("accumulators", "linears"),
}


class _Kept:
    """A value in the cores' memory; functions that are traced again can't make a `tf.Variable`."""

    def __init__(self, shape: tf.TensorShape) -> None:
        with tf.init_scope(), tf.device("/device:CPU:0"):
            self._handle = tf.raw_ops.VarHandleOp(
                dtype=tf.float32, shape=shape, shared_name=f"core_memory_{id(self)}"
            )

    def assign(self, value: Any) -> None:
        tf.raw_ops.AssignVariableOp(resource=self._handle, value=tf.cast(value, tf.float32))

    def read_value(self) -> tf.Tensor:
        return tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.float32)

    def numpy(self) -> Any:
        return self.read_value().numpy()


class CoreMemory:
    """Stands in for the ops by which a host sets the cores up, loads tables there and retrieves them.

    They have no kernels without a TPU. TensorFlow's Python code around them is its own.

    Attributes:
        tables: Name of a table -> name of what is kept of it -> the value, as it was loaded.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tables: dict[str, dict[str, _Kept]] = {}
        self._is_set_up = False

        def set_up(*_: Any, **__: Any) -> None:
            self._is_set_up = True

        monkeypatch.setattr(tpu_ops, "is_tpu_embedding_initialized", lambda: self._is_set_up)
        monkeypatch.setattr(tpu, "initialize_system_for_tpu_embedding", set_up)
        for optimizer, slots in _SLOTS.items():
            end = f"tpu_embedding_{optimizer}_parameters"
            monkeypatch.setattr(tpu_ops, f"load_{end}", self._load)
            monkeypatch.setattr(tpu_ops, f"retrieve_{end}", self._retrieval(slots))

    @tf.autograph.experimental.do_not_convert
    def _load(
        self, *, table_name: str, num_shards: int, shard_id: int, config: Any, **values: Any
    ) -> None:
        assert (num_shards, shard_id) == (1, 0)
        if table_name not in self.tables:
            self.tables[table_name] = {name: _Kept(value.shape) for name, value in values.items()}
        kept = self.tables[table_name]
        for name, value in values.items():
            kept[name].assign(value)

    def _retrieval(self, slots: tuple[str, ...]) -> Any:
        @tf.autograph.experimental.do_not_convert
        def retrieve(*, table_name: str, num_shards: int, shard_id: int, config: Any) -> Any:
            kept = self.tables[table_name]
            values = tuple(kept[name].read_value() for name in ("parameters", *slots))
            return values if slots else values[0]

        return retrieve
