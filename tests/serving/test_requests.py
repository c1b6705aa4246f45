"""Requests made of raw rows, by name and type of each input."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import case
from tests.op_determinism import deterministic_ops
from tfx_tpu_trainer.serving import RequestError, SignatureDescription, TensorDescription
from tfx_tpu_trainer.serving._requests import read_tfrecords, request_inputs, says_missing


def _row(**features):
    example = tf.train.Example()
    for name, values in features.items():
        kind = {str: "bytes_list", float: "float_list", int: "int64_list"}[type(values[0])]
        encoded = [v.encode() if isinstance(v, str) else v for v in values]
        getattr(example.features.feature[name], kind).value.extend(encoded)
    return example.SerializeToString()


def _signature(**inputs):
    return SignatureDescription({k: TensorDescription(*v) for k, v in inputs.items()}, {})


ROWS = [_row(fare=[2.5], company=["a", "b"], n=[7]), _row(fare=[4.0], n=[8]), _row(company=["c"])]


def test_one_string_input_takes_the_examples():
    inputs = request_inputs(_signature(inputs=("string", (None,))), ROWS)
    assert inputs["inputs"].tolist() == ROWS


def test_one_string_input_with_the_name_of_a_feature_takes_that():
    inputs = request_inputs(_signature(company=("string", (None, None))), ROWS)
    assert inputs["company"].tolist() == [[b"a", b"b"], [b"", b""], [b"c", b""]]


def test_values_that_a_row_lacks_are_missing_ones():
    signature = _signature(
        fare=("float32", (None,)), n=("int64", (None, None)), company=("string", (None, None))
    )
    inputs = request_inputs(signature, ROWS)
    assert inputs["fare"].dtype == np.float32 and inputs["n"].dtype == np.int64
    np.testing.assert_array_equal(inputs["fare"], np.float32([2.5, 4.0, np.nan]))
    assert inputs["n"].tolist() == [[7], [8], [tf.int64.min]]


def test_a_feature_that_all_rows_lack_is_missing_in_all():
    inputs = request_inputs(
        _signature(fare=("float32", (None,)), tips=("float32", (None, None))), ROWS
    )
    np.testing.assert_array_equal(inputs["tips"], np.full([3, 1], np.nan, np.float32))


def test_a_default_takes_the_place_of_a_value_that_a_row_lacks():
    inputs = request_inputs(_signature(fare=("float32", (None,))), ROWS, defaults={"fare": 9.0})
    assert inputs["fare"].tolist() == [2.5, 4.0, 9.0]
    inputs = request_inputs(
        _signature(z=("float32", (None, 2))), ROWS, defaults={"z": [[1.0, 2.0]]}
    )
    assert inputs["z"].tolist() == [[1.0, 2.0]] * 3


def test_fixed_shapes_are_kept():
    inputs = request_inputs(
        _signature(z=("float32", (None, 2, 2))), [_row(z=[1.0, 2.0, 3.0, 4.0])] * 2
    )
    assert inputs["z"].tolist() == [[[1.0, 2.0], [3.0, 4.0]]] * 2


@pytest.mark.parametrize(
    "inputs",
    [
        case("exports", f"rows for a signature with {given}", *says, values=inputs)
        for given, inputs, *says in (
            (
                "other inputs",
                {"other": ("float32", (None,))},
                "none of its inputs (other) is a feature of the rows",
            ),
            (
                "numbers, where they hold text",
                {"company": ("float32", (None, None))},
                "its input 'company' (float32[?, ?]) doesn't take a row's values: could not convert",
            ),
            (
                "one value, where a row has none",
                {"n": ("int64", (None, 1))},
                "its input 'n' (int64[?, 1]) takes 1 values per row, but a row has 0",
            ),
            (
                "one value, where a row has two",
                {"company": ("string", (None,)), "n": ("int64", (None,))},
                "its input 'company' (string[?]) takes 1 values per row, but a row has 2",
            ),
            (
                "an input of unknown rank",
                {"fare": ("float32", None)},
                "its input 'fare' is float32<unknown rank>, to which rows can't be fitted",
            ),
        )
    ],
)
def test_rows_that_do_not_fit_are_named(inputs, refused):
    with refused(RequestError):
        request_inputs(_signature(**inputs), ROWS)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (_row(fare=[1.0], company=["a"], n=[0]), False),
        (_row(company=["a", ""]), True),
        (_row(fare=[float("nan")]), True),
        (_row(n=[tf.int64.min]), True),
        (_row(other=[""]), False),
    ],
    # A serialized row has no order, and each worker must give a test the same name.
    ids=["plain values", "empty string", "NaN", "least int64", "an empty string elsewhere"],
)
def test_values_that_stand_for_missing_ones_are_noticed(row, expected):
    signature = _signature(
        fare=("float32", (None,)), n=("int64", (None,)), company=("string", (None, None))
    )
    assert says_missing(signature, [ROWS[0], row]) is expected


def test_records_are_read_with_deterministic_ops_and_without_a_seed(tmp_path):
    path = str(tmp_path / "rows")
    with tf.io.TFRecordWriter(path) as writer:
        for row in (b"a", b"b", b"c"):
            writer.write(row)
    with deterministic_ops():
        assert read_tfrecords([path, path], limit=4) == [b"a", b"b", b"c", b"a"]
