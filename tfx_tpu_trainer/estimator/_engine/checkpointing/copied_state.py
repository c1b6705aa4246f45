"""What a saver writes, taken from a session as a copy and written while the session's variables change.

A session call fetches what the saver's `SaveV2` ops read. The ops themselves run in a graph and a session of their own,
on the CPU, with the copy fed in: they share nothing with the training but the process.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream

v1 = tf.compat.v1

# What a tf.compat.v1.train.Saver makes. A graph with anything else is somebody's own.
_OF_SAVERS = frozenset(
    (
        "Const",
        "Identity",
        "MergeV2Checkpoints",
        "Pack",
        "Placeholder",
        "PlaceholderWithDefault",
        "RegexFullMatch",
        "SaveV2",
        "Select",
        "SelectV2",
        "ShardedFilename",
        "StaticRegexFullMatch",
        "StringJoin",
    )
)
# The inputs of a SaveV2 op before those that it writes: a prefix, names, and slices.
_NOT_WRITTEN = 3


class CopiedState:
    """Takes the values that a saver writes, and writes them.

    Attributes:
        size: Bytes of the values.
    """

    @classmethod
    def of(cls, saver: v1.train.Saver, graph: tf.Graph) -> CopiedState | None:
        """Makes the graph that writes."""
        if saver.saver_def is None:
            return None
        save = graph.get_tensor_by_name(saver.saver_def.save_tensor_name)
        saving = [op for op in upstream([save]) if op.type == "SaveV2"]
        written = [tensor for op in saving for tensor in list(op.inputs)[_NOT_WRITTEN:]]
        values = {each.name: each for each in written if each.op.type != "Const"}
        ops = list(upstream([save], given=values.keys()))
        known = {op.type for op in ops} <= _OF_SAVERS
        if not saving or not known or not all(map(_can_be_copied, values.values())):
            return None
        return cls(ops, list(values.values()), graph)

    def __init__(self, ops: list[tf.Operation], values: list[tf.Tensor], graph: tf.Graph) -> None:
        self._values = values
        self.size = sum(each.shape.num_elements() * each.dtype.size for each in values)
        names = {tensor.name: f"copied_value_{at}" for at, tensor in enumerate(values)}
        graph_def = v1.GraphDef(versions=graph.graph_def_versions)
        for tensor in values:
            node = graph_def.node.add(name=names[tensor.name], op="Placeholder")
            node.attr["dtype"].type = tensor.dtype.base_dtype.as_datatype_enum
        for op in ops:
            node = graph_def.node.add()
            node.CopyFrom(op.node_def)
            # Its order is that of the calls below; its place is the CPU.
            node.input[:] = [names.get(tensor.name, tensor.name) for tensor in op.inputs]
            node.device = ""
            node.attr.pop("_class", None)
        with tf.Graph().as_default() as writing:
            v1.import_graph_def(graph_def, name="")
        self._fed = [f"{names[tensor.name]}:0" for tensor in values]
        of_type = {
            kind: [op for op in writing.get_operations() if op.type == kind]
            for kind in ("SaveV2", "MergeV2Checkpoints")
        }
        self._steps = [ops for ops in of_type.values() if ops]
        self._graph = writing

    def take(self, session: v1.Session) -> list[Any]:
        """Returns a copy of the values as they are in a session now."""
        copied: list[Any] = session.run(self._values)
        return copied

    def write(
        self,
        values: list[Any],
        save: Callable[[v1.Session], str | None],
        *,
        before_commit: Callable[[], None],
    ) -> str | None:
        """Writes values."""
        feeds = {}
        for name in self._fed:
            feeds[name] = _aligned(values.pop(0))
        # In a thread of its own a Saver would take itself to be eager but for the block.
        with _WritingSession(self._graph, self._steps, feeds, before_commit) as session:
            return save(session)


class _WritingSession(v1.Session):
    """A session that a Saver saves in, though its graph does not tell what comes after what."""

    def __init__(
        self,
        graph: tf.Graph,
        steps: list[list[tf.Operation]],
        values: dict[str, Any],
        before_commit: Callable[[], None],
    ) -> None:
        config = v1.ConfigProto(device_count={"GPU": 0})
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        super().__init__(graph=graph, config=config)
        self._writing_steps = steps
        self._values_of_state = values
        self._before_commit = before_commit

    def run(
        self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
    ) -> Any:
        # In this thread: the training has the others.
        here = v1.RunOptions(inter_op_thread_pool=-1)
        for step in self._writing_steps:
            if step is self._writing_steps[-1]:
                self._before_commit()
            writes = step is self._writing_steps[0]
            super().run(step, {**feed_dict, **(self._values_of_state if writes else {})}, here)
            self._values_of_state = {}
        return super().run(fetches, feed_dict, here)


def _can_be_copied(tensor: tf.Tensor) -> bool:
    dtype = tensor.dtype.base_dtype
    numbers = dtype.is_floating or dtype.is_integer or dtype.is_complex or dtype.is_bool
    return numbers and tensor.shape.is_fully_defined() and tensor.graph.is_fetchable(tensor)


def _aligned(value: Any) -> Any:
    """Returns a value in memory that TensorFlow uses as it is: fed from any other, there would be two copies."""
    if not isinstance(value, np.ndarray) or value.nbytes < mmap.PAGESIZE:
        return value
    # Pages of its own, which go back to the system with it.
    copy = np.frombuffer(mmap.mmap(-1, value.nbytes), value.dtype).reshape(value.shape)
    np.copyto(copy, value)
    return copy
