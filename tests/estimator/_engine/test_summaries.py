"""Which event files stay open from one call to the next, and that nothing that is written gets lost."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.disks import full_disk
from tests.estimator import linear_model
from tests.estimator._engine.event_files import open_files, read_values
from tests.estimator.each_place import estimator, on_host_and_cores
from tests.estimator.tpu.on_cores import BATCH, train_input_fn
from tfx_tpu_trainer import estimator as estimators
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator._engine.nan_checks import NanLossError
from tfx_tpu_trainer.estimator._engine.reporting import gradients as gradients_module
from tfx_tpu_trainer.estimator._engine.reporting.summaries import HostCallHook, events_of
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


def _summarizing_host_call(folder, step: tf.Tensor, value: tf.Tensor):
    writer = tf.summary.create_file_writer(str(folder))
    with writer.as_default(step):
        tf.summary.scalar("value", value)
        return v1.summary.all_v2_summary_ops()


@pytest.mark.behaviour(247)
def test_v2_summaries_are_written_and_flushed(tmp_path):
    with fresh_graph():
        step = v1.train.get_global_step()
        before = step.read_value()
        fetches = _summarizing_host_call(tmp_path, before, tf.cast(before, tf.float32) * 10)
        with tf.control_dependencies([before]):
            train_op = step.assign_add(1)
        with v1.train.MonitoredSession(hooks=[HostCallHook(fetches)]) as session:
            for _ in range(3):
                session.run(train_op)
    assert read_values(tmp_path)["value"] == {0: 0, 1: 10, 2: 20}


@pytest.mark.behaviour(247)
def test_two_writers_are_both_flushed(tmp_path):
    with fresh_graph():
        step = v1.train.get_global_step().read_value()
        fetches = [
            _summarizing_host_call(tmp_path / name, step, tf.constant(number))
            for name, number in (("one", 1.0), ("two", 2.0))
        ]
        step_op = tf.no_op()
        # all_v2_summary_ops gives those of the graph, so what the second call returned has both.
        with v1.train.MonitoredSession(hooks=[HostCallHook(fetches[1])]) as session:
            session.run(step_op)
    assert read_values(tmp_path / "one")["value"] == {0: 1}
    assert read_values(tmp_path / "two")["value"] == {0: 2}


@pytest.mark.behaviour(253)
def test_a_lone_tensor_and_nested_ops_run():
    with fresh_graph():
        counter = v1.get_variable("counter", initializer=0)
        total, step_op = v1.train.FinalOpsHook(counter.read_value()), tf.no_op()
        nested = {"a": [counter.assign_add(1, read_value=False)], "b": tf.constant(1)}
        hooks = [HostCallHook(nested), HostCallHook(tf.constant("lone")), total]
        with v1.train.MonitoredSession(hooks=hooks) as session:
            session.run(step_op)
            session.run(step_op)
    assert total.final_ops_values == 2


def _write(writer: v1.summary.FileWriter, step: int) -> None:
    writer.add_summary(v1.Summary(value=[v1.Summary.Value(tag="loss", simple_value=step)]), step)


def _call(
    model_dir: Path, step: int = 0, *, folders: tuple[str, ...] = ("",), flush: bool = False
) -> None:
    with events_of(str(model_dir)), tf.Graph().as_default():
        for folder in folders:
            writer = v1.summary.FileWriterCache.get(str(model_dir / folder))
            _write(writer, step)
            if flush:
                # TensorFlow 2.21 makes the file when its thread writes to it first.
                writer.flush()


def _files(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if "tfevents" in name]


def _threads() -> int:
    return sum(thread.name == "EventLoggerThread" for thread in threading.enumerate())


def test_only_the_model_dir_that_was_used_last_keeps_threads_and_files(tmp_path):
    _call(tmp_path / "0", folders=("", "eval"), flush=True)
    before = _threads()
    for number in range(1, 11):
        _call(tmp_path / str(number), folders=("", "eval"), flush=True)
    assert open_files(tmp_path) == {"10", "10/eval"}
    assert _threads() == before


def test_calls_in_one_model_dir_write_one_file(tmp_path):
    for step in range(3):
        _call(tmp_path / "a", step)
    assert read_values(tmp_path / "a")["loss"] == {0: 0, 1: 1, 2: 2}
    assert len(_files(tmp_path / "a")) == 1


def test_calls_that_take_turns_within_a_second_overwrite_nothing(tmp_path):
    for step in range(4):
        _call(tmp_path / "a", step)
        _call(tmp_path / "b", step)
    for name in "ab":
        assert read_values(tmp_path / name)["loss"] == {0: 0, 1: 1, 2: 2, 3: 3}


def test_a_writer_that_someone_holds_writes_after_its_file_was_closed(tmp_path):
    _call(tmp_path / "a")
    with tf.Graph().as_default():
        held = v1.summary.FileWriterCache.get(str(tmp_path / "a"))
    _call(tmp_path / "b")
    held.flush()
    held.close()
    held.reopen()
    assert len(_files(tmp_path / "a")) == 1
    assert held.get_logdir() == str(tmp_path / "a")
    _write(held, 1)
    assert read_values(tmp_path / "a")["loss"] == {0: 0, 1: 1}


def test_folders_elsewhere_stay_open(tmp_path):
    with tf.Graph().as_default():
        for name in ("runs/10", "own"):
            writer = v1.summary.FileWriterCache.get(str(tmp_path / name))
            _write(writer, 0)
            writer.flush()
    _call(tmp_path / "runs/1", flush=True)
    _call(tmp_path / "runs/2", flush=True)
    assert open_files(tmp_path) == {"runs/10", "own", "runs/2"}


def test_a_model_dir_that_was_removed_is_no_error(tmp_path):
    _call(tmp_path / "a", flush=True)
    for name in _files(tmp_path / "a"):
        os.remove(tmp_path / "a" / name)
    os.rmdir(tmp_path / "a")
    _call(tmp_path / "b")
    _call(tmp_path / "a", 1)
    assert read_values(tmp_path / "a")["loss"] == {1: 1}


def test_a_call_elsewhere_goes_on_where_the_last_events_can_not_be_written(tmp_path, caplog):
    _call(tmp_path / "a", 0)
    _call(tmp_path / "a", 1)
    with full_disk():
        _call(tmp_path / "b", folders=())
    assert f"The last events of {tmp_path}/a can't be written" in caplog.text


_WEIGHTS, _BIAS = "linear/weights", "linear/bias"
_ASKED = {"gradient_norms": True, "histograms": True}


def _gradients(batch, weights=linear_model.WEIGHTS, bias=linear_model.BIAS):
    """The gradients of the mean squared error of a batch, by formula."""
    features, labels = batch
    errors = features @ weights + bias - labels
    return 2 * errors @ features / len(labels), 2 * errors.mean()


def _assigned(loss):
    """A train_op of assignments, as optimizers have that are written by hand."""
    variables = v1.trainable_variables()
    gradients = v1.gradients(loss, variables)
    if v1.get_default_graph().get_collection("cores"):
        gradients = [v1.tpu.cross_replica_sum(each) / 2 for each in gradients]
    step = v1.train.get_global_step()
    return tf.group(
        *(v.assign_sub(0.1 * g) for v, g in zip(variables, gradients)), step.assign_add(1)
    )


def _by_assignments(features, labels, mode, params):
    """The linear model, trained by assignments."""
    outputs = linear_model.outputs_of(features)
    loss = tf.reduce_mean(tf.square(outputs - labels))
    if params["use_tpu"]:
        v1.add_to_collection("cores", loss)
    return tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=_assigned(loss))


@on_host_and_cores
@pytest.mark.parametrize("model_fn", [None, _by_assignments])
def test_norms_and_histograms_are_those_of_the_formula(tmp_path, place, model_fn):
    trained = estimator(tmp_path, place, model_fn, config=_ASKED, save_summary_steps=4)
    trained.train(train_input_fn, max_steps=6)
    values = read_values(tmp_path)
    batch = linear_model.batches(BATCH)[0]
    of_weights, of_bias = _gradients(batch)
    norms = [np.linalg.norm([*of_weights, of_bias]), np.linalg.norm(of_weights), abs(of_bias)]
    tags = ["gradient_norm", f"gradient_norm/{_WEIGHTS}", f"gradient_norm/{_BIAS}"]
    np.testing.assert_allclose([values[tag][1] for tag in tags], norms, rtol=1e-5)
    assert list(values["gradient_norm"]) == [1, 5]
    assert sorted(tag for tag in values if tag.startswith(("gradients/", "weights/"))) == [
        f"gradients/{_BIAS}",
        f"gradients/{_WEIGHTS}",
        f"weights/{_BIAS}",
        f"weights/{_WEIGHTS}",
    ]


def _histograms(folder, tag):
    """The histograms of a tag, as TensorBoard reads them."""
    board = EventAccumulator(str(folder), size_guidance={"histograms": 0}).Reload()
    return {event.step: event.histogram_value for event in board.Histograms(tag)}


def test_histograms_are_those_of_the_values_after_the_step(tmp_path):
    trained = estimator(tmp_path, "host", config={"histograms": True}, save_summary_steps=4)
    trained.train(train_input_fn, max_steps=1)
    v1.summary.FileWriterCache.clear()
    weights = _histograms(tmp_path, f"weights/{_WEIGHTS}")[1]
    of_weights, _ = _gradients(linear_model.batches(BATCH)[0])
    stepped = linear_model.WEIGHTS - linear_model.RATE * of_weights
    assert (weights.num, weights.min, weights.max) == pytest.approx(
        (3, stepped.min(), stepped.max())
    )
    assert weights.sum_squares == pytest.approx(np.sum(stepped**2))
    gradients = _histograms(tmp_path, f"gradients/{_WEIGHTS}")[1]
    assert (gradients.num, gradients.sum) == pytest.approx((3, of_weights.sum()))


@pytest.mark.parametrize("asked", [{"gradient_norms": True}, {"histograms": True}])
def test_each_is_written_without_the_other(tmp_path, asked):
    trained = estimator(tmp_path, "host", config=asked, save_summary_steps=1)
    trained.train(train_input_fn, max_steps=1)
    kinds = {tag.split("/")[0] for tag in read_values(tmp_path)} - {"loss", "global_step"}
    assert kinds == ({"gradient_norm"} if "gradient_norms" in asked else {"gradients", "weights"})


@on_host_and_cores
def test_what_is_written_changes_no_training(tmp_path, place):
    found = []
    for name, asked in (("off", {}), ("on", _ASKED)):
        trained = estimator(tmp_path / name, place, config=asked, save_summary_steps=2)
        trained.train(train_input_fn, max_steps=7)
        found.append([trained.get_variable_value(variable) for variable in (_WEIGHTS, _BIAS)])
    for off, on in zip(*found):
        np.testing.assert_allclose(off, on, rtol=1e-6)


@on_host_and_cores
@pytest.mark.parametrize("every", [0, 4])
def test_a_training_that_writes_nothing_has_the_graph_of_one_that_is_not_asked(
    tmp_path, place, every
):
    graphs = []
    for name, asked in (("off", {}), ("on", _ASKED)):
        trained = estimator(tmp_path / name, place, config=asked, save_summary_steps=every)
        trained.train(train_input_fn, max_steps=1)
        graphs.append(_nodes(tmp_path / name / "graph.pbtxt"))
    types = [{op for nodes in graph for _, op, _ in nodes} for graph in graphs]
    assert "HistogramSummary" not in types[0]
    assert ("HistogramSummary" in types[1]) == bool(every)
    if not every:
        assert graphs[0] == graphs[1]


def _nodes(path):
    """Names, types and inputs of a graph's nodes, and of those of its functions."""
    graph = text_format.Parse(path.read_text(), v1.GraphDef())
    # TensorFlow counts the functions of a process, and keeps them in no order.
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    of_all = [[(node.name, node.op, list(node.input)) for node in body] for body in bodies]
    return [of_all[0], *sorted(of_all[1:])]


def test_gradients_that_are_clipped_are_shown_clipped(tmp_path):
    def model_fn(features, labels, mode):
        loss = tf.reduce_mean(tf.square(linear_model.outputs_of(features) - labels))
        optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
        gradients, variables = zip(*optimizer.compute_gradients(loss))
        clipped, _ = tf.clip_by_global_norm(gradients, 0.5)
        step = v1.train.get_global_step()
        train_op = optimizer.apply_gradients(zip(clipped, variables), global_step=step)
        return estimators.EstimatorSpec(mode, loss=loss, train_op=train_op)

    config = estimators.RunConfig(gradient_norms=True)
    estimators.Estimator(model_fn, str(tmp_path), config).train(
        lambda: linear_model.input_fn({"batch_size": BATCH}), steps=1
    )
    assert read_values(tmp_path)["gradient_norm"][1] == pytest.approx(0.5)


def test_gradients_of_embeddings_are_those_of_the_rows_looked_up(tmp_path):
    ids = np.array([3, 3, 1])

    def model_fn(features, mode):
        table = v1.get_variable("table", initializer=np.ones((5, 2), np.float32))
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, features))
        train_op = v1.train.AdamOptimizer().minimize(loss, v1.train.get_global_step())
        return estimators.EstimatorSpec(mode, loss=loss, train_op=train_op)

    config = estimators.RunConfig(**_ASKED)
    estimators.Estimator(model_fn, str(tmp_path), config).train(
        lambda: tf.data.Dataset.from_tensors(ids), steps=1
    )
    # Row 3 has a gradient of [2, 2], row 1 one of [1, 1].
    assert read_values(tmp_path)["gradient_norm/table"][1] == pytest.approx(np.sqrt(10))


def test_variables_that_are_not_trained_have_no_gradients(tmp_path):
    def model_fn(features, labels, mode):
        loss = tf.reduce_mean(tf.square(linear_model.outputs_of(features) - labels))
        bias = [v for v in v1.trainable_variables() if v.op.name == _BIAS]
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        train_op = optimizer.minimize(loss, v1.train.get_global_step(), var_list=bias)
        return estimators.EstimatorSpec(mode, loss=loss, train_op=train_op)

    config = estimators.RunConfig(gradient_norms=True)
    estimators.Estimator(model_fn, str(tmp_path), config).train(
        lambda: linear_model.input_fn({"batch_size": BATCH}), steps=1
    )
    values = read_values(tmp_path)
    assert f"gradient_norm/{_WEIGHTS}" not in values
    assert values["gradient_norm"][1] == pytest.approx(values[f"gradient_norm/{_BIAS}"][1])


@on_host_and_cores
def test_gradients_that_are_nan_end_a_training_as_they_would_without(tmp_path, place):
    def input_fn(params):
        features, labels = linear_model.rows(BATCH)
        data = tf.data.Dataset.from_tensors(({"x": features * np.float32("nan")}, labels))
        return data.unbatch().repeat().batch(params["batch_size"], drop_remainder=True)

    trained = estimator(tmp_path, place, config=_ASKED, save_summary_steps=1)
    with pytest.raises((NanLossError, tf.errors.InvalidArgumentError)) as raised:
        trained.train(input_fn, max_steps=2)
    plain = estimator(tmp_path / "plain", place, save_summary_steps=1)
    with pytest.raises(type(raised.value)):
        plain.train(input_fn, max_steps=2)
    assert "HistogramSummary" not in str(raised.value)


def _of_strategy(features, labels, mode):
    """The linear model as programs for strategies are written: v1's optimizers divide by the replicas."""
    loss = tf.reduce_mean(tf.square(linear_model.outputs_of(features) - labels))
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return estimators.EstimatorSpec(mode, loss=loss, train_op=train_op)


@pytest.mark.parametrize("applied", [True, False])
def test_under_a_strategy_gradients_are_those_of_all_replicas(tmp_path, monkeypatch, applied):
    if not applied:
        # As if no op of TensorFlow's applied them: those of the loss are taken.
        monkeypatch.setattr(gradients_module, "_APPLIES", ("Nothing",))
    strategy = tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], tf.distribute.ReductionToOneDevice()
    )
    config = estimators.RunConfig(train_distribute=strategy, save_summary_steps=2, **_ASKED)
    trained = estimators.Estimator(_of_strategy, str(tmp_path), config)
    trained.train(lambda: linear_model.input_fn({"batch_size": 4}, epochs=5), steps=3)
    of_weights, of_bias = _gradients(linear_model.batches(8)[0])
    values = read_values(tmp_path)
    assert values["gradient_norm"][1] == pytest.approx(
        np.linalg.norm([*of_weights, of_bias]), rel=1e-5
    )
    assert list(values["gradient_norm"]) == [1, 3]
    assert _histograms(tmp_path, f"gradients/{_WEIGHTS}")[1].sum == pytest.approx(of_weights.sum())
    weights = linear_model.WEIGHTS - 0.1 * of_weights
    assert _histograms(tmp_path, f"weights/{_WEIGHTS}")[1].sum == pytest.approx(weights.sum())
