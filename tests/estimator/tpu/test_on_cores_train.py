"""train() on emulated TPU cores: numbers, loops, checkpoints, hooks, errors."""

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator._engine.event_files import read_values
from tests.estimator._engine.log_lines import log_lines
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer._support import progress_views
from tfx_tpu_trainer.compat import contrib
from tfx_tpu_trainer.estimator import EstimatorSpec, RegressionHead, tpu

v1 = tf.compat.v1

pytestmark = pytest.mark.matrix


@mostly_swept("number", [1, 2, 4, 8], kept=[4])
@pytest.mark.behaviour(177, 180, 164, 171)
def test_cores_descend_as_one_machine_on_the_global_batch(tmp_path, number):
    estimator = on_cores.linear(tmp_path, cores=number, loop=3)
    assert estimator.train(on_cores.train_input_fn, steps=7) is estimator
    on_cores.assert_descended(estimator, 7)
    assert estimator.get_variable_value("global_step") == 7
    names = ["global_step", "linear/bias", "linear/weights"]
    assert sorted(estimator.get_variable_names()) == names


def test_all_loops_of_a_session_fetch_the_same(tmp_path, monkeypatch):
    # A session optimizes the function of all cores again for each set of fetches.
    fetched, run = [], v1.Session.run

    def noted(session, fetches, *args, **kwargs):
        fetched.append(fetches)
        return run(session, fetches, *args, **kwargs)

    monkeypatch.setattr(v1.Session, "run", noted)
    on_cores.linear(tmp_path, cores=2, loop=2, save_summary_steps=4).train(
        on_cores.train_input_fn, steps=10
    )
    of_loops = [
        sorted(str(leaf) for each in fetches.values() for leaf in tf.nest.flatten(each))
        for fetches in fetched
        if isinstance(fetches, dict) and "caller" in fetches
    ]
    assert len(of_loops) == 5
    # Shown when it is due, as TensorFlow's hook has it.
    assert sorted(read_values(tmp_path)["loss"]) == [2, 8]
    assert all(names == of_loops[0] for names in of_loops)


@pytest.mark.parametrize(
    ("before", "options", "seen"),
    [
        (3, {"max_steps": 10}, [7, 10]),
        pytest.param(3, {"steps": 10}, [7, 11, 13], marks=pytest.mark.sweep),
        pytest.param(0, {"steps": 10}, [4, 8, 10], marks=pytest.mark.sweep),
        pytest.param(0, {"steps": 3}, [3], marks=pytest.mark.sweep),
        pytest.param(0, {"max_steps": 8}, [4, 8], marks=pytest.mark.sweep),
    ],
)
@pytest.mark.behaviour(164, 165, 166, 167, 259)
def test_loops_end_at_the_exact_step(tmp_path, before, options, seen):
    estimator = on_cores.linear(tmp_path, loop=4)
    if before:
        estimator.train(on_cores.train_input_fn, steps=before)
    hook = on_cores.Steps()
    estimator.train(on_cores.train_input_fn, hooks=[hook], **options)
    assert hook.seen == seen
    assert estimator.get_variable_value("global_step") == seen[-1]


@pytest.mark.behaviour(169)
def test_a_loop_given_as_time_starts_with_one_step(tmp_path):
    hook = on_cores.Steps()
    estimator = on_cores.linear(tmp_path, loop="1s", save_checkpoints_steps=100)
    estimator.train(on_cores.train_input_fn, steps=400, hooks=[hook])
    assert hook.seen[0] == 1
    assert hook.seen[-1] == 400
    assert len(hook.seen) < 300
    on_cores.assert_descended(estimator, 400)


@pytest.mark.behaviour(160, 161, 162, 163)
def test_steps_that_do_not_hold(tmp_path):
    estimator = on_cores.linear(tmp_path)
    cases = [
        ({}, ValueError, "one of `steps` or `max_steps` must be set"),
        ({"steps": 2.5}, TypeError, "must be int, got .*2.5"),
        ({"max_steps": "3"}, TypeError, "max_steps must be a number; got '3'"),
        ({"steps": 0}, ValueError, "steps > 0, given: 0"),
        ({"max_steps": -1}, ValueError, "max_steps > 0, given: -1"),
        ({"steps": 1, "max_steps": 1}, ValueError, "both steps and max_steps"),
    ]
    for options, error, says in cases:
        with pytest.raises(error, match=says):
            estimator.train(on_cores.train_input_fn, **options)
    assert not on_cores.checkpoint_steps(tmp_path)


@pytest.mark.parametrize("loop", [2, "auto"])
def test_checkpoints_every_fraction_of_steps_are_those_of_the_host(tmp_path, loop):
    estimator = on_cores.linear(tmp_path, loop=loop, save_checkpoints_steps=7.5)
    estimator.train(on_cores.train_input_fn, max_steps=20)
    assert on_cores.checkpoint_steps(tmp_path) == [0, 8, 16, 20]


@mostly_swept(("rows", "batches"), [(40, 5), (16, 2), (0, 0)], kept=[(40, 5)])
@pytest.mark.behaviour(140)
def test_training_ends_with_the_data_and_keeps_what_it_learned(tmp_path, caplog, rows, batches):
    # A lift: the original raises OutOfRangeError.
    def input_fn(params):
        features, labels = (np.concatenate([part] * 2)[:rows] for part in linear_model.rows())
        dataset = tf.data.Dataset.from_tensor_slices(({"x": features}, labels))
        return dataset.batch(params["batch_size"], drop_remainder=True)

    estimator = on_cores.linear(tmp_path, loop=4)
    with log_lines(caplog) as logged:
        estimator.train(input_fn, steps=100)
    assert estimator.get_variable_value("global_step") == batches
    assert f"Training ended at global step {batches}, before step 100" in "\n".join(logged)
    if batches:
        on_cores.assert_descended(estimator, batches)


def _poisoned(params):
    features, labels = linear_model.rows(40)
    labels[32] = np.nan
    dataset = tf.data.Dataset.from_tensor_slices(({"x": features}, labels))
    return dataset.batch(params["batch_size"], drop_remainder=True)


@pytest.mark.behaviour(174)
def test_broadcast_skips_the_check_but_a_nan_loss_still_stops(tmp_path):
    estimator = on_cores.linear(tmp_path, loop=2, save_checkpoints_steps=2, fed=on_cores.BROADCAST)
    with pytest.raises(v1.train.NanLossDuringTrainingError, match="NaN loss during training"):
        estimator.train(_poisoned, steps=5)
    assert on_cores.checkpoint_steps(tmp_path) == [0, 2, 4]


def _mean_square(outputs, labels):
    return tf.reduce_mean(tf.square(outputs - labels))


def _sum_square_by_batch(outputs, labels):
    return tf.reduce_sum(tf.square(outputs - labels)) / on_cores.BATCH


def _model_with(optimizer, *, loss=_mean_square):
    """The linear model with its own optimizer."""

    def model_fn(features, labels, mode, params):
        outputs = linear_model.outputs_of(features)
        value = loss(outputs, labels)
        train_op = optimizer().minimize(value, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=value, train_op=train_op)

    return model_fn


def _sgd(rate=linear_model.RATE, **options):
    return lambda: v1.tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(rate), **options)


@pytest.mark.behaviour(185)
def test_reduction_sum_adds_the_cores_gradients(tmp_path):
    model_fn = _model_with(
        _sgd(reduction=v1.losses.Reduction.SUM),
        loss=_sum_square_by_batch,
    )
    estimator = on_cores.make(tmp_path, model_fn, cores=4)
    estimator.train(on_cores.train_input_fn, steps=4)
    on_cores.assert_descended(estimator, 4)


@pytest.mark.behaviour(189)
def test_a_group_sums_over_its_own_cores(tmp_path):
    model_fn = _model_with(_sgd(group_assignment=[[0, 2], [1, 3]]))
    estimator = on_cores.make(tmp_path, model_fn, cores=4)
    estimator.train(on_cores.train_input_fn, steps=1)
    # The first core's train_op runs: that of rows 0, 1 and 4, 5.
    ((features, labels),) = linear_model.batches(on_cores.BATCH)[:1]
    rows = [0, 1, 4, 5]
    ((_, weights, _),) = linear_model.descend([(features[rows], labels[rows])])
    np.testing.assert_allclose(estimator.get_variable_value("linear/weights"), weights, rtol=1e-5)


@mostly_swept("groups", [[[0, 1], [2, 2]], [[0, 1, 2], [3]], [[0], [1]]], kept=[[[0, 1], [2, 2]]])
@pytest.mark.behaviour(189)
def test_groups_that_are_no_even_permutation_are_refused(tmp_path, groups):
    estimator = on_cores.make(tmp_path, _model_with(_sgd(group_assignment=groups)), cores=4)
    with pytest.raises(ValueError, match=r"group|subgroup|permutation"):
        estimator.train(on_cores.train_input_fn, steps=1)


@pytest.mark.behaviour(187)
def test_clipping_before_apply_acts_on_a_cores_own_gradients(tmp_path):
    limit = 0.05

    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean(tf.square(linear_model.outputs_of(features) - labels))
        optimizer = _sgd()()
        clipped = [
            (tf.clip_by_value(gradient, -limit, limit), variable)
            for gradient, variable in optimizer.compute_gradients(loss)
        ]
        train_op = optimizer.apply_gradients(clipped, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = on_cores.make(tmp_path, model_fn, cores=2)
    estimator.train(on_cores.train_input_fn, steps=1)
    features, labels = linear_model.batches(on_cores.BATCH)[0]
    total = np.zeros(3)
    for rows in (slice(0, 4), slice(4, 8)):
        error = linear_model.output(features[rows]) - labels[rows]
        own = 2 * features[rows].T @ error / 4 / 2  # scaled by 1/N
        total += np.clip(own, -limit, limit)
    np.testing.assert_allclose(
        estimator.get_variable_value("linear/weights"),
        linear_model.WEIGHTS - linear_model.RATE * total,
        rtol=1e-5,
    )


@pytest.mark.behaviour(188)
def test_variables_without_a_gradient_stay_and_slots_keep_their_names(tmp_path):
    def model_fn(features, labels, mode, params):
        unused = v1.get_variable("unused", initializer=3.0)
        loss = tf.reduce_mean(tf.square(linear_model.outputs_of(features) - labels))
        optimizer = v1.tpu.CrossShardOptimizer(v1.train.MomentumOptimizer(0.1, 0.9))
        gradients = optimizer.compute_gradients(loss)
        assert (None, unused) in [(g, v) for g, v in gradients if v is unused]
        train_op = optimizer.apply_gradients(gradients, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = on_cores.make(tmp_path, model_fn)
    estimator.train(on_cores.train_input_fn, steps=1)
    assert estimator.get_variable_value("unused") == 3
    assert "linear/weights/Momentum" in estimator.get_variable_names()


@pytest.mark.behaviour(192)
def test_any_sum_over_the_cores_will_do(tmp_path):
    def loss(outputs, labels):
        return tf.reduce_mean(tf.square(outputs - labels)) + 0 * v1.tpu.cross_replica_sum(1.0)

    plain = _model_with(lambda: v1.train.GradientDescentOptimizer(0.1), loss=loss)
    on_cores.make(tmp_path, plain).train(on_cores.train_input_fn, steps=1)


def _dense(inputs):
    return tf.keras.layers.Dense(1, name="dense", kernel_initializer="ones")(inputs)


@pytest.mark.behaviour(193)
def test_keras_layers_train_inside_a_model_fn(tmp_path):
    def model_fn(features, labels, mode, params):
        inputs = tf.keras.Input((3,))
        model = tf.keras.Model(inputs, _dense(inputs * 2))
        outputs = model(features["x"])[:, 0]
        loss = tf.reduce_mean(tf.square(outputs - labels))
        train_op = _sgd()().minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = on_cores.make(tmp_path, model_fn, cores=4)
    estimator.train(on_cores.train_input_fn, steps=3)
    doubled = [(2 * x, y) for x, y in linear_model.batches(on_cores.BATCH, epochs=2)[:3]]
    *_, (_, kernel, bias) = linear_model.descend(doubled, np.ones(3, np.float32), 0.0)
    np.testing.assert_allclose(
        estimator.get_variable_value("dense/kernel")[:, 0], kernel, rtol=1e-5
    )
    np.testing.assert_allclose(estimator.get_variable_value("dense/bias"), [bias], rtol=1e-5)


@mostly_swept("use_tpu", [True, False], kept=[True])
def test_a_train_op_that_only_counts_steps_makes_a_dry_run(tmp_path, caplog, use_tpu):
    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean(tf.square(linear_model.outputs_of(features) - labels))
        step = v1.train.get_global_step().assign_add(1, read_value=False)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=step)

    estimator = on_cores.make(tmp_path, model_fn, use_tpu=use_tpu)
    with log_lines(caplog) as logged:
        estimator.train(on_cores.train_input_fn, steps=3)
    assert estimator.get_variable_value("global_step") == 3
    assert len([line for line in logged if "changes no variable" in line]) == 1


@pytest.mark.behaviour(150, 152)
def test_an_estimator_spec_trains_without_its_scaffold(tmp_path, caplog):
    def model_fn(features, labels, mode, params):
        spec = linear_model.model_fn_for(tpu)(features, labels, mode, params)
        refused = v1.train.Scaffold(init_fn=lambda *_: pytest.fail("the scaffold is used"))
        return EstimatorSpec(mode, loss=spec.loss, train_op=spec.train_op, scaffold=refused)

    estimator = on_cores.make(tmp_path, model_fn)
    with log_lines(caplog) as logged:
        estimator.train(on_cores.train_input_fn, steps=2)
    assert any("EstimatorSpec.Scaffold is ignored" in line for line in logged)
    on_cores.assert_descended(estimator, 2)


@pytest.mark.behaviour(391, 392)
def test_loss_and_throughput_are_reported_at_loop_ends(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(progress_views, "LINE_SECONDS", 0.0)
    estimator = on_cores.linear(tmp_path, loop=2, config={"log_step_count_steps": 4})
    with log_lines(caplog) as logged:
        estimator.train(on_cores.train_input_fn, steps=8)
    values = read_values(tmp_path)
    assert sorted(values["global_step/sec"]) == sorted(values["examples/sec"]) == [4, 6, 8]
    for step, rate in values["examples/sec"].items():
        assert rate == pytest.approx(on_cores.BATCH * values["global_step/sec"][step], rel=1e-5)
    losses, *_ = on_cores.descended(2)
    said = [line for line in logged if line.startswith("loss = ")]
    assert [line.split("step = ")[1].split()[0] for line in said] == ["2", "6"]
    assert float(said[0].split()[2].rstrip(",")) == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.behaviour(393)
def test_with_a_loop_given_as_time_reports_go_by_time(tmp_path, caplog):
    estimator = on_cores.linear(tmp_path, loop="30s", config={"log_step_count_steps": 1})
    with log_lines(caplog) as logged:
        estimator.train(on_cores.train_input_fn, steps=5)
    assert sum(line.startswith("loss = ") for line in logged) == 1


def _with_a_summary(features, labels, mode, params):
    v1.summary.scalar("x", tf.reduce_mean(features["x"]))
    return linear_model.model_fn_for(tpu)(features, labels, mode, params)


def _with_a_head(features, labels, mode, params):
    logits = tf.expand_dims(linear_model.outputs_of(features), 1)
    head = RegressionHead(name="dose")
    return head.create_estimator_spec(
        features, mode, logits, tf.expand_dims(labels, 1), train_op_fn=_minimize
    )


def _with_optimize_loss(features, labels, mode, params):
    loss = tf.reduce_mean(tf.square(linear_model.outputs_of(features) - labels))
    optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(linear_model.RATE))
    train_op = contrib.layers.optimize_loss(loss, v1.train.get_global_step(), None, optimizer)
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def _minimize(loss):
    optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(linear_model.RATE))
    return optimizer.minimize(loss, v1.train.get_global_step())


@pytest.mark.parametrize(
    ("model_fn", "names"),
    [
        (_with_a_summary, ["x"]),
        (_with_a_head, ["loss/dose"]),
        (_with_optimize_loss, ["OptimizeLoss/loss", "OptimizeLoss/global_norm/gradient_norm"]),
    ],
)
@pytest.mark.behaviour(397)
def test_v1_summaries_of_the_model_are_left_out_with_one_line(tmp_path, caplog, model_fn, names):
    estimator = on_cores.make(tmp_path, model_fn)
    with log_lines(caplog) as logged:
        estimator.train(on_cores.train_input_fn, steps=3)
    on_cores.assert_descended(estimator, 3)
    (line,) = [line for line in logged if line.startswith("Summaries of model_fn, and of heads")]
    assert all(repr(name) in line for name in names)
    assert "host_call" in line
    assert not any("no TPU can run" in line for line in logged)
    assert "loss" in read_values(tmp_path)
    assert not set(names) & set(read_values(tmp_path))


def test_a_model_that_summarizes_is_evaluated_and_predicts_on_cores_without_a_word(
    tmp_path, caplog
):
    estimator = on_cores.make(tmp_path, _with_a_summary)
    with log_lines(caplog) as logged:
        estimator.evaluate(linear_model.input_fn)
        assert len(list(estimator.predict(linear_model.input_fn))) == linear_model.ROWS
    assert not any("ummaries of model_fn" in line for line in logged)


@pytest.mark.behaviour(256, 274)
def test_checkpoints_and_saving_listeners_fall_on_loop_ends(tmp_path):
    class Listener(v1.train.CheckpointSaverListener):
        def begin(self):
            self.saved = []

        def after_save(self, session, global_step_value):
            self.saved.append(int(global_step_value))

    listener = Listener()
    estimator = on_cores.linear(tmp_path, loop=4, save_checkpoints_steps=5)
    estimator.train(on_cores.train_input_fn, steps=12, saving_listeners=[listener])
    assert listener.saved == on_cores.checkpoint_steps(tmp_path) == [0, 8, 12]


@pytest.mark.behaviour(265, 266, 269)
def test_scaffold_fn_on_cores(tmp_path):
    initialized = []
    scaffold = lambda: v1.train.Scaffold(init_fn=lambda *_: initialized.append(1))  # noqa: E731
    estimator = on_cores.linear(tmp_path, fields={"scaffold_fn": scaffold})
    estimator.train(on_cores.train_input_fn, steps=1)
    estimator.train(on_cores.train_input_fn, steps=1)
    assert initialized == [1]
    with pytest.raises(ValueError, match="scaffold_fn returns None, which is not allowed"):
        on_cores.linear(tmp_path / "none", fields={"scaffold_fn": lambda: None}).train(
            on_cores.train_input_fn, steps=1
        )


@pytest.mark.behaviour(235, 276, 291)
def test_a_checkpoint_of_the_cores_is_one_of_the_host(tmp_path):
    trained = on_cores.linear(tmp_path / "cores", optimizer="adam")
    trained.train(on_cores.train_input_fn, steps=3)
    on_host = on_cores.linear(tmp_path / "cores", optimizer="adam", use_tpu=False)
    features, labels = linear_model.rows()

    def outputs():
        names = ["linear/weights", "linear/bias"]
        return linear_model.output(features, *trained.get_variable_value(names))

    rows = [row["y"] for row in on_host.predict(linear_model.input_fn)]
    np.testing.assert_allclose(rows, outputs(), rtol=1e-5, atol=1e-6)
    on_host.train(linear_model.endless_input_fn, max_steps=4)
    trained.train(on_cores.train_input_fn, max_steps=6)
    assert trained.get_variable_value("global_step") == 6
    warm = on_cores.linear(
        tmp_path / "warm", use_tpu=False, warm_start_from=str(tmp_path / "cores")
    )
    assert warm.evaluate(linear_model.input_fn)["mae"] == pytest.approx(
        np.mean(np.abs(outputs() - labels)), rel=1e-5
    )
