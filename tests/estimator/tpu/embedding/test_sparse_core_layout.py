"""Tables laid out for SparseCores: as TensorFlow lays them out, and looks ids up in them."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.tpu import tpu_embedding_v3_utils

from tests.estimator._engine import fake_tpu
from tfx_tpu_trainer.estimator.tpu.embedding import tf_private
from tfx_tpu_trainer.estimator.tpu.embedding.tpu_tables import StackLayout

_embedding = tf.tpu.experimental.embedding

# Later versions ask for parts of a table, and not for those that a device has.
ASKS_FOR_WHOLE_TABLES = not hasattr(_embedding, "SparseCoreEmbeddingConfig")
REPLICAS, CORES = 2, 4
# Name -> rows and width: two stacks, one of which has two tables.
TABLES = {"word": (150, 5), "tag": (70, 5), "user": (64, 16)}
VALUES = {
    name: np.random.RandomState(seed).randn(*shape).astype(np.float32)
    for seed, (name, shape) in enumerate(TABLES.items())
}


@pytest.fixture(scope="module")
def embedding():
    """TensorFlow's own, which takes each table's first value apart itself."""
    optimizer = _embedding.Adagrad(0.1)

    def padded(name):
        def initializer(shape, dtype):
            rows, dim = TABLES[name]
            if not ASKS_FOR_WHOLE_TABLES:
                return tf.zeros(shape, dtype)
            return tf.pad(VALUES[name], [[0, shape[0] - rows], [0, shape[1] - dim]])

        return initializer

    features = {
        name: _embedding.FeatureConfig(
            _embedding.TableConfig(
                rows, dim, initializer=padded(name), optimizer=optimizer, name=name
            ),
            output_shape=[8],
            name=name,
        )
        for name, (rows, dim) in TABLES.items()
    }
    strategy = fake_tpu.strategy_of(REPLICAS, feature=fake_tpu.Feature.V2, sparse_cores=CORES)
    with strategy.scope():
        made = _embedding.TPUEmbeddingV2(features)
        made.build()
    return made


def layouts(embedding) -> dict[str, StackLayout]:
    return {
        stack: StackLayout(places, TABLES, REPLICAS * CORES)
        for stack, places in tf_private.stacks(embedding).items()
    }


@pytest.mark.skipif(not ASKS_FOR_WHOLE_TABLES, reason="TensorFlow packs no whole tables")
def test_tables_are_packed_as_tensorflow_packs_them(embedding):
    found = layouts(embedding)
    assert sorted(map(len, (layout.places for layout in found.values()))) == [1, 2]
    for stack, layout in found.items():
        own = embedding.variables[stack]["parameters"].values
        packed = layout.pack({name: VALUES[name] for name in layout.places}, devices=REPLICAS)
        for variable, part in zip(own, packed, strict=True):
            np.testing.assert_array_equal(part, variable.numpy())
        for name in layout.places:
            np.testing.assert_array_equal(layout.unpack(packed, name), VALUES[name])


def test_tables_are_unpacked_as_tensorflow_unpacks_a_checkpoint(embedding):
    for layout in layouts(embedding).values():
        packed = layout.pack({name: VALUES[name] for name in layout.places}, devices=REPLICAS)
        parts = np.random.RandomState(9).randn(layout.rows, layout.padded_dim).astype(np.float32)
        for name, place in layout.places.items():
            whole = tpu_embedding_v3_utils.unshuffle_from_sc_to_cpu(
                tf.constant(parts),
                num_sparse_cores=layout.cores,
                offset_in_shard=place.offset // layout.cores,
                size_in_shard=place.padded_rows // layout.cores,
                shard_rotation=place.rotation,
            )
            np.testing.assert_array_equal(
                layout.unpack(np.split(parts, REPLICAS), name),
                whole[: TABLES[name][0], : TABLES[name][1]],
            )
            np.testing.assert_array_equal(layout.unpack(packed, name), VALUES[name])
