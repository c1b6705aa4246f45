"""train(): steps, numbers, checkpoints, hooks."""

import functools
import glob
import math
import os
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.estimator import linear_model
from tests.estimator._engine.event_files import read_values
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import Estimator, EstimatorSpec, RunConfig, tpu
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import LoopEndHook

v1 = tf.compat.v1

BATCH = 6


class _Steps(v1.train.SessionRunHook):
    """Keeps the global step after each run, and what is called when."""

    def __init__(self, log: list | None = None, name: str = "hook"):
        self.seen: list[int] = []
        self.log = [] if log is None else log
        self._name = name

    def begin(self):
        self.log.append((self._name, "begin"))
        self._step = v1.train.get_global_step()

    def after_create_session(self, session, coord):
        self.log.append((self._name, "after_create_session"))

    def after_run(self, run_context, run_values):
        self.seen.append(int(run_context.session.run(self._step)))
        self.log.append((self._name, self.seen[-1]))

    def end(self, session):
        self.log.append((self._name, "end"))
        assert session.run(self._step) == (self.seen or [0])[-1]


class _Listener(v1.train.CheckpointSaverListener):
    def __init__(self, *, stop_at: int | None = None):
        self.log: list[tuple[str, int]] = []
        self._stop_at = stop_at

    def begin(self):
        self.log.append(("begin", -1))

    def before_save(self, session, global_step_value):
        self.log.append(("before", int(global_step_value)))

    def after_save(self, session, global_step_value):
        self.log.append(("after", int(global_step_value)))
        return global_step_value == self._stop_at

    def end(self, session, global_step_value):
        self.log.append(("end", int(global_step_value)))


def _input_fn(**options):
    return functools.partial(
        linear_model.input_fn, {"batch_size": BATCH}, **{"epochs": 100, **options}
    )


def _estimator(folder, *, fields=None, optimizer: str = "sgd", warm_start_from=None, **config):
    """The linear model under a plain Estimator; `fields` are more fields of its spec."""
    model = linear_model.model_fn_for(tpu, optimizer)

    def model_fn(features, labels, mode):
        spec = model(features, labels, mode, {}).as_estimator_spec()
        return spec._replace(**(fields() if fields else {}))

    return Estimator(
        model_fn, config=RunConfig(model_dir=folder, **config), warm_start_from=warm_start_from
    )


def _checkpoint_steps(folder) -> list[int]:
    paths = glob.glob(os.path.join(folder, "model.ckpt-*.index"))
    return sorted(int(re.findall(r"-(\d+)\.index", path)[0]) for path in paths)


def _step_of(estimator: Estimator) -> int:
    return int(estimator.get_variable_value("global_step"))


@pytest.mark.behaviour(159)
def test_each_step_is_gradient_descent_on_the_next_batch(tmp_path):
    estimator = _estimator(tmp_path, save_summary_steps=1)
    estimator.train(_input_fn(), steps=7)
    batches = linear_model.batches(BATCH, epochs=100)[:7]
    losses, weights, biases = zip(*linear_model.descend(batches))
    np.testing.assert_allclose(
        estimator.get_variable_value("linear/weights"), weights[-1], rtol=1e-5
    )
    np.testing.assert_allclose(estimator.get_variable_value("linear/bias"), biases[-1], rtol=1e-5)
    shown = read_values(tmp_path)["loss"]
    assert [shown[step] for step in range(1, 8)] == pytest.approx(losses, rel=1e-5)


@pytest.mark.behaviour(157, 158, 160)
def test_steps_are_incremental_and_max_steps_absolute(tmp_path):
    estimator = _estimator(tmp_path)
    assert estimator.train(_input_fn(), steps=2) is estimator
    estimator.train(_input_fn(), steps=2)
    assert _step_of(estimator) == 4
    estimator.train(_input_fn(), max_steps=6)
    assert _step_of(estimator) == 6

    def never_called():
        raise AssertionError

    assert estimator.train(never_called, max_steps=6) is estimator
    assert estimator.train(never_called, max_steps=2) is estimator


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"steps": 1, "max_steps": 1}, "both steps and max_steps; got 1 and 1"),
        ({"steps": 0}, "steps > 0, given: 0"),
        ({"steps": -1}, "steps > 0, given: -1"),
        ({"max_steps": 0}, "max_steps > 0, given: 0"),
        ({"max_steps": -0.5}, "max_steps > 0, given: -0.5"),
        ({"steps": math.nan}, "steps > 0, given: nan"),
    ],
)
@pytest.mark.behaviour(161)
@row("estimator", "`train(steps=0)` and other numbers", "steps")
def test_steps_that_do_not_hold(tmp_path, given, says, refused):
    with refused(ValueError) as raised:
        _estimator(tmp_path).train(_input_fn(), **given)
    assert re.search(says, str(raised.value))


@pytest.mark.parametrize("name", ["steps", "max_steps"])
@row("estimator", '`train(steps="100")`', "steps must be a number; got '100'")
def test_steps_that_are_no_number(tmp_path, name, refused):
    with refused(TypeError) as raised:
        _estimator(tmp_path).train(_input_fn(), **{name: "100"})
    assert str(raised.value).startswith(f"{name} must be")


@mostly_swept(
    ("steps", "made"),
    [(None, 4), (3, 3), (9, 4), (math.inf, 4)],
    kept=[(None, 4), (9, 4), (math.inf, 4)],
)
@pytest.mark.behaviour(139)
def test_training_ends_with_the_data_or_its_steps(tmp_path, steps, made):
    estimator = _estimator(tmp_path)
    estimator.train(_input_fn(epochs=1), steps=steps)
    assert _step_of(estimator) == made == _checkpoint_steps(tmp_path)[-1]


@pytest.mark.behaviour(179, 273)
def test_checkpoints_fall_on_the_start_every_k_steps_and_the_end(tmp_path):
    estimator = _estimator(tmp_path, save_checkpoints_steps=4)
    estimator.train(_input_fn(), max_steps=10)
    assert _checkpoint_steps(tmp_path) == [0, 4, 8, 10]
    estimator.train(_input_fn(), max_steps=11)
    assert _checkpoint_steps(tmp_path)[-1] == 11


@mostly_swept(
    ("save", "keep", "kept"),
    [(1, 2, [4, 5]), (1, 0, range(6)), (1, None, range(6)), (None, 5, [])],
    kept=[(1, 2, [4, 5]), (1, 0, range(6)), (None, 5, [])],
)
@pytest.mark.behaviour(61, 275, 282)
def test_so_many_checkpoints_are_kept(tmp_path, save, keep, kept):
    config = {"save_checkpoints_steps": save, "keep_checkpoint_max": keep}
    _estimator(tmp_path, **config).train(_input_fn(), steps=5)
    assert _checkpoint_steps(tmp_path) == list(kept)
    assert (tmp_path / "checkpoint").exists() is bool(kept)


@mostly_swept("save_graph_def", [True, False], kept=[False])
@pytest.mark.behaviour(272)
def test_graphs_are_saved_with_checkpoints_or_not(tmp_path, save_graph_def):
    _estimator(tmp_path, checkpoint_save_graph_def=save_graph_def).train(_input_fn(), steps=1)
    assert (tmp_path / "graph.pbtxt").exists() is save_graph_def
    assert (tmp_path / "model.ckpt-1.meta").exists() is save_graph_def


class _CountsCalls(LoopEndHook):
    number = 0

    def after_run(self, run_context, run_values):
        self.number += 1


@pytest.mark.behaviour(272)
def test_the_graph_that_is_written_is_the_models_alone(tmp_path):
    calls = _CountsCalls()
    _estimator(tmp_path).train(_input_fn(), steps=250, hooks=[calls])
    assert calls.number < 250
    # The steps between 101 and 201 ran in a loop, which was added to the graph after it was written first.
    graph = (tmp_path / "graph.pbtxt").read_text(encoding="utf-8")
    assert "GradientDescent" in graph
    assert "While" not in graph
    assert "steps_ahead" not in graph
    meta = (tmp_path / "model.ckpt-250.meta").read_bytes()
    assert b"GradientDescent" in meta
    assert b"steps_ahead" not in meta


@pytest.mark.behaviour(272, 276)
def test_checkpoint_paths_are_relative_so_a_moved_folder_goes_on(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    _estimator(old).train(_input_fn(), steps=2)
    assert str(old) not in (old / "checkpoint").read_text()
    old.rename(new)
    estimator = _estimator(new)
    assert estimator.latest_checkpoint() == str(new / "model.ckpt-2")
    estimator.train(_input_fn(), steps=1)
    assert _step_of(estimator) == 3


@pytest.mark.behaviour(281)
def test_a_seed_repeats_initial_values(tmp_path):
    def model_fn(features, labels, mode):
        weights = v1.get_variable("weights", [16], trainable=False)
        train_op = v1.train.get_global_step().assign_add(1)
        return EstimatorSpec(mode, loss=tf.reduce_sum(weights), train_op=train_op)

    values = []
    for index, seed in enumerate((11, 11, 12)):
        config = RunConfig(model_dir=tmp_path / str(index), tf_random_seed=seed)
        estimator = Estimator(model_fn, config=config).train(_input_fn(), steps=1)
        values.append(estimator.get_variable_value("weights"))
    first, again, other = values
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.behaviour(168, 258, 262, 263, 264)
def test_hooks_of_the_call_the_spec_and_the_chief_come_back_every_step(tmp_path):
    log: list = []
    others = {name: [_Steps()] for name in ("evaluation_hooks", "prediction_hooks")}
    fields = {
        "training_hooks": [_Steps(log, "spec")],
        "training_chief_hooks": [_Steps(log, "chief")],
        **others,
    }
    hook = _Steps(log, "call")
    _estimator(tmp_path, fields=lambda: fields).train(_input_fn(), hooks=[hook], steps=3)
    assert hook.seen == [1, 2, 3]
    for name in ("call", "spec", "chief"):
        events = [what for each, what in log if each == name]
        assert events == ["begin", "after_create_session", 1, 2, 3, "end"]
    ran = [name for name, what in log if what == 1]
    assert ran.index("call") < ran.index("spec")
    assert all(hook.log == [] for (hook,) in others.values())


@pytest.mark.behaviour(263)
def test_chief_hooks_run_in_the_models_order_whatever_they_do(tmp_path):
    """Mesh TensorFlow's first one makes ready what its second one saves."""
    log = []

    class Listener(v1.train.CheckpointSaverListener):
        def before_save(self, session, global_step_value):
            log.append(("save", int(global_step_value)))

    def fields():
        saver = v1.train.CheckpointSaverHook(str(tmp_path), save_steps=5, listeners=[Listener()])
        return {"training_chief_hooks": [_Steps(log, "ready"), saver]}

    _estimator(tmp_path, fields=fields).train(_input_fn(), steps=1)
    assert log[:3] == [("ready", "begin"), ("ready", "after_create_session"), ("save", 0)]


@pytest.mark.behaviour(261)
def test_a_saver_hook_of_the_spec_replaces_the_default_one(tmp_path):
    listener = _Listener()

    def fields():
        saver = v1.train.CheckpointSaverHook(str(tmp_path), save_steps=3)
        return {"training_hooks": [saver]}

    estimator = _estimator(tmp_path, fields=fields, save_checkpoints_steps=1)
    estimator.train(_input_fn(), steps=5, saving_listeners=[listener])
    assert _checkpoint_steps(tmp_path) == [0, 3, 5]
    assert [step for what, step in listener.log if what == "after"] == [0, 3, 5]


@pytest.mark.behaviour(254)
@row("estimator", "`train(hooks=['hook'])`", "Hooks must be a SessionRunHook, given: 'hook'")
def test_hooks_must_be_session_run_hooks(tmp_path, refused):
    with refused(TypeError):
        _estimator(tmp_path).train(_input_fn(), hooks=["hook"], steps=1)


@pytest.mark.behaviour(256)
def test_listeners_hear_of_every_save(tmp_path):
    listener = _Listener()
    estimator = _estimator(tmp_path, save_checkpoints_steps=2)
    estimator.train(_input_fn(), steps=3, saving_listeners=[listener])
    assert listener.log == [
        ("begin", -1),
        ("before", 0),
        ("after", 0),
        ("before", 2),
        ("after", 2),
        ("before", 3),
        ("after", 3),
        ("end", 3),
    ]


@pytest.mark.behaviour(257)
def test_a_listener_may_stop_training(tmp_path):
    estimator = _estimator(tmp_path, save_checkpoints_steps=2)
    estimator.train(_input_fn(), steps=9, saving_listeners=[_Listener(stop_at=4)])
    assert _step_of(estimator) == 4


@pytest.mark.behaviour(255)
@row(
    "estimator",
    "`train(saving_listeners=['listener'])`",
    "must be a list of CheckpointSaverListener",
)
def test_listeners_must_be_listeners(tmp_path, refused):
    with refused(TypeError):
        _estimator(tmp_path).train(_input_fn(), steps=1, saving_listeners=["listener"])


@pytest.mark.behaviour(255)
@row(
    "estimator",
    "saving listeners without checkpoints",
    "save_checkpoints_steps or RunConfig.save_checkpoints_secs",
)
def test_listeners_need_checkpoints(tmp_path, refused):
    estimator = _estimator(tmp_path, save_checkpoints_secs=None)
    with refused(ValueError):
        estimator.train(_input_fn(), steps=1, saving_listeners=[_Listener()])


@pytest.mark.parametrize(("step", "saved"), [(3, 2), (2, 0)], ids=["later", "due"])
@pytest.mark.behaviour(175)
def test_a_nan_loss_names_step_and_checkpoint_after_the_users_hooks_saw_it(tmp_path, step, saved):
    hook = _Steps()

    def poisoned():
        features, labels = linear_model.rows(4)
        labels[step - 1] = np.nan
        return tf.data.Dataset.from_tensor_slices(({"x": features}, labels)).batch(1)

    estimator = _estimator(tmp_path, save_checkpoints_steps=2)
    with pytest.raises(v1.train.NanLossDuringTrainingError) as raised:
        estimator.train(poisoned, hooks=[hook])
    checkpoint = str(tmp_path / f"model.ckpt-{saved}")
    assert hook.seen == list(range(1, step + 1))
    assert f"NaN loss during training, at global step {step}" in str(raised.value)
    assert f"the last checkpoint is {checkpoint}" in str(raised.value)
    assert (raised.value.step, raised.value.checkpoint) == (step, checkpoint)
    # A NaN step that is due is not saved.
    assert _checkpoint_steps(tmp_path) == sorted({0, saved})
    assert np.isfinite(estimator.get_variable_value("linear/weights")).all()


@pytest.mark.behaviour(390)
def test_global_step_per_second_of_an_estimator_is_recorded(tmp_path):
    _estimator(tmp_path, log_step_count_steps=2).train(_input_fn(epochs=10), steps=6)
    assert list(read_values(tmp_path)["global_step/sec"]) == [3, 5]


@pytest.mark.parametrize("task_type", ["evaluator", "ps"])
@pytest.mark.behaviour(176)
def test_an_evaluator_or_ps_does_not_train(tmp_path, monkeypatch, task_type):
    cluster = '{"chief": ["h0:1"], "worker": ["h1:1"], "ps": ["h2:1"]}'
    task = f'{{"type": "{task_type}", "index": 0}}'
    monkeypatch.setenv("TF_CONFIG", f'{{"cluster": {cluster}, "task": {task}}}')
    with pytest.raises(ValueError, match=f"{task_type} in TF_CONFIG.*train_and_evaluate"):
        _estimator(tmp_path).train(_input_fn(), steps=1)


@pytest.mark.behaviour(265, 269)
def test_a_scaffolds_init_fn_runs_when_the_model_is_initialized_only(tmp_path):
    calls = []
    fields = lambda: {  # noqa: E731
        "scaffold": v1.train.Scaffold(init_fn=lambda scaffold, session: calls.append("init"))
    }
    estimator = _estimator(tmp_path, fields=fields)
    estimator.train(_input_fn(), steps=1)
    estimator.train(_input_fn(), steps=1)
    assert calls == ["init"]


@pytest.mark.behaviour(389)
def test_the_models_own_loss_summary_is_not_doubled(tmp_path):
    def fields():
        v1.summary.scalar("loss", tf.constant(-1.0))
        return {}

    _estimator(tmp_path, fields=fields, save_summary_steps=1).train(_input_fn(), steps=1)
    values = read_values(tmp_path)
    assert values["loss"] == {1: -1.0}
    assert "loss_1" not in values


@pytest.mark.parametrize(("every", "steps"), [(2, [1, 3, 5]), (0, []), (None, [])])
@pytest.mark.behaviour(389, 396)
def test_the_loss_and_v1_summaries_are_saved_every_n_steps(tmp_path, every, steps):
    def fields():
        v1.summary.scalar("mine", tf.constant(4.0))
        return {}

    _estimator(tmp_path, fields=fields, save_summary_steps=every).train(_input_fn(), steps=5)
    values = read_values(tmp_path)
    for tag in ("mine", "loss"):
        assert sorted(values.get(tag, {})) == steps


@pytest.mark.behaviour(385)
def test_a_failed_run_leaves_the_estimator_usable(tmp_path):
    estimator = _estimator(tmp_path)

    def fails():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        estimator.train(fails, steps=1)
    estimator.train(_input_fn(), steps=2)
    assert _step_of(estimator) == 2
