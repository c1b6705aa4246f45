from __future__ import annotations

import logging

import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator.places.input_partitions import (
    check_counts,
    check_input_partitions,
    input_partitions,
)

v1 = tf.compat.v1

IMAGE, LABEL = tf.TensorSpec([4, 6, 3]), tf.TensorSpec([4])


def _check(dims, *, features=IMAGE, labels=LABEL):
    check_counts(dims or [], num_cores_per_replica=4)
    check_input_partitions(dims, features=features, labels=labels)


@pytest.mark.parametrize(
    "dims", [None, [[1, 4, 1]], [[2, 2, 1], None], [None, [4]], [[1, 1, 4], [4]], [[1, 1, 1]]]
)
@pytest.mark.behaviour(109, 110)
def test_counts_that_hold(dims):
    # 4 does not divide the 6 or the 3: the last piece is smaller, or empty.
    _check(dims)


@pytest.mark.parametrize(
    ("dims", "says"),
    [
        ([{"x": [1, 4, 1]}], r"mismatched feature keys. Expected \[\], got \['x'\]"),
        ([[1, 4]], r"^Input partition dims must have the same .* \[1, 4\] for shape \(4, 6, 3\)"),
        ([[1, 4, 0]], r"^All input partition dims must be >= 1. .* is \[1, 4, 0\]"),
        ([[1, 2, 1]], r"^The product of .*dim = \[1, 2, 1\], num_cores_per_replica = 4"),
        ([[1, 4, 1], [2]], r"^The product .* in TPUConfig.input_partition_dims\[1\]"),
    ],
)
@pytest.mark.behaviour(107, 108)
def test_counts_that_do_not_hold(dims, says):
    with pytest.raises(ValueError, match=says):
        _check(dims)


@pytest.mark.behaviour(107)
def test_keys_of_features_and_labels_must_match():
    _check([{"a": [4], "b": None}], features={"a": LABEL, "b": IMAGE})
    with pytest.raises(ValueError, match=r"feature keys. Expected \['a', 'b'\], got \['a'\]"):
        _check([{"a": [4]}], features={"a": LABEL, "b": IMAGE})
    with pytest.raises(ValueError, match=r"label keys. Expected \['l'\], got \['m'\]"):
        _check([None, {"m": [4]}], labels={"l": LABEL})


def test_counts_of_nested_input_have_its_structure():
    nested = {"a": (LABEL, {"b": IMAGE})}
    _check([{"a": ([4], {"b": [1, 4, 1]})}], features=nested)
    for dims in ({"a": [4]}, {"a": ([4], [1, 4, 1])}, {"a": ([4],)}):
        with pytest.raises(ValueError, match=r"dims\[0\] mismatched the structure of features\. "):
            _check([dims], features=nested)
    with pytest.raises(ValueError, match=r"^The product .*_dims\[0\]\['a'\]\[1\]\['b'\]"):
        _check([{"a": ([4], {"b": [1, 2, 1]})}], features=nested)


def test_a_dimension_that_does_not_divide_is_named(caplog):
    with caplog.at_level(logging.WARNING, logger="tensorflow"):
        _check([{"image": [1, 4, 1]}], features={"image": IMAGE})
    assert (
        "TPUConfig.input_partition_dims[0]['image'] is [1, 4, 1]. Dimension 1 of "
        "\"features['image']\" has the size 6, which is not divisible by 4 partitions: pad it to 8"
    ) in caplog.text


def test_the_parts_of_each_tensor_that_is_cut():
    with tf.Graph().as_default():
        image, label = v1.placeholder(tf.float32, [4, 6, 3]), v1.placeholder(tf.float32, [4])
        features = {"image": image, "mask": label}
        dims = [{"image": [2, 2, 1], "mask": [1]}, None]
        found = input_partitions(dims, features=features, labels=label)
    assert found == {image.name: [2, 2, 1]}
    assert input_partitions(None, features=features, labels=label) == {}
