"""How annotated tensors are cut, and which cuts are refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.compiler.xla.experimental import xla_sharding

from tfx_tpu_trainer.estimator.places import shardings

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
