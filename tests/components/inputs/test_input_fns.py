"""Tests TransformedInput on the tfx wheel's taxi trips, RawEvaluationInput, and the order of rows."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_transform as tft
from tfx_bsl.public import tfxio

from tests import tfx_testdata
from tests.components.inputs.conftest import LABEL
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.components.inputs import (
    RAW_PREFIX,
    RawEvaluationInput,
    TransformedInput,
    vocabulary_sizes,
)
from tfx_tpu_trainer.components.inputs._input_fns import shuffled_row_numbers
from tfx_tpu_trainer.estimator._engine.checkpointing.input_position import (
    REFUSED,
    iterators_of_default_graph,
)
from tfx_tpu_trainer.estimator.tpu._tpu_context import TPUContext
from tfx_tpu_trainer.estimator.tpu.cores.layout import CoreLayout, InputMode

v1 = tf.compat.v1


def _open(files, options, schema):
    # What TFX's data accessor does for Examples artifacts that hold tf.Examples.
    reader = tfxio.TFExampleRecord(file_pattern=files, schema=schema, telemetry_descriptors=["t"])
    return reader.TensorFlowDataset(options)


def _input(split="eval", **changes):
    arguments = {
        "transform_graph_path": tfx_testdata.TRANSFORM_GRAPH,
        "file_patterns": [tfx_testdata.files(split)],
        "dataset_factory": _open,
        "label_key": tfx_testdata.LABEL,
    }
    return TransformedInput(**{**arguments, **changes})


def _labels_of_the_file(split):
    (path,) = tf.io.gfile.glob(tfx_testdata.files(split))
    examples = tf.data.TFRecordDataset(path, compression_type="GZIP")
    return [
        tf.train.Example.FromString(record.numpy()).features.feature["tips_xf"].int64_list.value[0]
        for record in examples
    ]


def _run(dataset_fn, batches):
    """Draws from a dataset inside a v1 graph, as the engine does."""
    with tf.Graph().as_default():
        iterator = v1.data.make_initializable_iterator(dataset_fn())
        following = iterator.get_next()
        with v1.Session() as session:
            session.run(iterator.initializer)
            return [session.run(following) for _ in range(batches)]


@pytest.mark.matrix
def test_evaluation_goes_through_all_rows_once_in_order():
    dataset = _input().eval_fn()({"batch_size": 512})
    batches = [labels.numpy()[:, 0] for _, labels in dataset]
    assert [len(batch) for batch in batches] == [512] * 9 + [483]
    assert np.concatenate(batches).tolist() == _labels_of_the_file("eval")


@pytest.mark.matrix
def test_training_is_endless_shuffled_and_has_full_batches():
    dataset = _input("train").train_fn()({"batch_size": 4096})
    features, labels = dataset.element_spec
    assert labels.shape == [4096, 1] and features["fare_xf"].shape == [4096, 1]
    batches = [labels.numpy()[:, 0] for _, labels in dataset.take(4)]
    in_order = _labels_of_the_file("train")[:4096]
    assert batches[0].tolist() != in_order
    # More rows than the split has: it starts again.
    assert sum(map(len, batches)) > tfx_testdata.ROWS["train"]


@pytest.mark.matrix
def test_the_order_of_training_is_repeatable_with_a_seed():
    def first(seed):
        source = _input("train", shuffle_seed=seed, shuffle_buffer_size=500)
        dataset = source.train_fn()({"batch_size": 64})
        return next(iter(dataset))[0]["fare_xf"].numpy().tolist()

    assert first(3) == first(3) != first(4)


@pytest.mark.matrix
def test_it_works_inside_a_graph():
    eagerly = next(iter(_input().eval_fn()({"batch_size": 8})))
    ((features, labels),) = _run(lambda: _input().eval_fn()({"batch_size": 8}), 1)
    assert labels.tolist() == eagerly[1].numpy().tolist()
    assert set(features) == set(eagerly[0])
    trained = _run(lambda: _input("train").train_fn()({"batch_size": 4096}), 3)
    assert [len(labels) for _, labels in trained] == [4096] * 3


@pytest.mark.matrix
def test_the_label_is_split_off_or_stays():
    spec = set(tft.TFTransformOutput(tfx_testdata.TRANSFORM_GRAPH).transformed_feature_spec())
    features, _ = _input().eval_fn()({"batch_size": 8}).element_spec
    assert set(features) == spec - {"tips_xf"}
    assert set(_input(label_key=None).eval_fn()({"batch_size": 8}).element_spec) == spec


@pytest.mark.matrix
def test_sparse_features_stay_sparse(transform_graph, tmp_path):
    example = tf.train.Example()
    for name, value in {"miles_xf": 0.5, "fare_xf": 1.0, "stops_xf": 2.0}.items():
        example.features.feature[name].float_list.value.append(value)
    ids = {"company_xf": [1], "payment_xf": [0], "hour_xf": [8], LABEL: [1], "tags_xf": [0, 1]}
    for name, values in ids.items():
        example.features.feature[name].int64_list.value.extend(values)
    path = str(tmp_path / "rows")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(example.SerializeToString())
    split = _input(transform_graph_path=transform_graph, file_patterns=[path], label_key=LABEL)
    ((features, labels),) = _run(lambda: split.eval_fn()({"batch_size": 4}), 1)
    assert isinstance(features["tags_xf"], v1.SparseTensorValue)
    assert features["tags_xf"].values.tolist() == [0, 1] and labels.tolist() == [[1]]


@pytest.mark.matrix
def test_vocabulary_sizes(transform_graph):
    assert vocabulary_sizes(transform_graph) == {"company": 2, "payment": 3, "tags": 2}


@pytest.mark.matrix
def test_vocabulary_sizes_of_the_taxi_trips():
    sizes = vocabulary_sizes(tfx_testdata.TRANSFORM_GRAPH)
    assert list(sizes) == [
        "vocab_compute_and_apply_vocabulary_1_vocabulary",
        "vocab_compute_and_apply_vocabulary_vocabulary",
    ]
    assert min(sizes.values()) > 0


@pytest.mark.matrix
@mostly_swept("batch_size", [1, 5091, 6000], kept=[5091, 6000])
def test_rows_do_not_depend_on_the_batch_size(batch_size):
    dataset = _input().eval_fn()({"batch_size": batch_size})
    assert sum(len(labels) for _, labels in dataset) == tfx_testdata.ROWS["eval"]


def _write_rows(folder, files, rows=12):
    """Writes the first rows of the eval split, dealt to files."""
    (path,) = tf.io.gfile.glob(tfx_testdata.files("eval"))
    data = tf.data.TFRecordDataset(path, compression_type="GZIP").take(rows)
    records = [record.numpy() for record in data]
    for number in range(files):
        options = tf.io.TFRecordOptions(compression_type="GZIP")
        with tf.io.TFRecordWriter(str(folder / f"rows-{number}.gz"), options) as writer:
            for record in records[number::files]:
                writer.write(record)
    return str(folder / "rows-*")


def _seen(pattern, shard, context=None):
    """The rows that training sees in many batches."""
    source = _input(file_patterns=[pattern], shard=shard, shuffle_seed=1)
    params = {"batch_size": 2, **({"context": context} if context else {})}
    dataset = source.train_fn()(params).take(40)
    names = ("fare_xf", "trip_miles_xf", "trip_seconds_xf")
    batches = [
        np.stack([features[name].numpy()[:, 0] for name in names], 1) for features, _ in dataset
    ]
    assert len(batches) == 40 and {batch.shape for batch in batches} == {(2, 3)}
    return {tuple(row) for row in np.concatenate(batches)}


@pytest.mark.matrix
@mostly_swept("files", [1, 4], kept=[4])
def test_each_host_trains_on_its_own_rows(tmp_path, files):
    pattern = _write_rows(tmp_path, files)
    whole = _seen(pattern, (0, 1))
    parts = [_seen(pattern, (index, 3)) for index in range(3)]
    assert len(whole) == 12
    assert set.union(*parts) == whole
    assert sum(len(part) for part in parts) == 12


@pytest.mark.matrix
def test_each_host_of_a_tpu_trains_on_its_own_rows(tmp_path):
    pattern = _write_rows(tmp_path, 1)
    layout = CoreLayout(num_replicas=16)
    contexts = [TPUContext(layout, InputMode.PER_HOST_V1, invocation=host) for host in range(2)]
    parts = [_seen(pattern, (0, 1), context) for context in contexts]
    assert [len(part) for part in parts] == [6, 6] and not parts[0] & parts[1]
    # Beside another reader, the hosts share its part.
    assert len(_seen(pattern, (1, 2), contexts[0])) == 3


_RAW_FILES = os.path.join(tfx_testdata.RAW_EXAMPLES, "Split-eval", "*")


@pytest.fixture(scope="module")
def batches():
    """All batches, read in a v1 graph as an estimator reads them."""
    read = RawEvaluationInput(
        transform_graph_path=tfx_testdata.TRANSFORM_GRAPH,
        file_patterns=(_RAW_FILES,),
        label_key=tfx_testdata.LABEL,
        raw_features=("payment_type", "trip_miles"),
    )
    with tf.Graph().as_default():
        dataset = read.eval_fn()({"batch_size": 1000})
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        batch = iterator.get_next()
        found = []
        with tf.compat.v1.Session() as session:
            session.run(iterator.initializer)
            while True:
                try:
                    found.append(session.run(batch))
                except tf.errors.OutOfRangeError:
                    return found


def _transformed():
    """The transformed rows, by feature."""
    spec = tft.TFTransformOutput(tfx_testdata.TRANSFORM_GRAPH).transformed_feature_spec()
    (path,) = tf.io.gfile.glob(tfx_testdata.files("eval"))
    data = tf.data.TFRecordDataset(path, compression_type="GZIP").batch(100_000)
    return tf.io.parse_example(next(iter(data)), spec)


def test_the_rows_are_those_that_transform_has_written(batches):
    expected = _transformed()
    expected = {name: value.numpy() for name, value in expected.items()}
    label = expected.pop(tfx_testdata.LABEL)
    read = {name: np.concatenate([f[name] for f, _ in batches]) for name in expected}
    labels = np.concatenate([labels for _, labels in batches])
    assert len(labels) == tfx_testdata.ROWS["eval"]
    assert sum(labels) == sum(label)
    # Beam does not keep the order of rows.
    for name, values in expected.items():
        np.testing.assert_array_equal(np.sort(read[name], axis=0), np.sort(values, axis=0))


def test_batches_are_full_but_for_the_last(batches):
    assert [len(labels) for _, labels in batches] == [1000] * 5 + [91]


def test_raw_features_are_beside(batches):
    features, _ = batches[0]
    payments = features[RAW_PREFIX + "payment_type"]
    assert {b"Cash", b"Credit Card"} <= set(np.ravel(getattr(payments, "values", payments)))
    assert RAW_PREFIX + "trip_miles" in features
    assert "trip_miles_xf" in features


def _numbers(count, *, epochs, seed=1, batch_size=1, **sizes):
    with tf.Graph().as_default(), v1.Session() as session:
        dataset = shuffled_row_numbers(count, batch_size=batch_size, seed=seed, **sizes)
        iterator = v1.data.make_initializable_iterator(dataset)
        following = iterator.get_next()
        session.run(iterator.initializer)
        drawn = [session.run(following) for _ in range(-(-count * epochs // batch_size))]
    return np.concatenate(drawn)[: count * epochs].reshape(epochs, count)


@pytest.mark.parametrize("count", [1, 7, 64, 65, 1000])
def test_each_number_comes_once_in_an_epoch(count):
    epochs = _numbers(count, epochs=3, batch_size=5, window=64, chunk=8)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), [np.arange(count)] * 3)


def test_a_window_has_rows_from_all_over_them_other_ones_in_each_epoch():
    windows = [
        set(each) for each in _numbers(1003, epochs=4, batch_size=16, window=64, chunk=8)[:, :64]
    ]
    for window in windows:
        # Eight chunks, of which hardly two are neighbours.
        assert np.ptp(sorted(window)) > 500
        assert np.median(np.diff(sorted(window))) == 1
    assert all(len(one & other) < 40 for one in windows for other in windows if one is not other)


def test_rows_of_one_window_are_shuffled_evenly():
    epochs = _numbers(40, epochs=400, batch_size=32)
    # Each place sees each row 10 times on average: chi squared of 39 * 39 degrees of freedom.
    found = [np.bincount(epochs[:, place], minlength=40) for place in range(40)]
    assert abs((np.square(np.array(found) - 10) / 10).sum() - 39**2) < 5 * np.sqrt(2 * 39**2)


def test_without_a_seed_each_iterator_has_an_order_of_its_own():
    assert not np.array_equal(*(_numbers(40, epochs=1, seed=None) for _ in range(2)))


def test_a_position_is_small_and_exact_however_many_rows_there_are(tmp_path):
    path = str(tmp_path / "position")
    with tf.Graph().as_default():
        dataset = shuffled_row_numbers(50_000_000, batch_size=64, seed=None)
        iterator = v1.data.make_initializable_iterator(dataset)
        following = iterator.get_next()
        position = iterators_of_default_graph()
        with v1.Session() as session:
            session.run(iterator.initializer)
            for _ in range(1500):
                session.run(following)
            position.save(session, path, policy=REFUSED)
            expected = [session.run(following) for _ in range(3)]
        with v1.Session() as session:
            session.run(iterator.initializer)
            position.restore(session, path)
            np.testing.assert_array_equal([session.run(following) for _ in range(3)], expected)
    # Two windows of 65,536 row numbers take 1.05 MB; the number of prefetched batches differs between runs.
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1_500_000
