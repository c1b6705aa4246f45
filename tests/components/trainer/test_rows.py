"""Tests the rows of the default input: kept for all epochs, and named when one causes a failure."""

from __future__ import annotations

import gzip
import logging

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_transform as tft

from tests import tfx_testdata
from tests.bad_input import case, row
from tests.components.trainer.execution import Execution, examples_of, records
from tests.estimator._engine.templates import make_template
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.components.trainer.estimators import draws_elsewhere
from tfx_tpu_trainer.components.trainer.rows import Rows, failures_explained, values_by_row
from tfx_tpu_trainer.components.trainer.settings import TrainSettings
from tfx_tpu_trainer.estimator._engine.nan_checks import NanLossError
from tfx_tpu_trainer.estimator._engine.sessions.run_errors import run_errors_explained
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.places.choice import EMULATE_VARIABLE

v1 = tf.compat.v1


_WRONG_ROW = 24  # of 40, beyond the first batches


@pytest.fixture(scope="module")
def spec():
    return tft.TFTransformOutput(tfx_testdata.TRANSFORM_GRAPH).transformed_feature_spec()


@pytest.fixture
def rows(tmp_path, spec):
    """Writes rows, the 25th of them edited, and then the file; returns them."""

    def written(edit=lambda example: None, record=None, file=lambda data: data):
        given = records("train", 40)
        example = tf.train.Example.FromString(given[_WRONG_ROW])
        edit(example.features.feature)
        given[_WRONG_ROW] = example.SerializeToString() if record is None else record
        examples_of(tmp_path, train=given)
        (path,) = (tmp_path / "Split-train").iterdir()
        path.write_bytes(gzip.compress(file(gzip.decompress(path.read_bytes()))))
        return Rows(split="train split 'train'", patterns=(f"{path.parent}/*",), spec=spec)

    return written


def _run(rows, model=lambda features: features["fare_xf"]):
    """Reads rows as a training does, and runs a model on them."""
    with fresh_graph():
        (path,) = tf.io.gfile.glob(rows.patterns[0])
        dataset = tf.data.TFRecordDataset(path, compression_type="GZIP").batch(8)
        parsed = dataset.map(lambda records: tf.io.parse_example(records, rows.spec))
        features = v1.data.make_one_shot_iterator(parsed).get_next()
        loss = model(features)
        template = make_template("train", features=features)
        with v1.Session() as session, run_errors_explained(template):
            for _ in range(5):
                session.run(loss)


def _without(name):
    return lambda features: features.pop(name)


def _set(name, **values):
    def edit(features):
        features[name].Clear()
        for kind, given in values.items():
            getattr(features[name], kind).value.extend(given)

    return edit


_FILE = "rows-00000-of-00001.gz"
_ADVICE = "run Transform again"


@pytest.mark.parametrize(
    "wrong",
    [
        case(
            "data",
            "a TFRecord file that was cut off, seen after the first batch",
            "train split 'train': row 40 of",
            f"{_FILE} can't be read: truncated record",
            _ADVICE,
            values={"file": lambda data: data[:-30]},
        ),
        case(
            "data",
            "a record that is not a tf.Example",
            "train split 'train': row 25 of",
            f"{_FILE} can't be read: ",
            _ADVICE,
            values={"record": b"garbage"},
        ),
        case(
            "data",
            "a row without a feature that the schema requires, seen after the first batch",
            "train split 'train': row 25 of",
            f"{_FILE} can't be read: ",
            "Feature: fare_xf (data type: float) is required but could not be found",
            _ADVICE,
            values={"edit": _without("fare_xf")},
        ),
        case(
            "data",
            "a row with text where the schema has a number",
            "row 25 of",
            "Key: fare_xf",
            "Data types don't match",
            values={"edit": _set("fare_xf", bytes_list=[b"x"])},
        ),
        case(
            "data",
            "a row with two values where the schema has one",
            "row 25 of",
            "Key: fare_xf",
            "Number of float values != expected",
            values={"edit": _set("fare_xf", float_list=[1.0, 2.0])},
        ),
    ],
)
def test_a_row_that_cannot_be_read_is_named(rows, wrong, refused):
    read = rows(**wrong)
    with refused(ValueError), failures_explained([read]):
        _run(read)


def _embedded(features):
    return tf.nn.embedding_lookup(tf.ones([16, 2]), features["payment_type_xf"])


def _with_labels(features):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=features["tips_xf"][:, 0], logits=tf.ones([8, 2])
    )


@pytest.mark.parametrize(
    ("name", "model"),
    [
        case(
            "data",
            "an id beyond a model's table",
            "train split 'train': the feature 'payment_type_xf' in row 25 of",
            "is 99, and 'embedding_lookup' takes [0, 16): ",
            "or make the model larger",
            values=("payment_type_xf", _embedded),
        ),
        case(
            "data",
            "a label beyond a model's classes",
            "train split 'train': the feature 'tips_xf' in row 25 of",
            "is 99, and 'SparseSoftmaxCrossEntropyWithLogits",
            "takes [0, 2): ",
            "or make the model larger",
            values=("tips_xf", _with_labels),
        ),
    ],
)
def test_a_value_that_a_model_does_not_take_is_named(rows, name, model, refused):
    read = rows(edit=_set(name, int64_list=[99]))
    with refused(ValueError), failures_explained([read]):
        _run(read, model)


@row(
    "data",
    "a NaN among the features, and a loss that became NaN",
    "train split 'train': the feature 'fare_xf' in row 25 of",
    "is not finite: correct it in the data",
    "NaN loss during training, at global step 3",
)
def test_a_value_that_is_not_finite_is_named_with_the_loss(rows, refused):
    read = rows(edit=_set("fare_xf", float_list=[np.nan]))
    with refused(ValueError), failures_explained([read]):
        raise NanLossError(step=3, checkpoint=None)


@row(
    "data",
    "an op that fails, and no row explains it",
    "assertion failed: [no such day] (at 'a_check/Assert')",
)
def test_other_errors_of_an_op_are_one_line(rows, refused):
    def model(features):
        check = v1.Assert(tf.constant(False), ["no such day"], name="a_check")
        with tf.control_dependencies([check]):
            return tf.identity(features["fare_xf"])

    read = rows()
    with refused(tf.errors.InvalidArgumentError), failures_explained([read]):
        _run(read, model)


def test_rows_without_fault_leave_an_error_as_it_is(rows):
    read = rows()
    message = "inputs end here [[{{node IteratorGetNext}}]]"
    error = tf.errors.DataLossError(None, None, message)
    with pytest.raises(tf.errors.DataLossError) as raised, failures_explained([read]):
        raise error
    assert raised.value is error


@row(
    "data",
    "an eval split with a row that can't be read, seen after the training",
    "eval split 'eval': row 16 of",
    "Split-eval",
    "Feature: fare_xf (data type: float) is required",
    _ADVICE,
)
def test_a_training_names_the_row_and_leaves_no_model(tmp_path, refused):
    execution = Execution.of_trainer(tmp_path, steps=1, train_batch_size=4, eval_batch_size=4)
    wrong = records("eval", 20)
    example = tf.train.Example.FromString(wrong[15])
    del example.features.feature["fare_xf"]
    wrong[15] = example.SerializeToString()
    rows = examples_of(tmp_path / "rows", train=records("train", 8), eval=wrong)
    execution.inputs["examples"] = [rows]
    with refused(ValueError):
        execution.run()
    assert execution.files() == []


# 12 steps are 1.2 epochs of the rows.
ROWS = 990
TWO_EPOCHS = {"steps": 12, "train_batch_size": 102, "export_to_tpu": 0, "tf_random_seed": 1}


@pytest.fixture(scope="module")
def some_rows(tmp_path_factory):
    rows = {"train": records("train", ROWS), "eval": records("eval", 100)}
    return examples_of(tmp_path_factory.mktemp("some_rows"), **rows)


@pytest.mark.matrix
@mostly_swept(
    ("settings", "times"),
    [
        # Three parts of the training, with evaluations in between, are three sessions.
        ({"eval_every_steps": 5}, 1),
        ({"cache_input": 0}, 0),
        ({"train_batch_size": 64}, 0),
        ({"train_batch_size": 64, "cache_input": 1}, 1),
        ({"module": "tests.components.trainer.interrupted_own_input"}, 0),
    ],
    kept=[({"eval_every_steps": 5}, 1), ({"cache_input": 0}, 0)],
)
def test_rows_are_parsed_once_where_there_is_a_second_epoch(
    tmp_path, caplog, monkeypatch, some_rows, settings, times
):
    monkeypatch.setenv("TEST_FAILS_WHILE", str(tmp_path / "nothing"))
    execution = Execution.of_trainer(tmp_path, **{**TWO_EPOCHS, **settings})
    execution.inputs["examples"] = [some_rows]
    with caplog.at_level(logging.INFO):
        execution.run()
    assert caplog.text.count("Parsed the training input in") == times


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("settings", "elsewhere"),
    [
        ({}, False),
        ({"use_tpu": True, "master": "emulated"}, False),
        ({"use_tpu": True, "master": "grpc://10.0.0.2:8470"}, True),
        ({"tpu": "v3:2x2", "train_batch_size": 64}, True),
        ({"tpu": "v5e:2x4", "train_batch_size": 64}, False),
    ],
)
def test_the_session_of_a_tpu_host_draws_rows_of_its_own(monkeypatch, settings, elsewhere):
    monkeypatch.delenv(EMULATE_VARIABLE, raising=False)
    assert draws_elsewhere(TrainSettings.parse(settings)) == elsewhere
    monkeypatch.setenv(EMULATE_VARIABLE, "1")
    assert not draws_elsewhere(TrainSettings.parse(settings))


@pytest.mark.matrix
@row(
    "data",
    "a row that can't be read in the middle of a train split whose rows are parsed once",
    "train split 'train': row 16 of",
    "Feature: fare_xf (data type: float) is required",
    "correct it in the data",
)
def test_a_row_that_cannot_be_parsed_is_named(tmp_path, refused):
    execution = Execution.of_trainer(tmp_path, steps=9, train_batch_size=4, eval_batch_size=4)
    wrong = records("train", 20)
    example = tf.train.Example.FromString(wrong[15])
    del example.features.feature["fare_xf"]
    wrong[15] = example.SerializeToString()
    rows = examples_of(tmp_path / "rows", train=wrong, eval=records("eval", 8))
    execution.inputs["examples"] = [rows]
    with refused(ValueError):
        execution.run()


_SPECS = {
    "dense": tf.io.FixedLenFeature([2], tf.int64),
    "sparse": tf.io.VarLenFeature(tf.int64),
    "indexed": tf.io.SparseFeature("at", "values", tf.int64, 9),
    "ragged": tf.io.RaggedFeature(tf.int64, value_key="values"),
    "pairs": tf.io.RaggedFeature(
        tf.int64, value_key="pairs", partitions=[tf.io.RaggedFeature.UniformRowLength(2)]
    ),
    "nested": tf.io.RaggedFeature(
        tf.int64, value_key="values", partitions=[tf.io.RaggedFeature.RowLengths("lengths")]
    ),
}
_FEW = [
    {"dense": [1, 2], "sparse": [3], "at": [4, 7], "values": [5, 6], "lengths": [0, 2]},
    {"dense": [7, 8], "pairs": [1, 2, 3, 4]},
    {"dense": [9, 9], "sparse": [4, 5], "at": [0], "values": [1], "lengths": [1]},
]
# Which list of a row each feature's values are.
_LISTS = {"indexed": "values", "ragged": "values", "nested": "values"}


def _serialized(row):
    example = tf.train.Example()
    for name, values in row.items():
        example.features.feature[name].int64_list.value.extend(values)
    return example.SerializeToString()


@pytest.mark.parametrize("count", [3, 0])
@pytest.mark.parametrize("name", _SPECS)
def test_each_row_has_its_own_values(name, count):
    with tf.Graph().as_default(), v1.Session() as session:
        records = tf.constant([_serialized(row) for row in _FEW[:count]], tf.string, [count])
        value = session.run(tf.io.parse_example(records, {name: _SPECS[name]})[name])
    found = [row.tolist() for row in values_by_row(value)]
    assert found == [row.get(_LISTS.get(name, name), []) for row in _FEW[:count]]


def test_values_that_are_not_in_the_order_of_their_rows():
    indices, shape = np.array([[2, 0], [0, 1], [2, 1]]), np.array([4, 2])
    value = v1.SparseTensorValue(indices, np.array([b"a", b"b", b"c"], object), shape)
    assert [row.tolist() for row in values_by_row(value)] == [[b"b"], [], [b"a", b"c"], []]
