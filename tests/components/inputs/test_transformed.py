"""TransformedInput on the transformed taxi trips of the tfx wheel."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_transform as tft
from tfx_bsl.public import tfxio

from tests import tfx_testdata
from tests.components.inputs.raw_rows import LABEL
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.components.inputs import TransformedInput, vocabulary_sizes
from tfx_tpu_trainer.estimator.tpu._tpu_context import TPUContext
from tfx_tpu_trainer.estimator.tpu.cores.layout import CoreLayout, InputMode

pytestmark = pytest.mark.matrix

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


def test_evaluation_goes_through_all_rows_once_in_order():
    dataset = _input().eval_fn()({"batch_size": 512})
    batches = [labels.numpy()[:, 0] for _, labels in dataset]
    assert [len(batch) for batch in batches] == [512] * 9 + [483]
    assert np.concatenate(batches).tolist() == _labels_of_the_file("eval")


def test_training_is_endless_shuffled_and_has_full_batches():
    dataset = _input("train").train_fn()({"batch_size": 4096})
    features, labels = dataset.element_spec
    assert labels.shape == [4096, 1] and features["fare_xf"].shape == [4096, 1]
    batches = [labels.numpy()[:, 0] for _, labels in dataset.take(4)]
    in_order = _labels_of_the_file("train")[:4096]
    assert batches[0].tolist() != in_order
    # More rows than the split has: it starts again.
    assert sum(map(len, batches)) > tfx_testdata.ROWS["train"]


def test_the_order_of_training_is_repeatable_with_a_seed():
    def first(seed):
        source = _input("train", shuffle_seed=seed, shuffle_buffer_size=500)
        dataset = source.train_fn()({"batch_size": 64})
        return next(iter(dataset))[0]["fare_xf"].numpy().tolist()

    assert first(3) == first(3) != first(4)


def test_it_works_inside_a_graph():
    eagerly = next(iter(_input().eval_fn()({"batch_size": 8})))
    ((features, labels),) = _run(lambda: _input().eval_fn()({"batch_size": 8}), 1)
    assert labels.tolist() == eagerly[1].numpy().tolist()
    assert set(features) == set(eagerly[0])
    trained = _run(lambda: _input("train").train_fn()({"batch_size": 4096}), 3)
    assert [len(labels) for _, labels in trained] == [4096] * 3


def test_the_label_is_split_off_or_stays():
    spec = set(tft.TFTransformOutput(tfx_testdata.TRANSFORM_GRAPH).transformed_feature_spec())
    features, _ = _input().eval_fn()({"batch_size": 8}).element_spec
    assert set(features) == spec - {"tips_xf"}
    assert set(_input(label_key=None).eval_fn()({"batch_size": 8}).element_spec) == spec


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


def test_vocabulary_sizes(transform_graph):
    assert vocabulary_sizes(transform_graph) == {"company": 2, "payment": 3, "tags": 2}


def test_vocabulary_sizes_of_the_taxi_trips():
    sizes = vocabulary_sizes(tfx_testdata.TRANSFORM_GRAPH)
    assert list(sizes) == [
        "vocab_compute_and_apply_vocabulary_1_vocabulary",
        "vocab_compute_and_apply_vocabulary_vocabulary",
    ]
    assert min(sizes.values()) > 0


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


@mostly_swept("files", [1, 4], kept=[4])
def test_each_host_trains_on_its_own_rows(tmp_path, files):
    pattern = _write_rows(tmp_path, files)
    whole = _seen(pattern, (0, 1))
    parts = [_seen(pattern, (index, 3)) for index in range(3)]
    assert len(whole) == 12
    assert set.union(*parts) == whole
    assert sum(len(part) for part in parts) == 12


def test_each_host_of_a_tpu_trains_on_its_own_rows(tmp_path):
    pattern = _write_rows(tmp_path, 1)
    layout = CoreLayout(num_replicas=16)
    contexts = [TPUContext(layout, InputMode.PER_HOST_V1, invocation=host) for host in range(2)]
    parts = [_seen(pattern, (0, 1), context) for context in contexts]
    assert [len(part) for part in parts] == [6, 6] and not parts[0] & parts[1]
    # Beside another reader, the hosts share its part.
    assert len(_seen(pattern, (1, 2), contexts[0])) == 3
