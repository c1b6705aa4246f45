"""Gets exported models' signatures, and their answers to a sample."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.serving import describe_saved_model

_ROWS = 3


def ask(path: str) -> dict[str, Any]:
    """Loads the `serve` graph of a SavedModel and runs each signature.

    Returns:
        `signatures`, each as text; `answers`, by signature and output; and `unasked`, the reasons why signatures were
        not run.
    """
    (described,) = (each for each in describe_saved_model(path) if each.tags == ("serve",))
    answers: dict[str, Any] = {}
    unasked: list[str] = []
    loaded = tf.saved_model.load(path, tags=["serve"])
    for name, signature in loaded.signatures.items():
        try:
            found = signature(**_sample(signature))
            answers |= {f"{name}: {key}": each.numpy() for key, each in found.items()}
        except (tf.errors.OpError, ValueError) as error:
            unasked.append(f"signature {name}: {str(error).splitlines()[0]}")
    plain = {
        key: each.astype(bytes) if each.dtype == object else each for key, each in answers.items()
    }
    return {"signatures": dict(described.signatures), "answers": plain, "unasked": unasked}


def _sample(signature: Any) -> dict[str, tf.Tensor]:
    """Makes rows: seeded numbers, or serialized tf.Examples."""
    random = np.random.default_rng(1)
    parsing = [each for each in signature.graph.get_operations() if each.type == "ParseExampleV2"]
    rows = {}
    for name, spec in sorted(signature.structured_input_signature[1].items()):
        shape = [_ROWS if size is None else size for size in spec.shape.as_list()]
        if spec.dtype == tf.string:
            texts = [_example(parsing[0], random) if parsing else b"1" for _ in range(_ROWS)]
            value = np.resize(np.array(texts, object), shape)
        elif spec.dtype.is_floating:
            value = random.normal(size=shape)
        else:
            value = random.integers(0, 2, size=shape)
        rows[name] = tf.cast(tf.constant(value), spec.dtype)
    return rows


def _example(parsing: tf.Operation, random: np.random.Generator) -> bytes:
    """Makes a tf.Example that a graph's own parsing can read."""
    dense = tf.get_static_value(parsing.inputs[3])
    sparse = tf.get_static_value(parsing.inputs[2])
    keys = [*zip(dense, parsing.get_attr("Tdense"), parsing.get_attr("dense_shapes"))]
    keys += [(key, kind, None) for key, kind in zip(sparse, parsing.get_attr("sparse_types"))]
    features = {}
    for key, kind, shape in keys:
        count = 1 if shape is None else max(int(np.prod([each.size for each in shape.dim])), 1)
        if kind == tf.string:
            value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"1"] * count))
        elif kind == tf.int64:
            value = tf.train.Feature(
                int64_list=tf.train.Int64List(value=random.integers(0, 2, count))
            )
        else:
            value = tf.train.Feature(float_list=tf.train.FloatList(value=random.normal(size=count)))
        features[tf.compat.as_str(key)] = value
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
