"""A computation called on a TPU: refused where no TPU could run it, batched where a BatchConfig says so."""

import os
import re
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tests.estimator.export import small_export
from tests.estimator.export.small_export import call_model, linear
from tfx_tpu_trainer.estimator import export
from tfx_tpu_trainer.estimator.export._tpu_call import call_in_batches
from tfx_tpu_trainer.estimator.export._tpu_metagraph import build_tpu_meta_graph
from tfx_tpu_trainer.estimator.tpu import BatchConfig, TPUEstimatorSpec, inference_on_tpu

v1 = tf.compat.v1


def _length_of_text(features):
    y = linear(features)
    return {"y": y, "digits": tf.strings.length(tf.as_string(y))}


def _line_of(text):
    with open(__file__, encoding="utf-8") as file:
        return 1 + next(i for i, line in enumerate(file) if text in line)


def test_strings_are_refused_with_their_line():
    line = _line_of("tf.strings.length(tf.as_string(y))}")
    message = (
        rf"no TPU can run AsString 'AsString', which handles strings \({re.escape(__file__)}:{line}: "
        r'return \{"y": y, .*\); StringLength .*outside_compilation\(function.*export_to_tpu=False'
    )
    with pytest.raises(ValueError, match=message) as caught:
        build_tpu_meta_graph(call_model(_length_of_text), small_export.receiver_fn, api_version=1)
    assert "\n" not in str(caught.value)


def test_nothing_is_written(tmp_path):
    model = call_model(_length_of_text)
    checkpoint = small_export.write_checkpoint(model, tmp_path)
    with pytest.raises(ValueError, match="AsString"):
        small_export.export_model(model, tmp_path, checkpoint_path=checkpoint)
    assert not os.path.exists(f"{tmp_path}/versions")


def test_a_table_is_refused():
    def network(features):
        with tf.init_scope():
            initializer = tf.lookup.KeyValueTensorInitializer(
                tf.constant([0, 1], tf.int64), tf.constant([5, 6], tf.int64)
            )
            table = tf.lookup.StaticHashTable(initializer, -1)
        return {"id": table.lookup(tf.cast(linear(features), tf.int64))}

    with pytest.raises(ValueError, match=r"LookupTableFindV2 '.*', which looks up a table"):
        build_tpu_meta_graph(call_model(network), small_export.receiver_fn, api_version=1)


def test_an_op_within_a_branch_is_found_by_the_branchs_line():
    def network(features):
        y = linear(features)
        texts = tf.cond(tf.reduce_sum(y) > 0, lambda: tf.as_string(y), lambda: tf.as_string(-y))
        return {"y": y + tf.strings.to_number(texts)}

    line = _line_of("texts = tf.cond(")
    message = rf"AsString 'AsString' in \w*If 'cond', which handles strings \(.*:{line}: texts ="
    with pytest.raises(ValueError, match=message):
        build_tpu_meta_graph(call_model(network), small_export.receiver_fn, api_version=1)


def test_a_python_function_is_refused_in_version_2_too():
    def compute(x):
        return [tf.numpy_function(lambda value: value, [x], tf.float32)]

    def through_our_call(features):
        return inference_on_tpu(compute, [features["x"]], 1, None, 0)

    def by_hand(features):
        return v1.tpu.rewrite(compute, [features["x"]])

    for rewrite in (through_our_call, by_hand):

        def model(features, labels, mode, use_tpu, rewrite=rewrite):
            return TPUEstimatorSpec(mode, predictions={"y": rewrite(features)[0]})

        with pytest.raises(ValueError, match=r"PyFunc '\w+', which calls Python"):
            build_tpu_meta_graph(model, small_export.receiver_fn, api_version=2)


def test_texts_of_assertions_and_strings_outside_of_the_compilation_are_no_mistake(tmp_path):
    def network(features):
        y = linear(features)
        with tf.control_dependencies([v1.assert_less(tf.abs(y), 1e6, message="too large")]):
            y = tf.identity(y)
        return {"y": y, "text": v1.tpu.outside_compilation(tf.as_string, y)}

    path = small_export.export_model(call_model(network), tmp_path)
    assert small_export.serve(path, {"x": small_export.ROWS})["text"].dtype == object


def test_a_model_for_cpu_hosts_only_may_hold_strings(tmp_path):
    path = small_export.export_model(call_model(_length_of_text), tmp_path, export_to_tpu=False)
    assert small_export.serve(path, {"x": small_export.ROWS})["digits"].shape == (2, 2)


def test_the_receiver_may_hold_strings():
    def receiver_fn():
        text = v1.placeholder(tf.string, [None, 3], name="text")
        return export.ServingInputReceiver({"x": tf.strings.to_number(text)}, {"text": text})

    meta_graph = build_tpu_meta_graph(call_model(linear), receiver_fn, api_version=1)
    assert "serving_default" in meta_graph.signatures


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
