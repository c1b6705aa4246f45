"""Steps that XLA compiles: the same numbers, checkpoints and errors as without."""

import re

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator._engine.event_files import read_values
from tests.estimator._engine.log_lines import log_lines
from tests.estimator.counting_model import SeesEveryStep
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu

pytestmark = pytest.mark.matrix

v1 = tf.compat.v1

BATCH = 4
BATCHES = linear_model.ROWS // BATCH


def _full_batches(*, count=linear_model.ROWS, epochs=10_000, poisoned_row=None):
    def input_fn(params):
        features, labels = linear_model.rows(count)
        if poisoned_row is not None:
            labels[poisoned_row] = np.nan
        dataset = tf.data.Dataset.from_tensor_slices(({"x": features}, labels)).repeat(epochs)
        return dataset.batch(params["batch_size"], drop_remainder=True)

    return input_fn


def _estimator(folder, model_fn=None, *, optimizer="adam", **config):
    config = {"save_summary_steps": 40, "log_step_count_steps": 30, **config}
    return tpu.TPUEstimator(
        model_fn or linear_model.model_fn_for(tpu, optimizer),
        config=tpu.RunConfig(
            model_dir=str(folder), tpu_config=tpu.TPUConfig(iterations_per_loop=1), **config
        ),
        use_tpu=False,
        train_batch_size=BATCH,
    )


def _train(folder, model_fn=None, *, input_fn=None, hooks=(), steps=200, **options):
    estimator = _estimator(folder, model_fn, **options)
    return estimator.train(input_fn or _full_batches(), hooks=list(hooks), steps=steps)


@pytest.fixture
def logged(caplog):
    with log_lines(caplog):
        yield caplog


def _lines(logged, start="jit_compile"):
    return [r.getMessage() for r in logged.records if r.getMessage().startswith(start)]


@mostly_swept("optimizer", ["sgd", "momentum", "adam"], kept=["adam"])
def test_numbers_events_and_checkpoints_are_those_of_the_plain_loop(tmp_path, optimizer, logged):
    options = {"optimizer": optimizer, "save_checkpoints_steps": 70, "keep_checkpoint_max": 9}
    compiled = _train(tmp_path / "on", jit_compile=True, **options)
    plain = _train(tmp_path / "off", **options)
    assert not _lines(logged)
    assert compiled.get_variable_names() == plain.get_variable_names()
    for name in plain.get_variable_names():
        value, expected = (e.get_variable_value(name) for e in (compiled, plain))
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6, err_msg=name)
    files = [{p.name for p in (tmp_path / f).glob("model.ckpt-*")} for f in ("on", "off")]
    assert files[0] == files[1]
    assert {f"model.ckpt-{step}.index" for step in (0, 70, 140, 200)} <= files[0]
    events, expected_events = read_values(tmp_path / "on"), read_values(tmp_path / "off")
    assert list(events["loss"]) == list(range(1, 200, 40))
    assert list(events["examples/sec"]) == list(expected_events["examples/sec"])
    for step, loss in expected_events["loss"].items():
        assert events["loss"][step] == pytest.approx(loss, rel=1e-3, abs=1e-6)


@mostly_swept("epochs", [7, 13], kept=[7])
def test_training_ends_with_the_data_within_a_stack(tmp_path, epochs):
    # 35 and 65 batches: the last stack is not full.
    input_fn = _full_batches(epochs=epochs)
    options = {"optimizer": "sgd", "input_fn": input_fn, "steps": None, "save_summary_steps": 9999}
    options["log_step_count_steps"] = None
    estimator = _train(tmp_path, jit_compile=True, **options)
    assert estimator.get_variable_value("global_step") == epochs * BATCHES
    *_, (_, weights, _) = linear_model.descend(linear_model.batches(BATCH, epochs=epochs))
    np.testing.assert_allclose(
        estimator.get_variable_value("linear/weights"), weights, rtol=1e-4, atol=1e-6
    )


@pytest.mark.behaviour(175)
def test_a_nan_is_named_with_its_step(tmp_path):
    input_fn = _full_batches(count=400, poisoned_row=77 * BATCH)
    with pytest.raises(v1.train.NanLossDuringTrainingError) as raised:
        _train(
            tmp_path,
            input_fn=input_fn,
            jit_compile=True,
            save_summary_steps=9999,
            log_step_count_steps=9999,
        )
    assert "global step 78" in str(raised.value)
    assert f"the last checkpoint is {tmp_path / 'model.ckpt-0'}" in str(raised.value)


def test_auto_measures_both_and_says_what_it_chose(tmp_path, logged):
    options = {"optimizer": "sgd", "log_step_count_steps": 2000, "save_summary_steps": 2000}
    options["steps"] = 30_000  # for 0.7 s of trials, on any machine
    estimator = _train(tmp_path / "auto", jit_compile="auto", **options)
    plain = _train(tmp_path / "off", **options)
    (line,) = _lines(logged)
    found = re.fullmatch(
        r"jit_compile='auto': a step takes ([\d.]+) ms in the loop that XLA compiled and ([\d.]+) ms "
        r"in the loop of single ops; continuing with the (compiled loop|loop of single ops)\.",
        line,
    )
    compiled_ms, plain_ms = float(found[1]), float(found[2])
    # They are rounded, so they may be equal.
    fastest = compiled_ms if found[3] == "compiled loop" else plain_ms
    assert fastest == min(compiled_ms, plain_ms)
    np.testing.assert_allclose(
        estimator.get_variable_value("linear/weights"),
        plain.get_variable_value("linear/weights"),
        rtol=1e-4,
        atol=1e-6,
    )


def _with_shuffle(loss, outputs):
    return loss + 0 * tf.reduce_sum(tf.random.shuffle(outputs))


def _with_assert(loss, outputs):
    with tf.control_dependencies([tf.debugging.assert_less(outputs, 1e9)]):
        return tf.identity(loss)


def _with_strings(loss, outputs):
    return loss + 0 * tf.strings.to_number(tf.strings.as_string(outputs[0]))


def _with_python(loss, outputs):
    return loss + 0 * tf.py_function(lambda x: x, [outputs[0]], tf.float32)


@mostly_swept(
    ("change", "named"),
    [
        (_with_shuffle, "RandomShuffle"),
        (_with_assert, "Assert"),
        (_with_strings, "AsString|StringToNumber"),
        (_with_python, "PyFunc"),
    ],
    kept=[(_with_shuffle, "RandomShuffle")],
)
@mostly_swept("jit_compile", [True, "auto"], kept=[True])
def test_what_cannot_be_compiled_to_the_same_is_named_and_trains_as_it_is(
    tmp_path, change, named, jit_compile, logged
):
    def model_fn(features, labels, mode, params):
        outputs = linear_model.outputs_of(features)
        loss = change(tf.reduce_mean(tf.square(outputs - labels)), outputs)
        train_op = linear_model.OPTIMIZERS["sgd"]().minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = _train(tmp_path, model_fn, steps=50, jit_compile=jit_compile)
    (line,) = _lines(logged)
    assert line.startswith("jit_compile is ignored")
    assert re.search(named, line), line
    *_, (_, weights, _) = linear_model.descend(linear_model.batches(BATCH, epochs=10))
    np.testing.assert_allclose(
        estimator.get_variable_value("linear/weights"), weights, rtol=1e-4, atol=1e-6
    )


# A draw, and the chance that it is below 0.7.
_DRAWS = {
    "uniform": (tf.random.uniform, 0.7),
    "integers": (
        lambda shape: tf.cast(tf.random.uniform(shape, 0, 3, tf.int32), tf.float32),
        1 / 3,
    ),
    "normal": (tf.random.normal, scipy.stats.norm.cdf(0.7)),
    "truncated normal": (tf.random.truncated_normal, scipy.stats.truncnorm.cdf(0.7, -2, 2)),
}


def _dropout_model_fn(draw=tf.random.uniform):
    """A linear model that keeps some of what it puts out, and sums the shares kept and their squares."""

    def model_fn(features, labels, mode, params):
        outputs = linear_model.outputs_of(features)
        kept = tf.cast(draw([BATCH, 100]) < 0.7, tf.float32)
        share = tf.reduce_mean(kept)
        sums = [v1.get_variable(name, initializer=0.0) for name in ("shares", "squares")]
        added = [sums[0].assign_add(share), sums[1].assign_add(share**2)]
        # The gradient, too, is of what was drawn.
        loss = tf.reduce_mean(tf.square(outputs - labels) * tf.reduce_mean(kept, axis=1))
        train_op = linear_model.OPTIMIZERS["sgd"]().minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=tf.group(train_op, *added))

    return model_fn


@mostly_swept("kind", list(_DRAWS), kept=["uniform"])
@mostly_swept("jit_compile", [True, "auto"], kept=["auto"])
def test_what_dropout_draws_is_compiled_to_the_same_distribution(
    tmp_path, kind, jit_compile, logged
):
    draw, chance = _DRAWS[kind]
    steps = 300
    estimator = _train(tmp_path, _dropout_model_fn(draw), steps=steps, jit_compile=jit_compile)
    assert not [line for line in _lines(logged) if line.startswith("jit_compile is ignored")]
    mean = estimator.get_variable_value("shares") / steps
    variance = estimator.get_variable_value("squares") / steps - mean**2
    # The share of 400 draws; if the steps drew the same, it would not vary.
    of_one_step = chance * (1 - chance) / (100 * BATCH)
    assert mean == pytest.approx(chance, abs=5 * np.sqrt(of_one_step / steps))
    assert variance == pytest.approx(of_one_step, rel=5 * np.sqrt(2 / steps))


def test_with_a_seed_auto_leaves_the_choice_to_the_graph(tmp_path, logged):
    options = {"steps": 100, "tf_random_seed": 3}
    trained = [
        _train(tmp_path / str(setting), _dropout_model_fn(), jit_compile=setting, **options)
        for setting in ("auto", None)
    ]
    (line,) = _lines(logged)
    assert line.startswith("jit_compile='auto' measures nothing")
    for name in trained[0].get_variable_names():
        value, expected = (e.get_variable_value(name) for e in trained)
        np.testing.assert_array_equal(value, expected, err_msg=name)


def test_batches_of_unknown_size_are_not_compiled(tmp_path, logged):
    estimator = _train(tmp_path, input_fn=linear_model.endless_input_fn, steps=20, jit_compile=True)
    (line,) = _lines(logged)
    assert "drop_remainder=True" in line
    assert estimator.get_variable_value("global_step") == 20


def test_a_feature_that_the_model_does_not_read_is_no_obstacle(tmp_path, logged):
    def input_fn(params):
        def with_name(features, label):
            return {**features, "name": tf.constant("a")}, label

        return _full_batches()({"batch_size": 1}).unbatch().map(with_name).batch(4, True)

    def model_fn(features, labels, mode, params):
        return linear_model.model_fn_for(tpu, "sgd")(features, labels, mode, params)

    estimator = _train(tmp_path, model_fn, input_fn=input_fn, steps=50, jit_compile=True)
    assert not _lines(logged)
    *_, (_, weights, _) = linear_model.descend(linear_model.batches(BATCH, epochs=10))
    np.testing.assert_allclose(
        estimator.get_variable_value("linear/weights"), weights, rtol=1e-4, atol=1e-6
    )


def test_a_hook_that_sees_every_step_leaves_nothing_to_compile(tmp_path, logged):
    _train(tmp_path, hooks=[SeesEveryStep()], steps=5, jit_compile=True)
    (line,) = _lines(logged)
    assert line.startswith("jit_compile has no effect")
