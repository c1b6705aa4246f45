"""A host function traced once, so that its result can be copied to wherever its tensors are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._engine.template import HostFunction

v1 = tf.compat.v1

_V1_SUMMARIES = frozenset(
    {
        "ScalarSummary",
        "HistogramSummary",
        "ImageSummary",
        "AudioSummary",
        "TensorSummary",
        "TensorSummaryV2",
        "MergeSummary",
    }
)


class TracedHostFunction:
    """A host function called at the top level of the graph, on placeholders.

    Its variables and summary writers are made there, once; a loop copies only its ops.
    """

    def __init__(
        self,
        host_function: HostFunction,
        *,
        cores: int,
        broadcast: bool,
        full: bool = True,
    ) -> None:
        """Calls the function."""
        self.tensors = tf.nest.flatten(host_function.tensors)
        self._gathered_from = 1 if broadcast else cores
        name = host_function.name
        if not broadcast:
            for tensor in self.tensors:
                _check_has_batch_axis(name, tensor)
        self._placeholders = [
            v1.placeholder(tensor.dtype, _gathered_shape(tensor, self._gathered_from, full))
            for tensor in self.tensors
        ]
        graph = v1.get_default_graph()
        known = len(graph.get_operations())
        self.result = HostFunction(
            name,
            host_function.function,
            tf.nest.pack_sequence_as(host_function.tensors, self._placeholders),
        )()
        for op in graph.get_operations()[known:]:
            if op.type in _V1_SUMMARIES:
                raise ValueError(
                    "Please use tf.contrib.summary instead of tf.summary inside of host_calls. "
                    "Its successor is tf.summary of TensorFlow 2, with "
                    f"tf.summary.create_file_writer: {name} creates a summary of the v1 API "
                    f"({op.name}), which can't be written from TPU cores."
                )

    def fetches(self) -> list[Fetch]:
        """Returns what must be copied of the cores for `gathered`: its tensors, core by core."""
        cores = range(self._gathered_from)
        return [Fetch(core, tensor) for tensor in self.tensors for core in cores]

    def gathered(self, copies: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Puts the cores' tensors one after the other along axis 0, in the order of the cores."""
        n = self._gathered_from
        parts = [copies[start : start + n] for start in range(0, len(copies), n)]
        return [part[0] if n == 1 else tf.concat(part, axis=0) for part in parts]

    def copy(
        self,
        copier: GraphCopier,
        gathered: Sequence[tf.Tensor],
        nodes: Sequence[Any],
        *,
        name: str,
        handles: Mapping[str, tf.Tensor] | None = None,
    ) -> list[Any]:
        """Copies parts of the result into the graph under construction."""
        replaced = {p.name: tensor for p, tensor in zip(self._placeholders, gathered)}
        replaced |= handles or {}
        fetches = [Fetch(0, _as_node(node)) for node in nodes]
        return copier.copy(fetches, replaced=[replaced], name=name)

    def run(
        self,
        copier: GraphCopier,
        gathered: Sequence[tf.Tensor],
        *,
        name: str,
        handles: Mapping[str, tf.Tensor] | None = None,
    ) -> tf.Operation:
        """Copies the whole result into the graph under construction, as one operation."""
        return tf.group(*self.copy(copier, gathered, self._nodes(), name=name, handles=handles))

    def fed(self, values: Sequence[np.ndarray]) -> tuple[list[Any], dict[tf.Tensor, np.ndarray]]:
        """Returns what a session fetches and is fed to run the function where it was called."""
        return self._nodes(), dict(zip(self._placeholders, values))

    def _nodes(self) -> list[Any]:
        return [node for node in tf.nest.flatten(self.result) if node is not None]


def trace_host_function(
    host_function: HostFunction | None, *, cores: int, broadcast: bool, full: bool = True
) -> TracedHostFunction | None:
    """Traces a host function; returns `None` if there is none, or none with a tensor.

    On TPU cores a function without tensors is never called: nothing comes from the cores that
    could start it.
    """
    if host_function is None or not tf.nest.flatten(host_function.tensors):
        return None
    return TracedHostFunction(host_function, cores=cores, broadcast=broadcast, full=full)


def _as_node(value: Any) -> tf.Tensor | tf.Operation:
    """Returns what can be copied of a value: of an update's unread variable, the update."""
    return value.op if isinstance(value, tf.Variable) else value


def _check_has_batch_axis(name: str, tensor: tf.Tensor) -> None:
    if tensor.shape.rank == 0:
        raise RuntimeError(
            "All tensors outfed from TPU should preserve batch size dimension, but got scalar "
            f"{tensor.name} in {name}: give it one with tf.reshape(tensor, [1])."
        )


def _gathered_shape(tensor: tf.Tensor, cores: int, full: bool) -> tf.TensorShape:
    if not tensor.shape.rank:
        return tensor.shape
    shape = tensor.shape.as_list()
    shape[0] = shape[0] * cores if full and shape[0] is not None else None
    return tf.TensorShape(shape)
