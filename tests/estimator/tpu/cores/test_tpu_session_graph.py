import time

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.estimator._engine.templates import make_template
from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import as_input_tensors
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import placed_by_need
from tfx_tpu_trainer.estimator._engine.template import HostFunction
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.tpu.cores import tpu_system
from tfx_tpu_trainer.estimator.tpu.cores.feed import CoreFeed
from tfx_tpu_trainer.estimator.tpu.cores.layout import CoreLayout, InputMode, row_slices
from tfx_tpu_trainer.estimator.tpu.cores.tpu_session import TPUCopier, place_training_on_tpu
from tfx_tpu_trainer.estimator.tpu.cores.tpu_system import (
    TPUSystemHook,
    find_tpu_system,
    list_tpu_cores,
    translated_tpu_errors,
)

v1 = tf.compat.v1


CORES = 4


def _feed() -> CoreFeed:
    rows = (np.ones((64, 3), np.float32), np.zeros(64, np.float32))
    dataset = tf.data.Dataset.from_tensor_slices(rows).repeat().batch(16, drop_remainder=True)
    slices = row_slices(InputMode.PER_HOST_V1, CoreLayout(CORES))
    return CoreFeed([as_input_tensors(dataset)], slices, batch_axes=None)


def _template(feed: CoreFeed, *, summed: bool = True, **fields):
    with tf_private.replicas(CORES):
        kernel = v1.get_variable("kernel", [3, 1])
        error = tf.squeeze(feed.features @ kernel, axis=1) - feed.labels
        loss = tf.reduce_mean(tf.square(error))
        optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
        optimizer = v1.tpu.CrossShardOptimizer(optimizer) if summed else optimizer
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return make_template(
        "train", features=feed.features, labels=feed.labels, loss=loss, train_op=train_op, **fields
    )


def _place(template, feed: CoreFeed, **options):
    options = {"iterations_per_loop": 100, "host_call_every_n_steps": 1, **options}
    return place_training_on_tpu(template, feed, cores=CORES, broadcast=False, **options)


class Nodes:
    """The nodes of a graph and of its functions, those of a TPU program apart."""

    def __init__(self, graph_def) -> None:
        self.functions = {f.signature.name: f.node_def for f in graph_def.library.function}
        everywhere = [graph_def.node, *self.functions.values()]
        every_node = [node for nodes in everywhere for node in nodes]
        self.on_cores = [node for node in every_node if "_tpu_replicate" in node.attr]
        (self.cluster,) = {node.attr["_tpu_replicate"].s for node in self.on_cores}
        self._every_node = every_node

    def of_type(self, kind: str) -> list:
        return [node for node in self._every_node if node.op == kind]

    def inside(self, node) -> set[str]:
        """Types of all nodes in the functions that a node calls, however deep."""
        types: set[str] = set()
        pending = [node]
        while pending:
            for name in _called(pending.pop()):
                types |= {inner.op for inner in self.functions[name]}
                pending += self.functions[name]
        return types


def _called(node) -> list[str]:
    return [value.func.name for value in node.attr.values() if value.HasField("func")]


def test_the_cores_run_a_loop_of_steps_and_the_host_feeds_it():
    with fresh_graph() as graph:
        feed = _feed()
        step_loop = _place(_template(feed), feed)
        assert step_loop.loss.shape.rank == 0
        nodes = Nodes(graph.as_graph_def())

    (metadata,) = nodes.of_type("TPUReplicateMetadata")
    assert metadata.attr["num_replicas"].i == CORES
    assert metadata.attr["num_cores_per_replica"].i == 1
    assert metadata.attr["_tpu_replicate"].s == nodes.cluster

    (loop,) = [node for node in nodes.on_cores if node.op in ("While", "StatelessWhile")]
    step = nodes.inside(loop)
    assert {"CrossReplicaSum", "ResourceApplyMomentum", "AssignAddVariableOp"} <= step
    assert "IteratorGetNext" not in step

    inputs = nodes.of_type("TPUReplicatedInput")
    assert {node.attr["N"].i for node in inputs} == {CORES}
    stacks = [node for node in inputs if node.attr["T"].type == tf.float32.as_datatype_enum]
    assert len(stacks) == 2
    outputs = nodes.of_type("TPUReplicatedOutput")
    assert {node.attr["num_replicas"].i for node in outputs} == {CORES}

    on_cores = {node.name for node in nodes.on_cores}
    for node in [*nodes.of_type("IteratorGetNext"), *nodes.of_type("VarHandleOp")]:
        assert node.name not in on_cores


def test_a_transfer_has_as_many_steps_as_a_loop_or_as_fit_into_a_core():
    with fresh_graph() as graph:
        feed = _feed()
        _place(_template(feed), feed, iterations_per_loop=7)
        sizes = _stack_sizes(graph)
    assert sizes == {7}


def _stack_sizes(graph: tf.Graph) -> set[int]:
    sizes = set()
    for function in graph.as_graph_def().library.function:
        for node in function.node_def:
            if node.op == "TensorListStack" and "num_elements" in node.attr:
                sizes.add(node.attr["num_elements"].i)
    return sizes - {-1}


def test_the_host_call_runs_on_the_host_on_what_the_cores_give():
    with fresh_graph() as graph:
        feed = _feed()
        template = _template(feed)
        host_call = HostFunction(
            "host_call",
            lambda loss: tf.py_function(lambda value: value, [loss], tf.float32),
            {"loss": tf.reshape(template.loss, [1])},
        )
        _place(_template_with(template, host_call), feed)
        nodes = Nodes(graph.as_graph_def())
    (loop,) = [node for node in nodes.on_cores if node.op in ("While", "StatelessWhile")]
    assert "EagerPyFunc" not in nodes.inside(loop)
    assert len(nodes.of_type("EagerPyFunc")) == 2  # as it was traced, and its copy on the host
    assert not [node for node in nodes.on_cores if node.op == "EagerPyFunc"]
    outputs = nodes.of_type("TPUReplicatedOutput")
    assert len(outputs) == 2


def _template_with(template, host_call: HostFunction):
    return make_template(
        "train", loss=template.loss, train_op=template.train_op, host_call=host_call
    )


@pytest.mark.behaviour(191)
def test_cores_that_never_sum_are_refused():
    with fresh_graph():
        feed = _feed()
        with pytest.raises(ValueError, match="CrossShardOptimizer must be used"):
            _place(_template(feed, summed=False), feed)


def test_full_batches_of_evaluation_and_prediction_run_on_the_cores():
    with fresh_graph() as graph:
        feed = _feed()
        template = _template(feed)
        copier = TPUCopier(GraphCopier(graph))

        def one_batch():
            fed = [{p.name: tf.zeros(p.shape) for p in (feed.features, feed.labels)}] * CORES
            fetches = [Fetch(core, template.loss) for core in range(CORES)]
            return copier.copy(fetches, replaced=fed, name="cores")

        losses = tf.function(one_batch, autograph=False)()
        nodes = Nodes(graph.as_graph_def())
    assert len(losses) == CORES
    (metadata,) = nodes.of_type("TPUReplicateMetadata")
    assert metadata.attr["num_replicas"].i == CORES
    on_cores = {node.op for node in nodes.on_cores}
    assert {"MatMul", "ReadVariableOp"} <= on_cores
    assert "ResourceApplyMomentum" not in on_cores


def test_the_program_of_one_core_makes_the_numbers_of_plain_training(monkeypatch):
    """What a core would run, run on this host in place of a TPU: TensorFlow's part is left out."""

    def on_this_host(program, inputs, device_assignment):
        return [program(*values) for values in inputs]

    monkeypatch.setattr(v1.tpu, "replicate", on_this_host)
    rows = np.arange(20, dtype=np.float32).reshape(10, 2)
    with fresh_graph():
        batches = tf.data.Dataset.from_tensor_slices(rows).batch(2, drop_remainder=True)
        source = as_input_tensors(batches)
        slices = row_slices(InputMode.PER_HOST_V1, CoreLayout(1))
        feed = CoreFeed([source], slices, batch_axes=None)
        center = v1.get_variable("center", initializer=np.zeros(2, np.float32))
        loss = tf.reduce_mean(tf.square(feed.features - center))
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        calls = v1.get_variable("calls", initializer=np.zeros(2, np.float32))
        host_call = HostFunction(
            "host_call",
            lambda loss: calls.assign_add(tf.concat([[1.0], loss], 0), read_value=False),
            [tf.reshape(loss, [1])],
        )
        step_loop = place_training_on_tpu(
            make_template("train", loss=loss, train_op=train_op, host_call=host_call),
            feed,
            cores=1,
            broadcast=False,
            host_call_every_n_steps=2,
            iterations_per_loop=2,  # steps of a transfer: five steps are two, two and one
        )
        with v1.Session(config=placed_by_need(None)) as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            session.run(source.iterator.initializer)
            session.run(step_loop.iterations.assign(5))
            last_loss = session.run(step_loop.loss)
            trained, step, called = session.run([center, v1.train.get_global_step(), calls])

    expected, losses = np.zeros(2), []
    for batch in rows.reshape(5, 2, 2):
        losses.append(np.mean((batch - expected) ** 2))
        expected = expected + 0.1 * 2 * (batch - expected).sum(axis=0) / batch.size
    np.testing.assert_allclose(trained, expected, rtol=1e-5)
    np.testing.assert_allclose(last_loss, losses[-1], rtol=1e-5)
    np.testing.assert_allclose(called, [3, losses[0] + losses[2] + losses[4]], rtol=1e-5)
    assert step == 5


WAYS_OUT = r"(?s)RunConfig\(master='emulated'\).*TFX_TPU_TRAINER_EMULATE=1.*use_tpu=False"


@pytest.mark.behaviour(92)
def test_a_master_without_tpu_is_named_with_the_ways_out():
    with pytest.raises(RuntimeError, match=WAYS_OUT) as error:
        list_tpu_cores("")
    assert "''" in str(error.value)
    assert "CPU" in str(error.value)


@row(
    "estimator",
    "`RunConfig(master='not an address')` of a TPUEstimator",
    "Failed to find TPU cores through the master 'not an address': it is not the address of a "
    "session",
    "or emulate TPU cores on this host with RunConfig(master='emulated')",
)
def test_a_master_that_is_no_address_is_named(refused):
    with refused(RuntimeError):
        list_tpu_cores("not an address")


@pytest.mark.behaviour(92)
def test_a_master_that_does_not_answer_is_named_in_time():
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=WAYS_OUT) as error:
        list_tpu_cores("grpc://localhost:1", timeout_secs=1)
    assert "grpc://localhost:1" in str(error.value)
    assert time.monotonic() - started < 10


def test_a_session_without_tpu_fails_with_the_ways_out():
    with tf.Graph().as_default():
        creator = v1.train.ChiefSessionCreator(config=placed_by_need(None))
        with (
            pytest.raises(RuntimeError, match=WAYS_OUT) as error,
            v1.train.MonitoredSession(creator, hooks=[TPUSystemHook(master="")]),
        ):
            pass
    assert "No OpKernel was registered" in str(error.value)


def test_a_topology_that_nobody_can_tell_fails_with_the_ways_out(monkeypatch):
    # A master that lists cores, and has no system to initialize.
    listed = [f"/job:localhost/task:0/device:TPU:{number}" for number in range(8)]
    monkeypatch.setattr(tpu_system, "list_tpu_cores", lambda *_, **__: listed)
    assert find_tpu_system("").num_cores == 8
    with pytest.raises(RuntimeError, match=WAYS_OUT):
        find_tpu_system("", with_topology=True)


def test_an_error_of_the_model_stays_what_it_is():
    with (
        pytest.raises(tf.errors.InvalidArgumentError, match="shapes"),
        translated_tpu_errors("grpc://tpu"),
    ):
        raise tf.errors.InvalidArgumentError(None, None, "shapes do not match")
