"""When checkpoints by time are due."""

import glob
import os
import re
import time

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format

from tests.estimator._engine.templates import save
from tfx_tpu_trainer import estimator as estimators
from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.checkpointing.savers import (
    FiniteSaverHook,
    GrowingTimer,
    converted_once,
    fitted_scaffold,
    saver_of_objects,
)
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


@pytest.mark.parametrize("kind", [tf.train.Checkpoint, v1.train.Checkpoint])
def test_a_checkpoint_object_becomes_a_saver_of_its_objects(tmp_path, kind):
    with fresh_graph():
        weights = v1.get_variable("weights", initializer=np.float32([1, 2]))
        init_op = tf.no_op("mine")
        scaffold = v1.train.Scaffold(init_op=init_op, saver=kind(layer=weights))
        fitted = fitted_scaffold(scaffold, None, keep_max=1)
        with v1.Session() as session:
            session.run(weights.initializer)
            for step in (1, 2):
                path = fitted.saver.save(session, str(tmp_path / "model.ckpt"), global_step=step)
        assert fitted.init_op is init_op
    assert tf.train.get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths == [path]

    restored = tf.Variable([0.0, 0.0])
    tf.train.Checkpoint(layer=restored).restore(path).assert_nontrivial_match()
    np.testing.assert_array_equal(restored, [1, 2])


def test_another_scaffold_is_left_as_it_is(tmp_path):
    path = save(tmp_path, 7)
    with fresh_graph():
        weights = v1.get_variable("average", [2])
        for saver in (None, v1.train.Saver({"layer/weights": weights})):
            scaffold = v1.train.Scaffold(saver=saver)
            assert fitted_scaffold(scaffold, None) is scaffold
        assert fitted_scaffold(scaffold, path) is scaffold


@pytest.mark.behaviour(280)
def test_a_scaffolds_or_the_models_saver_decides_what_must_be_there(tmp_path):
    path = save(tmp_path, 7)
    with fresh_graph():
        weights = v1.get_variable("average", [2])
        with pytest.raises(tf.errors.NotFoundError, match="Missing in the checkpoint: 'average'"):
            fitted_scaffold(v1.train.Scaffold(), path)
        v1.add_to_collection(v1.GraphKeys.SAVERS, v1.train.Saver({"layer/weights": weights}))
        fitted_scaffold(v1.train.Scaffold(), path)


def test_a_saver_of_objects_restores_by_their_place(tmp_path):
    saved = tf.Variable([3.0, 4.0])
    path = tf.train.Checkpoint(layer=saved).save(str(tmp_path / "model.ckpt"))
    with fresh_graph(), v1.Session() as session:
        weights = v1.get_variable("whatever", [2])
        saver_of_objects(tf.train.Checkpoint(layer=weights)).restore(session, path)
        np.testing.assert_array_equal(session.run(weights), [3, 4])


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands until it is set."""
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


def _due_times(timer, clock, until):
    """Asks each second, as a training with a step a second does."""
    times = []
    for second in range(until):
        clock[0] = 1000.0 + second
        if timer.should_trigger_for_step(second):
            timer.update_last_triggered_step(second)
            times.append(second)
    return times


def test_intervals_double_until_they_are_the_longest(clock):
    timer = GrowingTimer(60, 600)
    due = _due_times(timer, clock, 3000)
    # 0 is the checkpoint of the untrained model.
    assert due == [0, 60, 180, 420, 900, 1500, 2100, 2700]
    timer.reset()
    assert _due_times(timer, clock, 200) == [0, 60, 180]


def test_it_has_the_methods_of_tensorflows_timer(clock):
    plain, growing = v1.train.SecondOrStepTimer(every_secs=60), GrowingTimer(60, 60)
    for timer in (plain, growing):
        assert timer.last_triggered_step() is None
        assert timer.update_last_triggered_step(3) == (None, None)
    clock[0] += 30
    assert [timer.should_trigger_for_step(4) for timer in (plain, growing)] == [False, False]
    clock[0] += 30
    assert [timer.should_trigger_for_step(3) for timer in (plain, growing)] == [False, False]
    assert [timer.should_trigger_for_step(5) for timer in (plain, growing)] == [True, True]
    assert [timer.update_last_triggered_step(5) for timer in (plain, growing)] == [(60, 2)] * 2
    assert [timer.last_triggered_step() for timer in (plain, growing)] == [5, 5]
    # Saved before it was due, at the end: the next interval is no longer for it.
    clock[0] += 30
    growing.update_last_triggered_step(6)
    clock[0] += 60
    assert growing.should_trigger_for_step(7)


class _Seconds(v1.train.SessionRunHook):
    """Lets a second pass with each step."""

    def __init__(self, clock):
        self._clock = clock

    def after_run(self, run_context, run_values):
        self._clock[0] += 1


def _model_fn(features, labels, mode):
    loss = tf.reduce_mean(features)
    step = v1.train.get_global_step()
    return estimators.EstimatorSpec(mode, loss=loss, train_op=step.assign_add(1))


@pytest.mark.parametrize(
    ("first", "steps"), [(None, {0, 11, 21, 25}), (2, {0, 3, 7, 15, 25}), (20, {0, 11, 21, 25})]
)
def test_an_estimator_saves_when_its_config_says(tmp_path, clock, first, steps):
    # The hook's second has passed for the call after it: the first interval ends a step later.
    config = estimators.RunConfig(
        model_dir=str(tmp_path),
        save_checkpoints_secs=10,
        first_checkpoint_secs=first,
        keep_checkpoint_max=None,
    )
    estimator = estimators.Estimator(_model_fn, config=config)
    estimator.train(
        lambda: tf.data.Dataset.from_tensors([1.0]).repeat(), steps=25, hooks=[_Seconds(clock)]
    )
    saved = {
        int(re.search(r"-(\d+)\.index", path)[1])
        for path in glob.glob(os.path.join(tmp_path, "*.index"))
    }
    assert saved == steps


def _save(folder, **options):
    """Makes a session with a hook that saves; the graph that it had."""
    with tf.Graph().as_default() as graph:
        next_step = v1.train.create_global_step().assign_add(1)
        texts = tf.constant([b"\xff\n", 'a "quoted" \\ ü'.encode()])
        numbers = tf.constant([0.1, 3e38, float("nan"), float("-inf")])
        loss = tf.reduce_sum(numbers) + tf.cast(tf.size(texts), tf.float32)
        scaffold = v1.train.Scaffold()
        hook = FiniteSaverHook(
            str(folder), loss=tf.zeros_like(loss), save_steps=1, scaffold=scaffold, **options
        )
        with v1.train.MonitoredTrainingSession(scaffold=scaffold, hooks=[hook]) as session:
            session.run(next_step)
        return graph.as_graph_def(add_shapes=True)


def test_the_graphs_text_is_printed_without_python(tmp_path, monkeypatch):
    printed = []
    in_python = text_format.MessageToString

    def counted(message, *args, **kwargs):
        printed.append(type(message).__name__)
        return in_python(message, *args, **kwargs)

    monkeypatch.setattr(text_format, "MessageToString", counted)
    graph_def = _save(tmp_path)
    assert "GraphDef" not in printed
    text = (tmp_path / "graph.pbtxt").read_text(encoding="utf-8")
    # NaN is unequal to itself; the bytes are not.
    read = text_format.Parse(text, v1.GraphDef())
    assert read.SerializeToString(deterministic=True) == graph_def.SerializeToString(
        deterministic=True
    )
    assert not list(tmp_path.glob("*.tmp*"))
    # What this test counts is what TensorFlow's own function does.
    tf.io.write_graph(graph_def, str(tmp_path), "theirs.pbtxt")
    assert "GraphDef" in printed


class _UsersSaver(v1.train.Saver):
    """Notes how it is called."""

    def __init__(self):
        super().__init__(save_relative_paths=True)
        self.asked = []

    def save(self, *args, **kwargs):
        self.asked.append(kwargs["write_meta_graph"])
        return super().save(*args, **kwargs)


def _train(folder, *, saver=None, grows_at=None, steps=4):
    """Trains with a checkpoint at each step; the graph's .meta as the saver itself makes it, before and after."""
    with tf.Graph().as_default() as graph:
        next_step = v1.train.create_global_step().assign_add(1)
        scaffold = v1.train.Scaffold(saver=saver and saver())
        hook = FiniteSaverHook(
            str(folder), loss=tf.constant(0.0), save_steps=1, scaffold=scaffold, listeners=[]
        )
        theirs = []
        with v1.train.MonitoredTrainingSession(scaffold=scaffold, hooks=[hook]) as session:
            theirs.append(scaffold.saver.export_meta_graph())
            for step in range(steps):
                if step == grows_at:
                    with tf_private.growing(graph):
                        tf.constant(1.0, name="grown")
                session.run(next_step)
            theirs.append(scaffold.saver.export_meta_graph())
    written = {
        int(re.search(r"-(\d+)\.meta", path.name)[1]): path.read_bytes()
        for path in folder.glob("*.meta")
    }
    return scaffold.saver, written, theirs


def _canonical(meta_graph):
    return meta_graph.SerializeToString(deterministic=True)


def _parsed(content):
    return _canonical(v1.MetaGraphDef.FromString(content))


def test_each_checkpoints_graph_is_the_one_that_the_saver_writes(tmp_path):
    _, written, (theirs, _) = _train(tmp_path)
    assert sorted(written) == [0, 1, 2, 3, 4]
    assert {_parsed(content) for content in written.values()} == {_canonical(theirs)}
    assert not list(tmp_path.glob("*.tmp*"))
    path = str(tmp_path / "model.ckpt-3")
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.import_meta_graph(f"{path}.meta").restore(session, path)
        assert session.run(v1.train.get_global_step()) == 3


def test_the_graph_of_a_checkpoint_has_what_was_added_before_it(tmp_path):
    _, written, (before, after) = _train(tmp_path, grows_at=2)
    assert _canonical(before) != _canonical(after)
    found = {step: _parsed(content) for step, content in written.items()}
    assert {found[step] for step in (0, 1, 2)} == {_canonical(before)}
    assert {found[step] for step in (3, 4)} == {_canonical(after)}


def test_the_graph_is_made_once(tmp_path, monkeypatch):
    made = []
    export = v1.train.Saver.export_meta_graph

    def counted(self, *args, **kwargs):
        made.append(len(list(tmp_path.glob("*.meta"))))
        return export(self, *args, **kwargs)

    monkeypatch.setattr(v1.train.Saver, "export_meta_graph", counted)
    _train(tmp_path, steps=6)
    # For the first file. The others are this test's own, when the session opens and when it has ended.
    assert sorted(made) == [0, 1, 5]


def test_a_saver_of_the_users_own_class_writes_all_itself(tmp_path):
    saver, written, _ = _train(tmp_path, saver=_UsersSaver, steps=2)
    assert saver.asked == [True, True, True]
    assert sorted(written) == [0, 1, 2]


def _graph_defs_in_events(folder):
    found = []
    for path in folder.glob("events.*"):
        for event in v1.train.summary_iterator(str(path)):
            if event.HasField("graph_def"):
                found.append(event.graph_def)
            elif event.HasField("meta_graph_def"):
                meta_graph = v1.MetaGraphDef.FromString(event.meta_graph_def)
                found.append(_canonical(meta_graph.graph_def))
    return [_canonical(v1.GraphDef.FromString(each)) for each in found]


def test_writing_the_graph_everywhere_converts_it_once(tmp_path, monkeypatch):
    made, convert = [], tf.Graph.as_graph_def

    def counted(self, *args, **kwargs):
        made.append(self.version)
        return convert(self, *args, **kwargs)

    monkeypatch.setattr(tf.Graph, "as_graph_def", counted)
    graph_def = _canonical(_save(tmp_path))
    # When it was final, and this test's own; graphs without an op don't count.
    assert len([version for version in made if version]) == 2
    found = _graph_defs_in_events(tmp_path)
    of_events = [each for each in found if v1.GraphDef.FromString(each).node]
    assert of_events == [graph_def] * 2
    (meta_graph,) = {path.read_bytes() for path in tmp_path.glob("*.meta")}
    assert _canonical(v1.MetaGraphDef.FromString(meta_graph).graph_def) == graph_def


def _is_as_it_was(graph):
    return getattr(graph.as_graph_def, "__func__", None) is tf.Graph.as_graph_def


def test_everybody_gets_a_copy_of_his_own():
    graph = tf.Graph()
    with graph.as_default(), converted_once(graph):
        tf.constant([1.0], name="one")
        first = graph.as_graph_def(add_shapes=True)
        assert "_output_shapes" in first.node[0].attr
        del first.node[:]
        assert [node.name for node in graph.as_graph_def(add_shapes=True).node] == ["one"]
        # Asked for in another way, and when it has grown.
        assert "_output_shapes" not in graph.as_graph_def().node[0].attr
        tf.constant(2.0, name="two")
        assert [node.name for node in graph.as_graph_def(add_shapes=True).node] == ["one", "two"]


def test_a_block_inside_of_another_ends_nothing():
    graph = tf.Graph()
    with converted_once(graph):
        with converted_once(graph):
            pass
        assert not _is_as_it_was(graph)
    assert _is_as_it_was(graph)


def test_an_error_ends_it_too():
    graph = tf.Graph()
    with pytest.raises(KeyError, match="mine"), converted_once(graph):
        raise KeyError("mine")
    assert _is_as_it_was(graph)
