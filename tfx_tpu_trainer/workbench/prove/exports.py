"""Asks an exported model for its signatures and its answers to a sample, under either TensorFlow."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer._support.imports import without_notice

v1 = tf.compat.v1

_ROWS = 3


def ask(path: str) -> tuple[dict[str, str], dict[str, Any], list[str]]:
    """Returns an export's types by signature and tensor, its answers, and why signatures could not be asked."""
    types: dict[str, str] = {}
    answers: dict[str, Any] = {}
    failed: list[str] = []
    with tf.Graph().as_default() as graph, v1.Session() as session:
        load = without_notice(v1.saved_model.load)
        signatures = load(session, ["serve"], path).signature_def
        for name, signature in sorted(signatures.items()):
            for way, tensors in (("input", signature.inputs), ("output", signature.outputs)):
                for key, info in tensors.items():
                    shape = tf.TensorShape(info.tensor_shape)
                    types[f"{name}, {way} {key}"] = f"{tf.as_dtype(info.dtype).name}{shape}"
            outputs = {key: info.name for key, info in signature.outputs.items()}
            try:
                found = session.run(outputs, _sample(graph, signature.inputs))
            except (tf.errors.OpError, TypeError, ValueError) as error:
                failed.append(f"signature {name} is not asked: {str(error).splitlines()[0]}")
            else:
                answers |= {f"{name}: {key}": value for key, value in found.items()}
    return types, answers, failed


def _sample(graph: tf.Graph, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Makes rows: seeded numbers, or serialized tf.Examples."""
    random = np.random.default_rng(1)
    parsing = [each for each in graph.get_operations() if each.type == "ParseExampleV2"]
    rows: dict[str, np.ndarray] = {}
    for _, info in sorted(inputs.items()):
        dtype = tf.as_dtype(info.dtype)
        shape = [_ROWS if size is None else size for size in tf.TensorShape(info.tensor_shape)]
        if dtype == tf.string:
            texts = [_example(parsing[0], random) if parsing else b"1" for _ in range(_ROWS)]
            rows[info.name] = np.resize(np.array(texts, object), shape)
        else:
            value = random.normal(size=shape) if dtype.is_floating else random.integers(0, 2, shape)
            rows[info.name] = np.asarray(value).astype(dtype.as_numpy_dtype)
    return rows


def _example(parsing: tf.Operation, random: np.random.Generator) -> bytes:
    """Makes a tf.Example that a graph's own parsing can read."""
    sparse, dense = (tf.get_static_value(parsing.inputs[number]) for number in (2, 3))
    keys = [*zip(dense, parsing.get_attr("Tdense"), parsing.get_attr("dense_shapes"))]
    keys += [(key, kind, None) for key, kind in zip(sparse, parsing.get_attr("sparse_types"))]
    example = tf.train.Example()
    for key, kind, shape in keys:
        count = 1 if shape is None else max(int(np.prod([each.size for each in shape.dim])), 1)
        feature = example.features.feature[tf.compat.as_str(key)]
        if kind == tf.string:
            feature.bytes_list.value.extend([b"1"] * count)
        elif kind == tf.int64:
            feature.int64_list.value.extend(random.integers(0, 2, count))
        else:
            feature.float_list.value.extend(random.normal(size=count))
    return example.SerializeToString()
