import gc
import queue
import weakref

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator._engine.templates import batches_of, make_template, settings_in
from tfx_tpu_trainer.estimator._engine import prediction
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import as_input_tensors
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import LoopEndHook
from tfx_tpu_trainer.estimator._engine.prediction import (
    PredictionPlan,
    predict_batches,
    select_predictions,
    single_rows,
)
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


class _Calls(v1.train.SessionRunHook):
    """Counts session calls."""

    def __init__(self) -> None:
        self.number = 0

    def before_run(self, run_context):
        del run_context
        self.number += 1


class _CallsAtLoopEnds(_Calls, LoopEndHook):
    """Asks for nothing that a loop could not give."""


def _predict(folder, make_dataset, predictions_of, *hooks):
    with fresh_graph():
        inputs = as_input_tensors(make_dataset())
        predictions = predictions_of(inputs.features)
        template = make_template("infer", predictions=predictions)
    return predict_batches(
        PredictionPlan(template, predictions),
        settings=settings_in(folder),
        hooks=[*inputs.hooks, *hooks],
        checkpoint_path=None,
    )


def _numbers(count: int, batch_size: int = 1, *, maps=()):
    """A maker of a dataset of 0, 1, ..., batched and then mapped."""

    def make_dataset() -> tf.data.Dataset:
        dataset = tf.data.Dataset.range(count).batch(batch_size)
        for function in maps:
            dataset = dataset.map(function)
        return dataset

    return make_dataset


def _collect(batches, seen):
    for batch in batches:
        seen.extend(batch.tolist())


def test_the_first_call_runs_one_batch_and_each_no_more_than_were_yielded_before(tmp_path):
    calls = _CallsAtLoopEnds()
    batches = _predict(tmp_path, _numbers(300), lambda x: x, calls)
    yielded, calls_at = 0, []
    for _ in batches:
        calls_at.append(calls.number)
        yielded += 1
    assert yielded == 300
    assert calls_at[0] == 1
    sizes = [calls_at.count(call) for call in range(1, calls_at[-1] + 1)]
    before = [1, *np.cumsum(sizes)[:-1]]
    assert all(size <= most for size, most in zip(sizes, before))


def test_batches_are_those_of_a_call_for_each(tmp_path):
    def predictions(x):
        return {
            "text": tf.strings.as_string(x),
            "b": tf.cast(x, tf.float32)[:, tf.newaxis] * [[1.0, 2.0]],
            "a": tf.reshape(tf.cast(x, tf.bool), [-1, 1, 1]),
            "none": tf.zeros([tf.shape(x)[0], 0]),
        }

    one_by_one = list(_predict(tmp_path, _numbers(31, 4), predictions, _Calls()))
    together = list(_predict(tmp_path, _numbers(31, 4), predictions))
    assert len(together) == len(one_by_one) == 8
    for ours, expected in zip(together, one_by_one):
        assert list(ours) == list(expected)
        for name, value in expected.items():
            assert ours[name].dtype == value.dtype
            assert ours[name].shape == value.shape
            np.testing.assert_array_equal(ours[name], value)


def test_predictions_may_differ_in_their_number_of_rows(tmp_path):
    def predictions(x):
        return {"rows": x, "halves": tf.repeat(x, 2)}

    batches = list(_predict(tmp_path, _numbers(5, 2), predictions))
    assert [batch["halves"].tolist() for batch in batches] == [[0, 0, 1, 1], [2, 2, 3, 3], [4, 4]]


def test_an_input_error_comes_after_the_batches_before_it(tmp_path):
    def fails_at_eleven(x):
        x = tf.cast(x, tf.float32)
        return tf.debugging.check_numerics(tf.where(tf.equal(x, 11), np.nan, x), "11!")

    seen = []
    with pytest.raises(tf.errors.InvalidArgumentError, match="11!"):
        _collect(_predict(tmp_path, _numbers(20, maps=[fails_at_eleven]), lambda x: x), seen)
    assert seen == list(range(11))


def test_an_error_of_the_model_comes_after_the_batches_before_it(tmp_path):
    def fails_at_six(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, np.int64(6))]):
            return tf.identity(x)

    seen = []
    with pytest.raises(tf.errors.InvalidArgumentError):
        _collect(_predict(tmp_path, _numbers(20), fails_at_six), seen)
    assert seen == list(range(6))


def test_an_empty_input_gives_nothing(tmp_path):
    assert list(_predict(tmp_path, _numbers(0), lambda x: x)) == []


@pytest.mark.parametrize(
    "predictions_of",
    [
        pytest.param(lambda x: {"rows": x, "scalar": tf.reduce_sum(x)}, id="scalar"),
        pytest.param(lambda x: tf.ones([tf.size(x), tf.cast(x[0], tf.int32) + 1]), id="ragged"),
    ],
)
def test_predictions_that_cannot_be_joined_go_batch_by_batch(tmp_path, predictions_of):
    calls = _CallsAtLoopEnds()
    assert len(list(_predict(tmp_path, _numbers(10), predictions_of, calls))) == 10
    assert calls.number >= 10


def test_a_hook_that_wants_every_batch_gets_it(tmp_path):
    calls = _Calls()
    assert len(list(_predict(tmp_path, _numbers(10), lambda x: x, calls))) == 10
    assert calls.number >= 10


def test_a_generator_is_never_waited_for_with_answers_in_hand(tmp_path):
    # A service feeds a generator with its requests, each made after the answer to the last.
    requests, answers = queue.SimpleQueue(), []
    requests.put(0)

    def next_request():
        while (request := requests.get(timeout=10)) is not None:
            yield request

    def make_dataset():
        signature = tf.TensorSpec((), tf.int64)
        return tf.data.Dataset.from_generator(next_request, output_signature=signature).batch(1)

    for batch in _predict(tmp_path, make_dataset, lambda x: x + 1):
        answers.append(int(batch[0]))
        requests.put(answers[-1] if answers[-1] < 20 else None)
    assert answers == list(range(1, 21))


def test_a_call_gives_no_more_bytes_than_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(prediction, "_MOST_BYTES", 32)
    calls = _CallsAtLoopEnds()
    # Eight bytes each: four batches in a call at most.
    assert len(list(_predict(tmp_path, _numbers(42), lambda x: x, calls))) == 42
    assert calls.number >= 11


def test_random_numbers_are_those_of_a_call_for_each_batch(tmp_path):
    def noise(x):
        return tf.random.uniform(tf.shape(x), seed=3)

    one_by_one = list(_predict(tmp_path, _numbers(20), noise, _Calls()))
    together = list(_predict(tmp_path, _numbers(20), noise))
    np.testing.assert_array_equal(together, one_by_one)


def test_the_batches_own_arrays_may_be_changed(tmp_path):
    batches = []
    for batch in _predict(tmp_path, _numbers(6, 2), lambda x: x):
        batch += 10
        batches.append(batch.tolist())
    assert batches == [[10, 11], [12, 13], [14, 15]]


class _SessionWatcher(v1.train.SessionRunHook):
    """Knows the session that it ran in."""

    def after_create_session(self, session, coord):
        del coord
        self.session = session


def _is_closed(session: v1.Session) -> bool:
    try:
        session.run([])
    except RuntimeError as error:
        return "closed Session" in str(error)
    return False


@pytest.mark.behaviour(380)
def test_an_op_without_a_kernel_in_the_first_batch_is_the_error_that_comes_out(tmp_path):
    with fresh_graph():
        inputs = batches_of([1, 2], 1)
        predictions = tf.cast(tf.strings.as_string(inputs.features), tf.float32)
        template = make_template("infer", predictions=predictions)
    batches = predict_batches(
        PredictionPlan(template, predictions),
        settings=settings_in(tmp_path),
        hooks=inputs.hooks,
        checkpoint_path=None,
    )
    with pytest.raises(tf.errors.UnimplementedError, match="Cast string to float"):
        next(batches)


def test_closing_the_generator_closes_and_frees_its_session(tmp_path):
    watcher = _SessionWatcher()
    batches = _predict(tmp_path, _numbers(3), lambda x: x * 2, watcher)
    next(batches)
    session = watcher.session
    assert not _is_closed(session)
    batches.close()
    assert _is_closed(session)
    session = weakref.ref(session)
    del watcher.session, batches
    gc.collect()
    assert session() is None


PREDICTIONS = {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        (None, PREDICTIONS),
        ([], PREDICTIONS),
        (["a", "c"], {"a": 1, "c": 3}),
        ("b", {"b": 2}),
        (["a", "absent"], {"a": 1}),
    ],
)
@pytest.mark.behaviour(229)
def test_keys_keep_those_predictions(keys, kept):
    assert select_predictions(PREDICTIONS, keys) == kept


def test_a_row_is_a_mapping_of_its_own_with_the_names_in_their_order():
    batches = [{"b": np.zeros((3, 2)), "a": np.arange(3), "c": np.ones(3)}]
    rows = list(single_rows(batches))
    assert [list(row) for row in rows] == [["b", "a", "c"]] * 3
    rows[0].clear()
    assert [row["a"] for row in rows[1:]] == [1, 2]


def test_a_batch_of_no_predictions_or_no_rows_has_no_rows():
    assert list(single_rows([{}, {"a": np.zeros((0, 2)), "b": np.zeros(0)}])) == []
