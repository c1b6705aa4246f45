"""Ids from SparseCores to partitions, against a count of one id after the other."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.preflight.embeddings import counting
from tfx_tpu_trainer.preflight.embeddings.counting import StackCounter
from tfx_tpu_trainer.preflight.embeddings.ids import FeatureIds
from tfx_tpu_trainer.preflight.embeddings.layout import Cores, lay_out, samples_of_row

embedding = tf.tpu.experimental.embedding

CORES = Cores(chips=4, replicas=4, per_replica=2)
BATCH = 48


def _features():
    optimizer = embedding.SGD(0.1)
    small = embedding.TableConfig(vocabulary_size=5, dim=8, name="small", optimizer=optimizer)
    large = embedding.TableConfig(vocabulary_size=900, dim=8, name="large", optimizer=optimizer)
    return {
        "topic": embedding.FeatureConfig(table=small),
        "words": embedding.FeatureConfig(table=large),
        "title": embedding.FeatureConfig(table=large, max_sequence_length=3),
    }


def _batch(seed):
    random = np.random.default_rng(seed)
    batch = {}
    for name, feature in _features().items():
        samples = np.sort(random.integers(0, BATCH * samples_of_row(feature), 400))
        values = (random.random(400) ** 3 * feature.table.vocabulary_size).astype(np.int64)
        batch[name] = FeatureIds(values, samples)
    return batch


def _one_by_one(batch, stack):
    """Counts as OpenXLA's page says it, with sets."""
    tables = {table.name: table for table in stack.tables}
    ids, unique = collections.defaultdict(set), collections.defaultdict(set)
    for name, feature in _features().items():
        length = samples_of_row(feature)
        table = tables[feature.table.name]
        for value, sample in zip(*batch[name]):
            row = sample // length
            replica, row_of_replica = divmod(row, BATCH // 4)
            core = 2 * replica + row_of_replica // (BATCH // 8)
            partition = (value % 8 + table.rotation) % 8
            ids[core, partition].add((name, sample, value))
            unique[core, partition].add((table.name, value))
    return ids, unique


@pytest.mark.parametrize("most_pairs", [2**22, 16])
@pytest.mark.parametrize("seed", range(3))
def test_counts_are_those_of_one_id_after_the_other(seed, most_pairs, monkeypatch):
    monkeypatch.setattr(counting, "_MOST_PAIRS", most_pairs)
    features = _features()
    (stack,) = lay_out(features, optimizer=None, cores=CORES, batch_size=BATCH)
    counter = StackCounter(
        stack,
        cores=CORES,
        batch_size=BATCH,
        samples_of_row={name: samples_of_row(each) for name, each in features.items()},
    )
    batch = _batch(seed)
    found = counter.count(batch)
    ids, unique = _one_by_one(batch, stack)
    assert found.ids == max(map(len, ids.values()))
    assert found.unique_ids == max(map(len, unique.values()))
    assert found.unique_ids < found.ids
    of_replica = [
        sum(-(-len(ids[core, each]) // 8) * 8 for core in (2 * r, 2 * r + 1) for each in range(8))
        for r in range(4)
    ]
    assert found.replica_ids == max(of_replica)
    for counts, sets in (
        (found.ids_of_partition, ids),
        (found.unique_ids_of_partition, unique),
    ):
        assert counts.tolist() == [
            sum(len(sets[core, partition]) for core in range(8)) for partition in range(8)
        ]


def test_a_row_is_on_the_core_that_tensorflow_puts_it_on():
    from tensorflow.python.tpu import tpu_embedding_v3_utils

    features = _features()
    (stack,) = lay_out(features, optimizer=None, cores=CORES, batch_size=BATCH)
    small = next(table for table in stack.tables if table.name == "small")
    assert small.rotation == 2
    counter = StackCounter(
        stack, cores=CORES, batch_size=BATCH, samples_of_row=dict.fromkeys(features, 1)
    )
    nothing = FeatureIds(np.zeros(0, np.int64), np.zeros(0, np.int64))
    for value in range(small.rows):
        one = FeatureIds(np.array([value]), np.array([0]))
        found = counter.count({"topic": one, "words": nothing, "title": nothing})
        core, _ = tpu_embedding_v3_utils.map_indices_in_shard(8, 0, small.rotation, value)
        assert np.flatnonzero(found.ids_of_partition).tolist() == [int(core)]
    empty = counter.count(dict.fromkeys(features, nothing))
    assert (empty.ids, empty.unique_ids, empty.replica_ids) == (0, 0, 0)
