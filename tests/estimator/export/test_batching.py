"""BatchConfig, and a computation behind a BatchFunction op, run on this host."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tfx_tpu_trainer.estimator.export._batching import call_in_batches
from tfx_tpu_trainer.estimator.tpu import BatchConfig

v1 = tf.compat.v1

NUMBERS = {
    "num_batch_threads": 1,
    "max_batch_size": 8,
    "batch_timeout_micros": 0,
    "allowed_batch_sizes": [2, 8],
}


@pytest.mark.behaviour(332)
def test_a_batch_config_is_a_named_tuple():
    config = BatchConfig(4, 64, 5000, [8, 64])
    assert config.max_enqueued_batches == 100
    assert tuple(config) == (4, 64, 5000, [8, 64], 100)
    assert config._fields == (
        "num_batch_threads",
        "max_batch_size",
        "batch_timeout_micros",
        "allowed_batch_sizes",
        "max_enqueued_batches",
    )


@pytest.mark.parametrize("sizes", [None, [], [8], [1, 2, 8], (4, 8)])
@pytest.mark.behaviour(332)
def test_sizes_that_hold(sizes):
    assert BatchConfig(**{**NUMBERS, "allowed_batch_sizes": sizes}).allowed_batch_sizes == sizes


@pytest.mark.parametrize(
    "sizes",
    [
        case(
            "exports",
            f"`BatchConfig(max_batch_size=8, allowed_batch_sizes={sizes!r})`",
            "allowed_batch_sizes must increase and end with max_batch_size (8), got: ",
            values=(sizes,),
        )
        for sizes in ([2], [8, 2], [2, 2, 8], [2, 16], [0, 8], ["8"], "8", [4.0, 8])
    ],
)
@pytest.mark.behaviour(332)
def test_sizes_must_increase_up_to_the_largest_batch(sizes, refused):
    with refused(ValueError):
        BatchConfig(**{**NUMBERS, "allowed_batch_sizes": sizes})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        case(
            "exports",
            f"`BatchConfig({name}={value!r})`",
            f"{name} must be at least ",
            f"got: {value!r}. To serve without batching, leave the batch_config out",
            values=(name, value),
        )
        for name, value in (
            ("num_batch_threads", 0),
            ("num_batch_threads", 1.5),
            ("num_batch_threads", "4"),
            ("max_batch_size", None),
            ("max_batch_size", 0),
            ("max_batch_size", True),
            ("batch_timeout_micros", -1),
            ("batch_timeout_micros", float("nan")),
            ("max_enqueued_batches", 0),
        )
    ],
)
@pytest.mark.behaviour(332)
def test_numbers_that_are_too_small(name, value, refused):
    with refused(ValueError):
        BatchConfig(**{**NUMBERS, name: value})


def double_and_count(x):
    """Twice the rows, and the size of the batch in every row."""
    size = tf.shape(x)[:1]
    return {"double": 2 * x, "size": tf.tile(size, size)}


def build(config):
    x = v1.placeholder(tf.float32, [None, 2], name="x")
    return x, call_in_batches(double_and_count, [x], config)


@pytest.mark.parametrize(("rows", "size"), [(1, 2), (2, 2), (3, 8), (8, 8)])
@pytest.mark.behaviour(332)
def test_batches_are_padded_to_an_allowed_size(rows, size):
    values = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    with tf.Graph().as_default(), v1.Session() as session:
        x, results = build(BatchConfig(**NUMBERS))
        assert results["double"].shape.as_list() == [None, 2]
        assert results["size"].shape.as_list() == [None]
        answers = session.run(results, {x: values})
    np.testing.assert_array_equal(answers["double"], 2 * values)
    assert answers["size"].tolist() == [size] * rows


@pytest.mark.behaviour(332)
def test_requests_at_the_same_time_make_one_batch():
    """Two threads ask; a timeout that is long enough waits for both, and each gets its rows."""
    numbers = {**NUMBERS, "batch_timeout_micros": 20_000_000, "allowed_batch_sizes": [4]}
    config = BatchConfig(**{**numbers, "max_batch_size": 4})
    answers = {}
    with tf.Graph().as_default(), v1.Session() as session:
        x, results = build(config)

        def ask(value):
            answers[value] = session.run(results, {x: [[value, value]] * 2})

        threads = [threading.Thread(target=ask, args=[value]) for value in (1.0, 5.0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for value, answer in answers.items():
        assert answer["double"].tolist() == [[2 * value, 2 * value]] * 2
        assert answer["size"].tolist() == [4, 4]
    assert len(answers) == 2


@pytest.mark.behaviour(332)
def test_without_a_config_the_function_is_called_as_it_is():
    with tf.Graph().as_default() as graph:
        x, results = build(None)
        assert "BatchFunction" not in {op.type for op in graph.get_operations()}
        with v1.Session() as session:
            assert session.run(results["size"], {x: [[0, 0]] * 3}).tolist() == [3, 3, 3]


@row(
    "exports",
    "sparse input of a model that batches",
    "Batching takes dense tensors only, got the input",
)
def test_sparse_inputs_are_refused(refused):
    with tf.Graph().as_default():
        sparse = v1.sparse_placeholder(tf.float32, [None, 3])
        with refused(ValueError):
            call_in_batches(tf.sparse.to_dense, [sparse], BatchConfig(**NUMBERS))


def test_scalars_are_refused():
    with tf.Graph().as_default():
        scalar = v1.placeholder(tf.float32, [], name="scalar")
        with pytest.raises(ValueError, match=r"The input 'scalar:0' .* is a scalar"):
            call_in_batches(tf.identity, [scalar], BatchConfig(**NUMBERS))
        rows = v1.placeholder(tf.float32, [None], name="rows")
        with pytest.raises(ValueError, match=r"The result .* is a scalar"):
            call_in_batches(tf.reduce_sum, [rows], BatchConfig(**NUMBERS))
