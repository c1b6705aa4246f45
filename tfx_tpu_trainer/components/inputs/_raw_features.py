"""Raw features: which of them a prediction needs, and how each is one plain tensor, as a REST request can carry."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_transform as tft

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def needed_raw_features(transform_graph_path: str, label_key: str | None) -> frozenset[str]:
    """Finds the raw features that the transformed features, except for the label, are computed from."""
    output = tft.TFTransformOutput(transform_graph_path)
    with tf.Graph().as_default() as graph:
        examples = tf.compat.v1.placeholder(tf.string, [None])
        raw = tf.io.parse_example(examples, output.raw_feature_spec())
        transformed = output.transform_raw_features(raw)
        wanted = [value for name, value in transformed.items() if name != label_key]
        components = {name: _names(value) for name, value in raw.items()}
        reached = _reached(
            tf.nest.flatten(wanted, expand_composites=True),
            stop=frozenset().union(*components.values()),
            functions=_Functions(graph),
        )
    return frozenset(name for name, names in components.items() if names & reached)


def label_only_raw_features(
    transform_graph_path: str, label_key: str | None, needed: Callable[[], frozenset[str]]
) -> frozenset[str]:
    """Finds the raw features that a serving request need not have."""
    if label_key is None:
        return frozenset()
    spec = tft.TFTransformOutput(transform_graph_path).raw_feature_spec()
    required = {
        name
        for name, feature in spec.items()
        if isinstance(feature, tf.io.FixedLenFeature) and feature.default_value is None
    }
    return frozenset(required - needed())


def _names(value: Any) -> frozenset[str]:
    return frozenset(tensor.name for tensor in tf.nest.flatten(value, expand_composites=True))


def _reached(
    tensors: Iterable[tf.Tensor], *, stop: frozenset[str], functions: _Functions
) -> set[str]:
    """Names the tensors upstream of some; what is upstream of those of `stop` is left out."""
    pending, seen = list(tensors), set()
    while pending:
        tensor = pending.pop()
        if tensor.name in seen:
            continue
        seen.add(tensor.name)
        if tensor.name in stop:
            continue
        op = tensor.op
        if op.type in _CALLS:
            arguments = functions.arguments_of(op.get_attr("f").name, tensor.value_index)
            pending.extend(op.inputs[index] for index in arguments)
        else:
            pending.extend(op.inputs)
        for control in op.control_inputs:
            pending.extend(control.inputs)
    return seen


class _Functions:
    """Functions of a graph: Transform's graph in the format of TensorFlow 2 is a call of one."""

    def __init__(self, graph: tf.Graph) -> None:
        self._by_name: Mapping[str, Any] = {
            function.signature.name: function for function in graph.as_graph_def().library.function
        }
        self.arguments_of = functools.cache(self._arguments_of)

    def _arguments_of(self, name: str, output: int) -> frozenset[int]:
        """Returns the places of the arguments that an output of a function is computed from."""
        function = self._by_name[name]
        places = {arg.name: place for place, arg in enumerate(function.signature.input_arg)}
        nodes = {node.name: node for node in function.node_def}
        pending = [function.ret[function.signature.output_arg[output].name]]
        seen, found = set(pending), set()
        while pending:
            # "argument", "node:output:index" or "^node".
            reference = pending.pop()
            source = reference.removeprefix("^").partition(":")[0]
            if source in places:
                found.add(places[source])
                continue
            inputs = nodes[source].input
            if nodes[source].op in _CALLS and not reference.startswith("^"):
                called = nodes[source].attr["f"].func.name
                index = int(reference.rpartition(":")[2])
                inputs = [inputs[place] for place in self.arguments_of(called, index)]
            pending.extend(each for each in inputs if each not in seen)
            seen.update(inputs)
        return frozenset(found)


MISSING_INTEGER = tf.int64.min
"""Stands for a missing integer; a float that is missing is NaN, a string the empty one."""


def unsupported_features(feature_spec: Mapping[str, Any]) -> list[str]:
    """Names the features that one plain tensor can't carry: SparseFeature and RaggedFeature."""
    plain = (tf.io.FixedLenFeature, tf.io.VarLenFeature)
    return sorted(name for name, feature in feature_spec.items() if not isinstance(feature, plain))


def raw_placeholders(
    feature_spec: Mapping[str, Any], single_valued: frozenset[str]
) -> dict[str, tf.Tensor]:
    """Makes an input for each raw feature in the default graph."""
    placeholders = {}
    for name, feature in feature_spec.items():
        if isinstance(feature, tf.io.FixedLenFeature):
            shape = [None, *feature.shape]
        else:
            shape = [None] if name in single_valued else [None, None]
        # Names of raw features may hold what a name scope can't; the signature keeps them.
        placeholders[name] = tf.compat.v1.placeholder(feature.dtype, shape, name="raw_feature")
    return placeholders


def as_parsed(feature: Any, values: tf.Tensor) -> tf.Tensor | tf.SparseTensor:
    """Returns an input in the form in which `tf.io.parse_example` would give it."""
    if isinstance(feature, tf.io.FixedLenFeature):
        return values
    present = _is_present(values)
    # Plain ops: a RaggedTensor makes the same of three times as many, for every feature.
    places = tf.where(present)
    if values.shape.rank == 1:
        # One value or none: a third of the ops that several take, and pipelines have mostly such features.
        return tf.SparseTensor(
            indices=tf.pad(places, [[0, 0], [0, 1]]),
            values=tf.gather_nd(values, places),
            dense_shape=tf.concat(
                [tf.shape(values, tf.int64), [tf.cast(tf.reduce_any(present), tf.int64)]], axis=0
            ),
        )
    lengths = tf.reduce_sum(tf.cast(present, tf.int64), axis=1)
    columns = tf.cumsum(tf.cast(present, tf.int64), axis=1, exclusive=True)
    return tf.SparseTensor(
        indices=tf.stack([places[:, 0], tf.gather_nd(columns, places)], axis=1),
        values=tf.gather_nd(values, places),
        dense_shape=tf.stack(
            [tf.shape(values, tf.int64)[0], tf.reduce_max(tf.concat([lengths, [0]], axis=0))]
        ),
    )


def absent(feature_spec: Mapping[str, Any], rows: tf.Tensor) -> dict[str, Any]:
    """Returns features that a prediction doesn't need in the form of `tf.io.parse_example`.

    A graph of Transform in the format of TensorFlow 2 takes them all the same.
    """
    optional = {
        name: _with_default(feature) if isinstance(feature, tf.io.FixedLenFeature) else feature
        for name, feature in feature_spec.items()
    }
    # A tf.Example without features is serialized as the empty string.
    return dict(tf.io.parse_example(tf.fill([rows], ""), optional)) if optional else {}


def _with_default(feature: tf.io.FixedLenFeature) -> tf.io.FixedLenFeature:
    zeros = np.zeros(feature.shape, tf.as_dtype(feature.dtype).as_numpy_dtype)
    default = np.full(feature.shape, "") if feature.dtype == tf.string else zeros
    return tf.io.FixedLenFeature(feature.shape, feature.dtype, default)


def _is_present(values: tf.Tensor) -> tf.Tensor:
    if values.dtype == tf.string:
        return tf.not_equal(values, "")
    if values.dtype.is_floating:
        return tf.logical_not(tf.math.is_nan(values))
    return tf.not_equal(values, MISSING_INTEGER)
