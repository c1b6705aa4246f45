"""How annotated tensors are cut, and which cuts are refused."""

import logging

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.compiler.xla.experimental import xla_sharding

from tfx_tpu_trainer.estimator.places import shardings
from tfx_tpu_trainer.estimator.places.shardings import (
    check_counts,
    check_input_partitions,
    input_partitions,
)

v1 = tf.compat.v1


def _annotated(annotate, *, variable=False):
    """Returns the NodeDef of a tensor, float32 of [6, 4], that is annotated."""
    with tf.Graph().as_default() as graph:
        tensor = v1.get_variable("t", [6, 4]) if variable else v1.placeholder(tf.float32, [6, 4])
        annotated = annotate(tensor)
        name = annotated.op.name
        return next(node for node in graph.as_graph_def().node if node.name == name)


@pytest.mark.parametrize("variable", [False, True])
@pytest.mark.parametrize("use_sharding_op", [False, True])
def test_a_split_has_parts_along_its_dimension(variable, use_sharding_op):
    node = _annotated(
        lambda t: xla_sharding.split(t, 1, 2, use_sharding_op=use_sharding_op), variable=variable
    )
    assert shardings.parts(shardings.sharding_of(node), 2) == [1, 2]


def test_what_is_whole_on_each_core_has_one_part():
    assert shardings.sharding_of(_annotated(tf.identity)) is None
    for annotate in (xla_sharding.replicate, lambda t: xla_sharding.assign_device(t, 1)):
        assert shardings.parts(shardings.sharding_of(_annotated(annotate)), 2) == [1, 1]


def test_parts_that_several_cores_hold():
    # Two columns of cores, in each of which two hold the same.
    tiles = np.arange(4).reshape([1, 2, 2])
    sharding = shardings.sharding_of(_annotated(lambda t: xla_sharding.partial_tile(t, tiles)))
    assert shardings.parts(sharding, 2) == [1, 2]
    assert shardings.misfit("t", [6, 4], sharding, cores=4) is None


@pytest.mark.parametrize(
    ("counts", "cores", "says"),
    [
        ([2, 1], 2, None),
        ([2, 2], 4, None),
        ([1, 1], 4, None),
        (
            [4, 1],
            4,
            "Dimension 0 of 't' has the size 6, which is not divisible by 4 partitions: pad it to 8",
        ),
        (
            [1, 8],
            8,
            "Dimension 1 of 't' has the size 4, which is not divisible by 8 partitions: pad it to 8",
        ),
        (
            [2, 1],
            4,
            "'t' is sharded over 2 cores, but a replica has 4: set TPUConfig(num_cores_per",
        ),
    ],
)
def test_what_does_not_fit_is_named(counts, cores, says):
    found = shardings.misfit("t", [6, 4], shardings.tiled(counts), cores=cores)
    assert (found is None) if says is None else found.startswith(says)


def test_a_size_that_is_not_known_is_not_judged():
    assert shardings.misfit("t", [None, 4], shardings.tiled([4, 1]), cores=4) is None


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
