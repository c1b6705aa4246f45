from __future__ import annotations

import collections

import tensorflow as tf

from tfx_tpu_trainer.engine.feeding.input_names import named_leaves, structure_difference

Pair = collections.namedtuple("Pair", ["left", "right"])


def test_names_are_written_as_the_user_would_in_the_order_of_a_datasets_components():
    features = {"b": 1, "a": Pair(2, {"deep": 3}), "c": [4, None]}
    named = named_leaves(features, (5, 6))
    assert named == {
        "features['a'].left": 2,
        "features['a'].right['deep']": 3,
        "features['b']": 1,
        "features['c'][0]": 4,
        "labels[0]": 5,
        "labels[1]": 6,
    }
    assert list(named.values()) == [leaf for leaf in tf.nest.flatten((features, (5, 6))) if leaf]


def test_a_lone_tensor_and_no_labels():
    assert named_leaves("x", None) == {"features": "x"}


def test_the_first_tensor_that_differs_is_named():
    x, wide = tf.TensorSpec([4, 3]), tf.TensorSpec([4, 5])
    assert structure_difference(({"x": x}, x), ({"x": tf.TensorSpec([None, 3])}, x)) is None
    assert structure_difference(({"x": x}, x), ({"x": wide}, wide)) == (
        "features['x'] is float32 (4, 3) in one and float32 (4, 5) in another"
    )
    assert structure_difference(({"x": x}, x), ({"x": x}, tf.TensorSpec([4, 3], tf.int32))) == (
        "labels is float32 (4, 3) in one and int32 (4, 3) in another"
    )
    assert structure_difference(({"x": x}, None), ({"x": x, "y": x}, None)) == (
        "features['y'] is in one of them only"
    )
    assert structure_difference(({"x": x}, x), ({"x": x}, None)) == (
        "labels is in one of them only"
    )
