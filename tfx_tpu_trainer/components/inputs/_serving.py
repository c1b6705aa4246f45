"""Serves a Transform pipeline's models: turns raw features into the model's features.

Transform's graph shows which raw features a prediction needs; each is one plain tensor, which a REST request can carry.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_transform as tft

from tfx_tpu_trainer.estimator.export import (
    HostPrediction,
    HostSignature,
    ServingInputReceiver,
)

RECEIVER_KEY = "examples"
TRANSFORM_SIGNATURE = "transform_features"
RAW_SIGNATURE = "predict_raw"

MISSING_INTEGER = tf.int64.min
"""A missing integer; a missing float is NaN, and a missing string is empty."""

# Ops that call a function.
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
# TensorFlow counts this op as stateful, so all outputs of a function wait for the label's vocabulary, too; it
# checks nothing.
_LOOKUP = "LookupTableFindV2"


_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformServing:
    """A serving_input_receiver_fn that runs Transform's graph on raw features.

    Calling it gives a receiver with one input, `examples` (serialized raw tf.Examples, string
    [batch]), the transformed features without the label for model_fn, and two host signatures:

    - `predict_raw` takes the raw features that predictions need as named tensors, for callers who can't make
    tf.Examples, and returns the outputs of `serving_default`. A missing value is NaN, the empty string or the least
    int64. The signature is left out, with a log line, if a feature can't be a plain tensor. - `transform_features`
    takes `examples`, with the label's raw features, and returns all transformed features, including the label, for the
    stock Evaluator.

    A request for a prediction has no label, so raw features from which only the label is computed are not required. All
    others are required if the raw schema requires them.

    Attributes:
        transform_graph_path: Folder of a TransformGraph artifact.
        label_key: Name of the transformed feature that is the label, or `None`.
        not_served: Names of further transformed features that no prediction needs: other labels, weights of rows.
    """

    transform_graph_path: str
    label_key: str | None = None
    not_served: Collection[str] = ()

    def __call__(self) -> ServingInputReceiver:
        """Builds the receiver in the default graph."""
        examples = tf.compat.v1.placeholder(tf.string, [None], name=RECEIVER_KEY)
        raw = self._parse(examples, without=self._label_only)
        transformed = self._transform(raw)

        def host_signatures() -> dict[str, HostPrediction | HostSignature]:
            complete = transformed
            if self._label_only:
                complete = self._transform(self._parse(examples, without=frozenset()))
            return {
                **self._raw_prediction(raw),
                TRANSFORM_SIGNATURE: HostSignature(
                    inputs={RECEIVER_KEY: examples},
                    outputs={name: _dense(value) for name, value in complete.items()},
                ),
            }

        return ServingInputReceiver(
            features={k: v for k, v in transformed.items() if k not in self._left_out},
            receiver_tensors={RECEIVER_KEY: examples},
            host_signatures=host_signatures,
        )

    def check(self) -> None:
        """Runs Transform's graph on parsed examples: a quick test that finds most mistakes of a receiver."""
        # Receivers use the result of this search, too.
        _ = self._needed

    @functools.cached_property
    def _label_only(self) -> frozenset[str]:
        # An export builds one receiver per metagraph, but searches once.
        return label_only_raw_features(
            self.transform_graph_path, self._left_out, needed=lambda: self._needed
        )

    @functools.cached_property
    def _needed(self) -> frozenset[str]:
        return needed_raw_features(self.transform_graph_path, self._left_out)

    @property
    def _left_out(self) -> frozenset[str]:
        return frozenset(name for name in (self.label_key, *self.not_served) if name is not None)

    def _parse(
        self, examples: tf.Tensor, *, without: frozenset[str]
    ) -> dict[str, tf.Tensor | tf.SparseTensor]:
        spec = tft.TFTransformOutput(self.transform_graph_path).raw_feature_spec()
        return dict(
            tf.io.parse_example(examples, {k: v for k, v in spec.items() if k not in without})
        )

    def _transform(
        self, raw: dict[str, tf.Tensor | tf.SparseTensor]
    ) -> dict[str, tf.Tensor | tf.SparseTensor]:
        # A TFTransformOutput keeps the tables of the first graph that used it.
        return dict(tft.TFTransformOutput(self.transform_graph_path).transform_raw_features(raw))

    def _raw_prediction(self, parsed: dict[str, Any]) -> dict[str, HostPrediction]:
        """Returns the signature of named tensors, which replace the parsed features."""
        output = tft.TFTransformOutput(self.transform_graph_path)
        spec = {k: v for k, v in output.raw_feature_spec().items() if k in parsed}
        needed = {k: v for k, v in spec.items() if k in self._needed}
        unsupported = unsupported_features(needed)
        if unsupported or not needed:
            _logger.info(
                "Left out the signature %r: the raw features %s are not plain tensors.",
                RAW_SIGNATURE,
                unsupported,
            )
            return {}
        inputs = raw_placeholders(needed, _single_valued(output.raw_metadata.schema))
        rows = tf.shape(next(iter(inputs.values())))[0]
        standing_in = {
            **{name: as_parsed(feature, inputs[name]) for name, feature in needed.items()},
            **absent({k: v for k, v in spec.items() if k not in needed}, rows),
        }
        pairs = zip(_components(parsed), _components(standing_in), strict=True)
        return {
            RAW_SIGNATURE: HostPrediction(
                inputs=inputs, replaced={of_example.name: other for of_example, other in pairs}
            )
        }


def _single_valued(schema: Any) -> frozenset[str]:
    return frozenset(each.name for each in schema.feature if each.value_count.max == 1)


def _components(features: Any) -> list[tf.Tensor]:
    """Returns the features' component tensors; those of a dict are in the order of its keys."""
    return tf.nest.flatten(features, expand_composites=True)


def _dense(value: tf.Tensor | tf.SparseTensor | tf.RaggedTensor) -> tf.Tensor:
    if isinstance(value, tf.RaggedTensor):
        return value.to_tensor()
    return tf.sparse.to_dense(value) if isinstance(value, tf.SparseTensor) else value


def needed_raw_features(transform_graph_path: str, left_out: Collection[str]) -> frozenset[str]:
    """Finds the raw features from which the transformed features that a prediction needs are computed."""
    output = tft.TFTransformOutput(transform_graph_path)
    with tf.Graph().as_default() as graph:
        examples = tf.compat.v1.placeholder(tf.string, [None])
        raw = tf.io.parse_example(examples, output.raw_feature_spec())
        transformed = output.transform_raw_features(raw)
        wanted = [value for name, value in transformed.items() if name not in left_out]
        components = {
            name: frozenset(each.name for each in _components(value)) for name, value in raw.items()
        }
        reached = _reached(
            _components(wanted),
            stop=frozenset().union(*components.values()),
            functions=_Functions(graph),
        )
    return frozenset(name for name, names in components.items() if names & reached)


def label_only_raw_features(
    transform_graph_path: str, left_out: Collection[str], needed: Callable[[], frozenset[str]]
) -> frozenset[str]:
    """Finds the raw features that a serving request can leave out."""
    if not left_out:
        return frozenset()
    spec = tft.TFTransformOutput(transform_graph_path).raw_feature_spec()
    required = {
        name
        for name, feature in spec.items()
        if isinstance(feature, tf.io.FixedLenFeature) and feature.default_value is None
    }
    return frozenset(required - needed())


def _reached(
    tensors: Iterable[tf.Tensor], *, stop: frozenset[str], functions: _Functions
) -> set[str]:
    # Transform's graph may be a single call of a function with all raw features as arguments. According to the
    # call's inputs, each output would need each feature, and a prediction would need the label. Only those inputs of
    # the call count that the wanted output is computed from. Control inputs count, too: an op that checks a feature
    # reads it.
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
    """Functions of a graph; Transform's TensorFlow 2 format calls a single one."""

    def __init__(self, graph: tf.Graph) -> None:
        self._by_name: Mapping[str, Any] = {
            function.signature.name: function for function in graph.as_graph_def().library.function
        }
        self.arguments_of = functools.cache(self._arguments_of)

    def _arguments_of(self, name: str, output: int) -> frozenset[int]:
        """Returns the indices of the arguments that an output depends on."""
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
            if reference.startswith("^") and nodes[source].op == _LOOKUP:
                continue
            inputs = nodes[source].input
            if nodes[source].op in _CALLS and not reference.startswith("^"):
                called = nodes[source].attr["f"].func.name
                index = int(reference.rpartition(":")[2])
                inputs = [inputs[place] for place in self.arguments_of(called, index)]
            pending.extend(each for each in inputs if each not in seen)
            seen.update(inputs)
        return frozenset(found)


def unsupported_features(feature_spec: Mapping[str, Any]) -> list[str]:
    """Names the features that no plain tensor can carry: SparseFeature and RaggedFeature."""
    plain = (tf.io.FixedLenFeature, tf.io.VarLenFeature)
    return sorted(name for name, feature in feature_spec.items() if not isinstance(feature, plain))


def raw_placeholders(
    feature_spec: Mapping[str, Any], single_valued: frozenset[str]
) -> dict[str, tf.Tensor]:
    """Makes a placeholder for each raw feature in the default graph."""
    placeholders = {}
    for name, feature in feature_spec.items():
        if isinstance(feature, tf.io.FixedLenFeature):
            shape = [None, *feature.shape]
        else:
            shape = [None] if name in single_valued else [None, None]
        # A raw feature's name may not be a valid op name; the signature keeps it.
        placeholders[name] = tf.compat.v1.placeholder(feature.dtype, shape, name="raw_feature")
    return placeholders


def as_parsed(feature: Any, values: tf.Tensor) -> tf.Tensor | tf.SparseTensor:
    """Returns a placeholder in the form that `tf.io.parse_example` returns."""
    if isinstance(feature, tf.io.FixedLenFeature):
        return values
    present = _is_present(values)
    # Plain ops: a RaggedTensor would need three times as many for every feature.
    places = tf.where(present)
    if values.shape.rank == 1:
        # A single optional value, the most frequent case, needs a third of the ops.
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
    """Returns empty features, in the form of `tf.io.parse_example`, for those that a prediction does not need.

    Transform's graphs in TensorFlow 2's format take them nevertheless.
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
