"""The graphs that trainings on cores write: what `import_meta_graph` makes of them on any host."""

import contextlib
import glob
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format

from tests.estimator import linear_model
from tests.estimator.places.strategy.strategy_runs import mirrored
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.places.one_core import reads_other_cores

v1 = tf.compat.v1

pytestmark = pytest.mark.matrix

CORES = 4


class _OwnSaver(v1.train.Saver):
    """A class of the user's, which writes all itself."""


def _model_fn(features, labels, mode, params):
    """The linear model, with a part of its loss that the cores share, as they do in batch norm."""
    outputs = tf.identity(linear_model.outputs_of(features), name="outputs")
    mean = tf.reduce_mean(outputs)
    if params["shards"]:
        mean = v1.tpu.cross_replica_sum(mean) / params["shards"]
    error = tf.reduce_mean(tf.square(outputs - labels))
    loss = tf.add(error, tf.square(mean), name="loss_of_model")
    optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(linear_model.RATE))
    step = v1.train.get_global_step()
    if params["every"] == 1:
        train_op = optimizer.minimize(loss, step, name="one_step")
    else:
        variables = v1.trainable_variables()
        gradients = tf.gradients(loss, variables)

        def apply():
            means = [v1.tpu.cross_replica_sum(each) / CORES for each in gradients]
            changes = [v.assign_sub(linear_model.RATE * m) for v, m in zip(variables, means)]
            with tf.control_dependencies(changes):
                return tf.constant(True)

        applied = tf.cond(tf.equal(step % params["every"], 0), apply, lambda: tf.constant(False))
        with tf.control_dependencies([applied]):
            train_op = step.assign_add(1, name="one_step")
    scaffold_fn = params["saver"] and (lambda: v1.train.Scaffold(saver=params["saver"]()))
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, scaffold_fn=scaffold_fn)


def _trained(folder, *, shards=CORES, every=1, saver=None, hooks=(), **options):
    """Trains 2 steps; returns the checkpoint's path."""
    params = {"shards": shards, "every": every, "saver": saver}
    estimator = on_cores.make(folder, _model_fn, cores=CORES, params=params, **options)
    estimator.train(on_cores.train_input_fn, hooks=hooks, max_steps=2)
    return estimator.latest_checkpoint()


@contextlib.contextmanager
def _imported(path: str) -> Any:
    with tf.Graph().as_default() as graph, v1.Session() as session:
        v1.train.import_meta_graph(f"{path}.meta", clear_devices=True).restore(session, path)
        for name, value in _variables(path).items():
            assert session.run(f"{name}/Read/ReadVariableOp:0") == pytest.approx(value)
        yield graph, session


def _variables(path: str) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(path)
    return {name: reader.get_tensor(name) for name in ("linear/weights", "linear/bias")}


def _after_a_step(path: str, batch: linear_model.Batch) -> tuple[float, np.ndarray]:
    """By formula, the loss on a batch, and the weights after a step on it."""
    (features, labels), (weights, bias) = batch, _variables(path).values()
    outputs = linear_model.output(features, weights, bias)
    error, mean = outputs - labels, np.mean(outputs)
    gradient = 2 * features.T @ error / len(labels) + 2 * mean * np.mean(features, axis=0)
    return np.mean(error**2) + mean**2, weights - linear_model.RATE * gradient


def _assert_trains(path: str, batch: linear_model.Batch, fed: dict[str, Any] | None = None) -> None:
    loss, weights = _after_a_step(path, batch)
    with _imported(path) as (_, session):
        if fed is None:
            session.run("MakeIterator")
            found = session.run("loss_of_model:0")
            session.run("MakeIterator")
        else:
            found = session.run("loss_of_model:0", fed)
        assert found == pytest.approx(loss, rel=1e-5)
        session.run("one_step", fed)
        assert session.run(v1.train.get_global_step()) == 3
        trained = session.run("linear/weights/Read/ReadVariableOp:0")
    np.testing.assert_allclose(trained, weights, rtol=1e-5)


def _first_rows(rows: int) -> linear_model.Batch:
    features, labels = linear_model.rows()
    return features[:rows], labels[:rows]


_V2 = {"tpu_options": {"per_host_input_for_training": on_cores.PER_HOST_V2}}


@pytest.mark.behaviour(272)
@mostly_swept("options", [{}, _V2, {"saver": _OwnSaver}, {"every": 2}], kept=[{}, {"every": 2}])
def test_one_core_of_it_runs_on_its_rows(tmp_path, options):
    path = _trained(tmp_path, **options)
    _assert_trains(path, _first_rows(on_cores.BATCH // CORES))


def test_a_hook_of_the_users_that_saves_writes_it_too(tmp_path):
    hook = v1.train.CheckpointSaverHook(str(tmp_path), save_steps=2)
    _assert_trains(_trained(tmp_path, hooks=[hook]), _first_rows(on_cores.BATCH // CORES))


def test_on_the_host_a_sum_is_no_part_of_it_either(tmp_path):
    path = _trained(tmp_path, shards=1, use_tpu=False)
    _assert_trains(path, _first_rows(on_cores.BATCH))


def test_under_a_strategy_a_replica_is_fed(tmp_path):
    config = tpu.RunConfig(
        model_dir=str(tmp_path), train_distribute=mirrored(), tpu_config=tpu.TPUConfig()
    )
    params = {"shards": 2, "every": 1, "saver": None}
    estimator = tpu.TPUEstimator(_model_fn, config=config, params=params, **on_cores.BATCH_SIZES)
    estimator.train(on_cores.train_input_fn, max_steps=2)
    batch = _first_rows(on_cores.BATCH // 2)
    fed = {"Placeholder:0": batch[0], "Placeholder_1:0": batch[1]}
    _assert_trains(estimator.latest_checkpoint(), batch, fed)


@pytest.mark.behaviour(272, 277)
def test_its_names_are_those_of_the_hosts_program(tmp_path):
    paths = [_trained(tmp_path / "host", shards=1, use_tpu=False), _trained(tmp_path / "cores")]
    names = []
    for path in paths:
        with _imported(path) as (graph, _):
            made = {op.name for op in graph.get_operations()}
            model = {n for n in made if n.startswith(("linear/", "outputs", "gradients/", "save/"))}
            variables = [variable.name for variable in v1.global_variables()]
            names.append((model, variables, {"loss_of_model", "one_step"} & made))
    (host, *of_host), (core, *of_core) = names
    # Gradients of cores have what divides the loss by their number.
    assert host <= core
    assert {name for name in core - host if not name.startswith("gradients/")} == set()
    assert of_host[0] == [name for name in of_core[0] if name != "iterations_per_loop:0"]
    assert of_host[1] == of_core[1] == {"loss_of_model", "one_step"}


def test_the_graphs_for_tensorboard_are_of_one_core_too(tmp_path):
    _trained(tmp_path)
    text = (tmp_path / "graph.pbtxt").read_text()
    found = [text_format.Parse(text, v1.GraphDef())]
    for path in glob.glob(f"{tmp_path}/events.*"):
        for event in v1.train.summary_iterator(path):
            found.append(v1.GraphDef.FromString(event.graph_def))
            meta_graph = v1.MetaGraphDef.FromString(event.meta_graph_def)
            found.append(meta_graph.graph_def)
    written = [graph_def for graph_def in found if graph_def.node]
    assert len(written) == 3
    assert not any(map(reads_other_cores, written))
