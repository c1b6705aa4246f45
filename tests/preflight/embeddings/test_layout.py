"""Stacks, padding and shards, against TensorFlow's own functions."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tfx_tpu_trainer.preflight.embeddings.layout import OPTIMIZER_SLOTS, Cores, lay_out

embedding = tf.tpu.experimental.embedding

CORES = Cores(chips=8, replicas=8, per_replica=4)
ADAGRAD = embedding.Adagrad(0.1)


def _feature(name, rows, dim, *, optimizer=None, length=0, combiner="mean"):
    table = embedding.TableConfig(
        vocabulary_size=rows, dim=dim, name=name, optimizer=optimizer, combiner=combiner
    )
    return embedding.FeatureConfig(table=table, max_sequence_length=length, name=name)


def _lay_out(features, *, batch_size=4096, optimizer=ADAGRAD, **options):
    return lay_out(
        {feature.table.name: feature for feature in features},
        optimizer=optimizer,
        cores=CORES,
        batch_size=batch_size,
        **options,
    )


def _tensorflow_stacks(features, batch_size):
    """The stacks by TensorFlow's stacker, which has a name of its own in each version."""
    tables = sorted((feature.table for feature in features), key=lambda table: table.name)
    groups = {}
    group = [
        groups.setdefault((-(-table.dim // 8), table.optimizer), len(groups)) for table in tables
    ]
    samples = {
        feature.table.name: batch_size // CORES.replicas * (feature.max_sequence_length or 1)
        for feature in features
    }
    try:
        from tensorflow.python.tpu import _pywrap_tpu_embedding
    except ImportError:
        from tensorflow.python.tpu import _pywrap_sparse_core_layout

        stacker = _pywrap_sparse_core_layout.SparseCoreLayoutStacker(
            num_partitions=CORES.replicas,
            sparse_cores_per_partition=CORES.per_replica,
            disable_table_stacking=False,
        )
        for table, number in zip(tables, group):
            stacker.AddTable(
                table_name=table.name,
                table_height=table.vocabulary_size,
                table_width=table.dim,
                group=str(number),
                output_samples=samples[table.name],
            )
        names = {}
        for layout in stacker.GetLayouts().tables:
            names.setdefault(layout.stacked_table_name, []).append(layout.table_name)
        return sorted(names.values())
    return sorted(
        _pywrap_tpu_embedding.stack_tables(
            [-(-table.vocabulary_size // 256) * 256 for table in tables],
            [-(-table.dim // 8) * 8 for table in tables],
            [samples[table.name] for table in tables],
            group,
            [table.name for table in tables],
            CORES.replicas,
        )
    )


SGD = embedding.SGD(0.1)
CASES = {
    "widths that are padded to one": [
        _feature("c", 1000, 16, optimizer=SGD),
        _feature("a", 10, 12, optimizer=SGD),
        _feature("b", 10, 17, optimizer=SGD),
    ],
    "optimizers": [
        _feature("a", 10, 8, optimizer=SGD),
        _feature("b", 10, 8, optimizer=embedding.SGD(0.2)),
        _feature("c", 10, 8, optimizer=embedding.SGD(0.1)),
        _feature("d", 10, 8, optimizer=SGD, combiner="sum"),
    ],
    "activations over the limit": [
        _feature(name, 100, 64, optimizer=SGD, length=length)
        for name, length in (("a", 20), ("b", 44), ("c", 43), ("d", 1), ("e", 0))
    ],
    "shards over the limit": [
        _feature(name, rows, 64, optimizer=SGD)
        for name, rows in (("a", 50_000_000), ("b", 17_100_000), ("c", 17_000_000), ("d", 500))
    ],
}


@pytest.mark.parametrize("features", CASES.values(), ids=CASES)
def test_tables_are_stacked_as_tensorflow_stacks_them(features):
    stacks = [[table.name for table in stack.tables] for stack in _lay_out(features)]
    assert sorted(stacks) == _tensorflow_stacks(features, 4096)
    assert 1 < len(stacks) < len(features)


def test_rows_and_columns_are_padded_and_each_table_is_rotated_by_a_chip():
    features = [_feature(f"t{number:02}", 100 + number, 12) for number in range(10)]
    (stack,) = _lay_out(features)
    assert {(table.padded_rows, table.padded_dim) for table in stack.tables} == {(8 * 32, 16)}
    # The ninth table is back at the first chip.
    assert [table.rotation for table in stack.tables] == [*range(0, 32, 4), 0, 4]
    assert stack.name == "_".join(f"t{number:02}" for number in range(10))
    assert stack.bytes == 10 * 256 * 16 * 4 * 2
    assert len(_lay_out(features, stacking=False)) == 10


def test_samples_are_of_all_features_and_positions():
    table = embedding.TableConfig(vocabulary_size=10, dim=8, name="words")
    features = {
        "title": embedding.FeatureConfig(table=table, max_sequence_length=5),
        "topic": embedding.FeatureConfig(table=table),
        "shaped": embedding.FeatureConfig(table=table, output_shape=[512, 3]),
    }
    (stack,) = lay_out(features, optimizer=SGD, cores=CORES, batch_size=4096)
    assert stack.samples == 512 * (5 + 1 + 3)
    assert stack.tables[0].features == ("title", "topic", "shaped")


@pytest.mark.parametrize("name", OPTIMIZER_SLOTS)
def test_slots_are_those_of_tensorflows_optimizers(name):
    optimizer = getattr(embedding, name)(0.1)
    assert OPTIMIZER_SLOTS[name] == len(optimizer._slot_names())


@pytest.mark.parametrize(
    ("features", "optimizer"),
    [
        case("preflight", f"`plan_embeddings` {given}", *says, values=values)
        for given, values, *says in (
            (
                "of a table without an optimizer",
                ([_feature("a", 10, 8)], None),
                "table 'a' has no optimizer, whose slots take HBM too: give one of SGD, Adagrad",
            ),
            (
                "with an optimizer of Keras",
                ([_feature("a", 10, 8)], tf.keras.optimizers.Adam),
                "table 'a': SparseCores don't support the optimizer Adam; use one of SGD, Adagrad",
            ),
            (
                "of a table of 2^31 rows",
                ([_feature("a", 2**31 - 200, 8)], SGD),
                "table 'a': vocabulary_size=2,147,483,448 is more rows than SparseCores can number",
            ),
            (
                "of a table without a name",
                ([_feature(None, 10, 8)], SGD),
                "a table has no name: SparseCores need TableConfig(name=...)",
            ),
        )
    ],
)
def test_tables_that_sparse_cores_can_not_hold_are_refused(features, optimizer, refused):
    with refused(ValueError):
        _lay_out(features, optimizer=optimizer() if isinstance(optimizer, type) else optimizer)


@row(
    "preflight",
    "`plan_embeddings` of two tables of one name",
    "two tables have the name 'a': rename one, or give",
)
def test_two_tables_of_one_name_are_refused(refused):
    features = {"x": _feature("a", 10, 8), "y": _feature("a", 10, 8)}
    with refused(ValueError):
        lay_out(features, optimizer=SGD, cores=CORES, batch_size=4096)
