import contextlib
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import counting_model, linear_model
from tests.estimator._engine.log_lines import log_lines
from tests.estimator.schedule import plain
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer import compat
from tfx_tpu_trainer import estimator as tfe
from tfx_tpu_trainer.estimator import experimental
from tfx_tpu_trainer.estimator.hooks import CheckpointInputPipelineHook, read_eval_metrics
from tfx_tpu_trainer.estimator.hooks._stopping import StopAtCheckpointStepHook

v1 = tf.compat.v1


def _write_events(folder, values: dict[int, float], name: str = "accuracy") -> None:
    """Events as an evaluation writes them."""
    with v1.Graph().as_default():
        writer = v1.summary.FileWriter(str(folder))
        for step, value in values.items():
            summary = v1.Summary(value=[v1.Summary.Value(tag=name, simple_value=value)])
            writer.add_summary(summary, step)
        writer.close()


def _steps_until_stopped(tmp_path, values: dict[int, float], make_hook, *, max_steps=10) -> int:
    estimator = plain.make(tmp_path, save=100)
    _write_events(estimator.eval_dir(), values)
    hook = make_hook(estimator)
    estimator.train(plain.train_input, hooks=[hook], max_steps=max_steps)
    return int(estimator.get_variable_value("global_step"))


STALLS = {1: 0.5, 2: 0.7, 3: 0.6, 4: 0.65, 5: 0.8, 6: 0.75}


@pytest.mark.parametrize(
    ("hook", "bound", "options", "stops"),
    [
        # By value: 0.8 is the highest, 0.5 the lowest.
        (experimental.stop_if_higher_hook, 0.79, {}, True),
        (experimental.stop_if_higher_hook, 0.8, {}, False),
        (experimental.stop_if_higher_hook, 0.79, {"min_steps": 6}, False),
        (experimental.stop_if_lower_hook, 0.51, {}, True),
        (experimental.stop_if_lower_hook, 0.51, {"min_steps": 2}, False),
        # 2 to 4 are two steps without an increase; nothing ever goes three.
        (experimental.stop_if_no_increase_hook, 2, {}, True),
        (experimental.stop_if_no_increase_hook, 3, {}, False),
        (experimental.stop_if_no_increase_hook, 2, {"min_steps": 3}, False),
        # The lowest value is the first one.
        (experimental.stop_if_no_decrease_hook, 5, {}, True),
        (experimental.stop_if_no_decrease_hook, 6, {}, False),
    ],
)
@pytest.mark.behaviour(417)
def test_hooks_stop_on_a_threshold_or_a_stall(tmp_path, hook, bound, options, stops):
    # 0.79 and 0.51 keep clear of what float32 makes of 0.8 and 0.5.
    bound = np.nextafter(np.float32(bound), np.float32(1)) if isinstance(bound, float) else bound
    steps = _steps_until_stopped(
        tmp_path,
        STALLS,
        lambda estimator: hook(
            estimator, "accuracy", bound, run_every_secs=None, run_every_steps=2, **options
        ),
    )
    # The hook asks at its first step.
    assert steps == (1 if stops else 10)


@pytest.mark.behaviour(417)
def test_a_hook_sees_evaluations_of_the_training_it_stops(tmp_path):
    estimator = plain.make(tmp_path, save=2)
    hook = experimental.stop_if_lower_hook(
        estimator, "global_loss", 0, run_every_secs=None, run_every_steps=1
    )
    with pytest.raises(ValueError, match=r"'global_loss'.*step 2 lacks; it has.*'loss'"):
        tfe.train_and_evaluate(
            estimator,
            tfe.TrainSpec(plain.train_input, max_steps=6, hooks=[hook]),
            tfe.EvalSpec(plain.eval_input, throttle_secs=0),
        )


def test_a_hook_asks_at_the_begin_of_each_training(tmp_path):
    estimator, asked = plain.make(tmp_path, save=100), []
    hook = experimental.make_early_stopping_hook(
        estimator, lambda: bool(asked.append(True)), run_every_secs=3600
    )
    for count in (1, 2):
        estimator.train(plain.train_input, hooks=[hook], steps=3)
        assert len(asked) == count


@pytest.mark.behaviour(417)
def test_workers_follow_the_chief(tmp_path, monkeypatch, caplog):
    cluster = {"chief": ["localhost:1"], "worker": ["localhost:2"]}
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    worker = plain.make(tmp_path)
    follow = experimental.make_early_stopping_hook(worker, lambda: False)
    monkeypatch.delenv("TF_CONFIG")
    chief = experimental.make_early_stopping_hook(
        plain.make(tmp_path), lambda: True, run_every_secs=None, run_every_steps=1
    )
    calls = []

    class Count(v1.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            calls.append(1)

    # Both in one session: the follower alone ends it, as the chief's request is taken back.
    with tf.Graph().as_default(), log_lines(caplog) as logged:
        v1.train.get_or_create_global_step()
        op = v1.train.get_global_step().assign_add(1, read_value=False)
        hooks = [chief, follow, Count()]
        with v1.train.MonitoredSession(hooks=hooks) as session:
            while not session.should_stop():
                session.run(op)
        names = [variable.op.name for variable in v1.global_variables()]
    assert "signal_early_stopping/STOP" in names
    assert any("Requesting early stopping at global step" in line for line in logged)
    assert calls == [1]


def test_events_of_an_evaluation_whose_name_is_a_pattern_are_found(tmp_path):
    folder = tmp_path / "eval_auc[0]"
    _write_events(folder, {1: 0.25})
    assert read_eval_metrics(str(folder)) == {1: {"accuracy": 0.25}}


def test_damaged_events_are_read_up_to_the_damage(tmp_path, caplog):
    _write_events(tmp_path, {1: 0.25, 2: 0.5})
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    with log_lines(caplog) as logged:
        assert read_eval_metrics(str(tmp_path)) == {1: {"accuracy": 0.25}}
    assert any(line.startswith("Skipping rest of the file") for line in logged)
    assert read_eval_metrics(str(tmp_path / "nothing")) == {}


def test_an_in_memory_evaluator_needs_no_checkpoint(tmp_path):
    estimator = plain.make(tmp_path, save=100)
    hook = experimental.InMemoryEvaluatorHook(
        estimator, plain.eval_input, name="memory", every_n_iter=2
    )
    estimator.train(plain.train_input, hooks=[hook], max_steps=5)
    found = read_eval_metrics(estimator.eval_dir("memory"))
    descended = list(linear_model.descend(linear_model.batches(plain.BATCH, epochs=2)[:5]))
    values = {0: (linear_model.WEIGHTS, linear_model.BIAS)}
    values |= {step: descended[step - 1][1:] for step in (2, 4, 5)}
    assert list(found) == [0, 2, 4, 5]
    for step, (weights, bias) in values.items():
        batches = linear_model.batches(plain.BATCH)
        loss = np.mean([linear_model.loss(batch, weights, bias) for batch in batches])
        np.testing.assert_allclose(found[step]["loss"], loss, rtol=1e-5)
    kept = sorted(path.name for path in tmp_path.glob("model.ckpt-*.index"))
    assert kept == ["model.ckpt-0.index", "model.ckpt-5.index"]


def test_an_in_memory_evaluator_initializes_what_training_does_not_have(tmp_path):
    def model_fn(features, labels, mode):
        spec = plain.model_fn(features, labels, mode)
        if mode == "train":
            return spec._replace(scaffold=v1.train.Scaffold(saver=v1.train.Saver()))
        more = v1.get_variable("of_evaluation", [], initializer=v1.constant_initializer(1000.0))
        return spec._replace(loss=more, eval_metric_ops={})

    estimator = plain.make(tmp_path, fn=model_fn)
    hook = experimental.InMemoryEvaluatorHook(estimator, plain.eval_input)
    estimator.train(plain.train_input, hooks=[hook], max_steps=1)
    found = read_eval_metrics(estimator.eval_dir())
    assert {step: metrics["loss"] for step, metrics in found.items()} == {0: 1000, 1: 1000}


def test_an_in_memory_evaluator_sees_the_values_of_cores(tmp_path):
    estimator = on_cores.linear(tmp_path, loop=2)
    hook = experimental.InMemoryEvaluatorHook(estimator, linear_model.input_fn, every_n_iter=1)
    estimator.train(on_cores.train_input_fn, hooks=[hook], max_steps=2)
    _, weights, bias = on_cores.descended(2)
    features, labels = linear_model.rows()
    error = linear_model.output(features, weights, bias) - labels
    found = read_eval_metrics(estimator.eval_dir())
    assert list(found) == [0, 2]
    assert found[2]["loss"] == pytest.approx(np.mean(error**2), rel=1e-5)


@pytest.mark.parametrize(("every", "evaluated"), [(2.5, [0, 3, 5]), (math.inf, [0, 5])])
def test_intervals_of_hooks_need_not_be_whole_numbers(tmp_path, every, evaluated):
    """What the original's hooks do with the same intervals."""
    estimator = plain.make(tmp_path, save=100, save_input_position=True)
    asked: list[bool] = []
    hooks = [
        experimental.InMemoryEvaluatorHook(estimator, plain.eval_input, every_n_iter=every),
        experimental.make_early_stopping_hook(
            estimator,
            lambda: bool(asked.append(True)),
            run_every_secs=None,
            run_every_steps=every,
        ),
    ]
    estimator.train(plain.train_input, hooks=hooks, max_steps=5)
    assert list(read_eval_metrics(estimator.eval_dir())) == evaluated
    assert len(asked) == 1


def test_a_worker_stops_when_the_last_step_is_on_disk(tmp_path, caplog):
    estimator = plain.make(tmp_path)
    chief = experimental.make_stop_at_checkpoint_step_hook(estimator, 5)
    assert isinstance(chief, v1.train.StopAtStepHook)
    estimator.train(plain.train_input, max_steps=3)
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            # The chief writes the last checkpoint in the meantime.
            estimator.train(plain.train_input, max_steps=5)

    hook = StopAtCheckpointStepHook(str(tmp_path), 5, 0.5, sleep)
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        op = step.assign_add(1, read_value=False)
        with v1.train.MonitoredSession(hooks=[hook]) as session, log_lines(caplog) as logged:
            calls = 0
            while not session.should_stop():
                session.run(op)
                calls += 1
    assert waits == [0.5, 0.5]
    # Once a minute.
    said = [line for line in logged if line.startswith("Waiting for a checkpoint of step 5 in")]
    assert len(said) == 1
    assert calls in (6, 7)


_ORIGINAL = Path(__file__).with_name("original_input_pipeline.json")


def test_rows_and_files_are_the_originals():
    expected = json.loads(_ORIGINAL.read_text(encoding="utf-8"))
    assert run(tfe, CheckpointInputPipelineHook) == expected


@pytest.mark.parametrize("policy", ["never", 2])
def test_an_unknown_policy_is_refused(policy, tmp_path):
    config = tfe.RunConfig(model_dir=str(tmp_path))
    trained = tfe.Estimator(lambda features: None, config=config)
    with pytest.raises(ValueError, match=rf"Invalid `ExternalStatePolicy.*Received {policy}"):
        CheckpointInputPipelineHook(trained, policy)


def test_several_workers_have_a_position_each(tmp_path):
    cluster = {"chief": ["a:1"], "worker": ["b:1"]}
    config = tfe.RunConfig(
        model_dir=str(tmp_path),
        tf_config={"cluster": cluster, "task": {"type": "worker", "index": 0}},
    )
    hook = CheckpointInputPipelineHook(tfe.Estimator(lambda features: None, config=config))
    assert hook._path == str(tmp_path / "input_worker_0.ckpt")


def test_compat_puts_it_back():
    places = (tf.data.experimental, tf.compat.v1.data.experimental)
    assert not any(hasattr(place, "CheckpointInputPipelineHook") for place in places)
    compat.install()
    try:
        for place in places:
            assert place.CheckpointInputPipelineHook is CheckpointInputPipelineHook
    finally:
        compat.uninstall()
    assert not any(hasattr(place, "CheckpointInputPipelineHook") for place in places)


class _KillInEvaluation(v1.train.SessionRunHook):
    def __init__(self, step):
        self._step = step

    def after_create_session(self, session, coord):
        if session.run(v1.train.get_global_step()) == self._step:
            raise counting_model.Killed


def _model_that_is_best_at_4(features, labels, mode, params):
    def metric_fn(ids):
        step = tf.cast(v1.train.get_global_step(), tf.float32)
        return {"distance": v1.metrics.mean(tf.abs(step - 4) + 0 * tf.cast(ids, tf.float32))}

    spec = counting_model.model_fn(features, labels, mode, params)
    return spec._replace(eval_metrics=(metric_fn, [features["id"]]))


def _stopped_at(folder, *, killed_at=0, killed_in_evaluation=0):
    config = {"save_checkpoints_steps": 4}
    estimator = counting_model.estimator(folder, model=_model_that_is_best_at_4, config=config)
    stop = experimental.stop_if_no_decrease_hook(
        estimator, "distance", 8, run_every_secs=None, run_every_steps=5
    )
    hooks = [stop, counting_model.KillAt(killed_at)] if killed_at else [stop]
    evaluated = tfe.EvalSpec(
        lambda params: counting_model.with_batches(tf.data.Dataset.range(8), params),
        steps=None,
        hooks=[_KillInEvaluation(killed_in_evaluation)],
        start_delay_secs=0,
        throttle_secs=0,
    )
    killed = killed_at or killed_in_evaluation
    with pytest.raises(counting_model.Killed) if killed else contextlib.nullcontext():
        tfe.train_and_evaluate(
            estimator, tfe.TrainSpec(counting_model.shuffled, 100, hooks=hooks), evaluated
        )
    return estimator.get_variable_value("global_step")


@pytest.mark.e2e
@mostly_swept("evaluations", [(12,), (8, 12), ()], kept=[(12,)])
def test_early_stopping_stops_where_it_would_have_stopped(tmp_path, evaluations):
    # The metric is at its best in the evaluation of step 4, which is 8 steps old in that of step 12.
    if evaluations:
        assert _stopped_at(tmp_path, killed_at=6) == 4
    for step in evaluations:
        assert _stopped_at(tmp_path, killed_in_evaluation=step) == step
    assert _stopped_at(tmp_path) == 15
    assert _stopped_at(tmp_path) == 15


class _Rows(v1.train.SessionRunHook):
    def __init__(self):
        self.seen = []

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(v1.get_default_graph().get_tensor_by_name("ids:0"))

    def after_run(self, run_context, run_values):
        self.seen.append(run_values.results.tolist())


class _Killed(Exception):  # noqa: N818
    pass


class _KillAt(v1.train.SessionRunHook):
    def __init__(self, step):
        self._step = step

    def after_run(self, run_context, run_values):
        if run_context.session.run(v1.train.get_global_step()) >= self._step:
            raise _Killed


def _input_fn():
    rows = tf.data.Dataset.range(24).shuffle(10, seed=3).repeat()
    return rows.map(lambda row: {"id": row}).batch(4)


def _random_input_fn():
    def with_noise(row):
        return {"id": row + tf.random.uniform([], maxval=1, dtype=tf.int64)}

    return tf.data.Dataset.range(24).map(with_noise).batch(4)


def _files(folder):
    return sorted(name for name in os.listdir(folder) if "events" not in name)


def _state(folder):
    with open(os.path.join(folder, "checkpoint_input"), encoding="utf-8") as file:
        return [os.path.basename(line.split('"')[1]) for line in file if '"' in line]


def run(api: Any, hook_class: Any) -> dict[str, Any]:
    """Makes the trainings.

    Args:
        api: The original's `tf.estimator`, or ours.
        hook_class: The original's `CheckpointInputPipelineHook`, or ours.
    """

    def model_fn(features, mode):
        ids = tf.identity(features["id"], name="ids")
        weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
        loss = tf.square(weight - tf.reduce_mean(tf.cast(ids, tf.float32)))
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return api.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def estimator(folder):
        config = api.RunConfig(model_dir=folder, save_checkpoints_steps=5, keep_checkpoint_max=2)
        return api.Estimator(model_fn, config=config)

    results: dict[str, Any] = {}
    folder = tempfile.mkdtemp()
    for name, steps, killed_at in (
        ("first", {"max_steps": 12}, None),
        ("in pieces", {"steps": 3}, None),
        ("killed", {"max_steps": 30}, 23),
        ("resumed", {"max_steps": 30}, None),
    ):
        trained, rows = estimator(folder), _Rows()
        hooks = [rows, hook_class(trained)]
        if killed_at:
            hooks.append(_KillAt(killed_at))
        with contextlib.suppress(_Killed):
            trained.train(_input_fn, hooks=hooks, **steps)
        results[name] = {"rows": rows.seen, "files": _files(folder), "state": _state(folder)}
    folder = tempfile.mkdtemp()
    trained = estimator(folder)
    try:
        trained.train(_random_input_fn, hooks=[hook_class(trained)], steps=3)
    except tf.errors.FailedPreconditionError:
        results["random ops"] = "FailedPreconditionError"
    folder = tempfile.mkdtemp()
    trained = estimator(folder)
    trained.train(_random_input_fn, hooks=[hook_class(trained, "ignore")], steps=3)
    results["random ops ignored"] = _files(folder)
    return results


if __name__ == "__main__":
    json.dump(
        run(tf.estimator, tf.data.experimental.CheckpointInputPipelineHook), sys.stdout, indent=1
    )
