"""Small models train with each op on one thread, unless told not to: the same numbers, errors and bits."""

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import counting_model, linear_model
from tests.estimator._engine.log_lines import log_lines
from tests.estimator.counting_model import SeesEveryStep
from tests.sweeps import mostly_swept
from tests.tensorflow_settings import deterministic_ops
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator._engine.training import training_loops

v1 = tf.compat.v1

LINE = "The steps of this model are small"
BATCH = 4


def _called(features, labels, mode, params):
    spec = linear_model.model_fn_for(tpu)(features, labels, mode, params)
    return spec._replace(loss=tf.function(tf.identity)(spec.loss))


def _summarized(features, labels, mode, params):
    v1.summary.scalar("mean", tf.reduce_mean(labels))
    return linear_model.model_fn_for(tpu)(features, labels, mode, params)


def _with_dropout(features, labels, mode, params):
    features = {"x": tf.nn.dropout(features["x"], rate=0.5)}
    return linear_model.model_fn_for(tpu)(features, labels, mode, params)


def _of_table(features, labels, mode, params):
    table = v1.get_variable("table", [6], initializer=v1.ones_initializer())
    loss = tf.reduce_sum(tf.gather(table, features["id"]))
    step = v1.train.get_global_step()
    train_op = v1.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def _ids(ids):
    def input_fn(params):
        return tf.data.Dataset.from_tensor_slices({"id": ids}).batch(params["batch_size"])

    return input_fn


def _train(
    folder, model_fn=None, *, input_fn=linear_model.endless_input_fn, steps=60, hooks=(), **config
):
    config = {"save_summary_steps": 20, "log_step_count_steps": 30, **config}
    estimator = tpu.TPUEstimator(
        model_fn or linear_model.model_fn_for(tpu),
        config=tpu.RunConfig(
            model_dir=str(folder), tpu_config=tpu.TPUConfig(iterations_per_loop=1), **config
        ),
        use_tpu=False,
        train_batch_size=BATCH,
    )
    return estimator.train(input_fn, steps=steps, hooks=list(hooks))


def _descended(steps):
    batches = linear_model.batches(BATCH, epochs=20)
    *_, (_, weights, bias) = linear_model.descend(batches[:steps])
    return weights, bias


@pytest.fixture
def logged(caplog):
    with log_lines(caplog):
        yield lambda: [r for r in caplog.records if r.getMessage().startswith(LINE)]


@mostly_swept(
    "exact",
    [{}, {"save_input_position": True}, {"tf_random_seed": 3}],
    kept=[{}, {"tf_random_seed": 3}],
)
def test_they_do_by_default_and_say_how_to_switch_it_off(tmp_path, exact, logged):
    estimator = _train(tmp_path, **exact)
    (record,) = logged()
    assert "RunConfig(jit_compile=False)" in record.getMessage()
    weights, bias = _descended(60)
    value = estimator.get_variable_value
    np.testing.assert_allclose(value("linear/weights"), weights, rtol=1e-4, atol=1e-6)
    assert value("linear/bias") == pytest.approx(bias, rel=1e-4)


@pytest.mark.parametrize(
    ("model_fn", "config"),
    [
        (None, {"jit_compile": False}),
        (_called, {}),
        (_summarized, {"tf_random_seed": 3}),
        (_summarized, {"save_input_position": True}),
    ],
)
def test_they_do_not_where_it_is_switched_off_or_could_change_bits(
    tmp_path, model_fn, config, logged
):
    estimator = _train(tmp_path, model_fn, **config)
    assert not logged()
    weights, _ = _descended(60)
    np.testing.assert_allclose(
        estimator.get_variable_value("linear/weights"), weights, rtol=1e-4, atol=1e-6
    )


def _in_cond(loss):
    return tf.cond(loss > 0.1, lambda: loss * 2.0, lambda: tf.square(loss))


def _in_loop(loss):
    return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 1.1), (0, loss))[1]


def _of_table_of_rates(loss):
    keys = tf.constant([0, 1], tf.int64)
    initializer = tf.lookup.KeyValueTensorInitializer(keys, tf.constant([0.5, 1.5]))
    table = tf.lookup.StaticHashTable(initializer, 0.0)
    return loss * table.lookup(v1.train.get_global_step() % 2)


def _checked(loss):
    with tf.control_dependencies([tf.debugging.assert_non_negative(loss)]):
        return tf.debugging.check_numerics(loss, "loss")


def _all_of_it(loss):
    return _in_cond(_in_loop(_of_table_of_rates(_checked(loss))))


@mostly_swept(
    "change", [_in_cond, _in_loop, _of_table_of_rates, _checked, _all_of_it], kept=[_all_of_it]
)
def test_control_flow_tables_and_checks_are_those_of_ops_on_all_threads(tmp_path, change, logged):
    def model_fn(features, labels, mode, params):
        loss = change(tf.reduce_mean(tf.square(linear_model.outputs_of(features) - labels)))
        step = v1.train.get_global_step()
        train_op = v1.train.AdamOptimizer(0.05).minimize(loss, global_step=step)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    fast, plain = (
        _train(tmp_path / str(jit_compile), model_fn, jit_compile=jit_compile)
        for jit_compile in (None, False)
    )
    assert len(logged()) == 1
    for name in plain.get_variable_names():
        value, expected = (each.get_variable_value(name) for each in (fast, plain))
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-7, err_msg=name)


def test_an_assertion_fails_at_its_step(tmp_path, logged):
    def model_fn(features, labels, mode, params):
        step = v1.train.get_global_step()
        before = tf.identity(step)
        with tf.control_dependencies([tf.debugging.assert_less(before, np.int64(40), "too far")]):
            loss = tf.reduce_mean(labels)
        with tf.control_dependencies([loss]):
            train_op = step.assign_add(1)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    with pytest.raises(tf.errors.InvalidArgumentError, match="too far"):
        _train(tmp_path, model_fn, save_checkpoints_steps=10)
    assert len(logged()) == 1
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-40")


def test_a_hook_that_sees_each_step_leaves_no_loop(tmp_path, logged):
    _train(tmp_path, hooks=[SeesEveryStep()])
    assert not logged()


@pytest.mark.parametrize("jit_compile", [None, False])
def test_a_wrong_id_is_the_same_error(tmp_path, jit_compile, logged):
    ids = [0, 1, 2, 3, 4, 5] * 25 + [5, 9]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"indices\[3\] = 9 is not in"
    ) as error:
        _train(tmp_path, _of_table, input_fn=_ids(ids), steps=None, jit_compile=jit_compile)
    assert "IteratorGetNext" not in str(error.value)
    assert len(logged()) == (jit_compile is None)


def test_the_last_batch_may_have_another_shape(tmp_path, logged):
    ids = [*[3] * 80, 4]
    estimator = _train(tmp_path, _of_table, input_fn=_ids(ids), steps=None)
    assert len(logged()) == 1
    assert estimator.get_variable_value("global_step") == 21
    table = estimator.get_variable_value("table")
    # Adagrad starts its sums of squares at 0.1.
    sums = 0.1 + 16 * np.arange(1, 21)
    assert table[3] == pytest.approx(1 - np.sum(0.4 / np.sqrt(sums)), rel=1e-5)
    assert table[4] == pytest.approx(1 - 0.1 / np.sqrt(1.1), rel=1e-5)
    np.testing.assert_array_equal(table[[0, 1, 2, 5]], 1)


def test_with_a_seed_where_loops_end_changes_no_bit(tmp_path, monkeypatch):
    trained = []
    for seconds in (1.0, 0.0):
        monkeypatch.setattr(training_loops, "_LONGEST_SECONDS", seconds)
        trained.append(
            _train(
                tmp_path / str(seconds),
                counting_model.embedded_model_fn,
                input_fn=counting_model.shuffled,
                steps=40,
                tf_random_seed=3,
            )
        )
    counting_model.assert_equal(*trained)


@mostly_swept("seed", [{}, {"tf_random_seed": 3}], kept=[{}])
def test_random_ops_are_drawn_anew_in_each_step(tmp_path, seed):
    first, second = (
        _train(tmp_path / name, _with_dropout, **seed).get_variable_value("linear/weights")
        for name in ("first", "second")
    )
    assert np.array_equal(first, second) == bool(seed)
    weights, _ = _descended(60)
    assert not np.allclose(first, weights, rtol=1e-3)


def test_deterministic_ops_train_too(tmp_path, logged):
    with deterministic_ops():
        _train(tmp_path, _with_dropout, tf_random_seed=3)
    assert len(logged()) == 1
