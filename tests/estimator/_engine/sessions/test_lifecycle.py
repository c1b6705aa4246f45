"""Sessions that close at once: what waits, waits in a thread."""

import contextlib
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tensorflow as tf

from tests.estimator._engine.log_lines import log_lines
from tests.free_ports import free_ports
from tfx_tpu_trainer.estimator import Estimator, EstimatorSpec, RunConfig
from tfx_tpu_trainer.estimator._engine.sessions import lifecycle
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import (
    Optimizing,
    closed_in_thread,
    default_session_config,
    fold_no_constants,
    optimizing_config,
    placed_by_need,
)
from tfx_tpu_trainer.estimator._engine.sessions.reconnecting import ReconnectingSession
from tfx_tpu_trainer.estimator._engine.sessions.stall_watch import StallWatch
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.schedule._tasks import start_server

v1 = tf.compat.v1


@pytest.mark.behaviour(27)
def test_the_default_places_softly_and_optimizes_once():
    config = default_session_config()
    rewrite = config.graph_options.rewrite_options
    assert config.allow_soft_placement
    assert rewrite.meta_optimizer_iterations == type(rewrite).ONE


def test_placing_by_need_leaves_the_given_configuration_alone():
    given = v1.ConfigProto(intra_op_parallelism_threads=3)
    used = placed_by_need(given)
    assert used.intra_op_parallelism_threads == 3
    assert used.graph_options.place_pruned_graph
    assert not given.graph_options.place_pruned_graph


def test_a_node_without_a_kernel_is_no_hindrance_unless_it_is_fetched():
    with fresh_graph():
        v1.tpu.cross_replica_sum(tf.constant(1.0))
        answer = tf.constant(42)
        with v1.Session(config=placed_by_need(None)) as session:
            assert session.run(answer) == 42


def _in_function_of_tf2():
    @tf.function
    def summed(value):
        return v1.tpu.cross_replica_sum(value)

    return summed(tf.constant(1.0))


def _in_function_of_tf1():
    definition = v1.GraphDef()
    function = definition.library.function.add()
    function.signature.name = "Summed"
    function.signature.input_arg.add(name="groups", type=tf.int32.as_datatype_enum)
    function.signature.output_arg.add(name="out", type=tf.float32.as_datatype_enum)
    one = function.node_def.add(name="one", op="Const")
    one.attr["dtype"].type = tf.float32.as_datatype_enum
    one.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(1.0))
    total = function.node_def.add(name="sum", op="CrossReplicaSum")
    total.input.extend(["one:output:0", "groups"])
    total.attr["T"].type = tf.float32.as_datatype_enum
    function.ret["out"] = "sum:output:0"
    groups = definition.node.add(name="groups", op="Const")
    groups.attr["dtype"].type = tf.int32.as_datatype_enum
    groups.attr["value"].tensor.CopyFrom(tf.make_tensor_proto([[0]]))
    definition.node.add(name="called", op="Summed").input.append("groups")
    return tf.import_graph_def(definition, return_elements=["called:0"])


@pytest.mark.parametrize(
    "make_sum",
    [lambda: v1.tpu.cross_replica_sum(tf.constant(1.0)), _in_function_of_tf2, _in_function_of_tf1],
    ids=["in the graph", "in a tf.function", "in a function of TensorFlow 1"],
)
@pytest.mark.parametrize("optimizing", Optimizing)
def test_a_graph_with_a_node_without_a_kernel_is_placed_by_need(make_sum, optimizing):
    with fresh_graph() as graph:
        make_sum()
        answer = tf.constant(42)
        config = optimizing_config(None, graph, optimizing)
        assert config == placed_by_need(None)
        with v1.Session(config=config) as session:
            assert session.run(answer) == 42


def _nodes_run(config: v1.ConfigProto, *, graph: tf.Graph) -> set[str]:
    """Returns the names of the nodes that a session makes of what computes `answer`."""
    options = v1.RunOptions(output_partition_graphs=True)
    metadata = v1.RunMetadata()
    with v1.Session(graph=graph, config=config) as session:
        session.run("answer:0", {"x:0": 3.0}, options=options, run_metadata=metadata)
    return {node.name for part in metadata.partition_graphs for node in part.node}


@pytest.fixture
def graph():
    """Something waits for a node that does nothing, and negates twice."""
    with fresh_graph() as graph:
        x = v1.placeholder(tf.float32, [], name="x")
        doubled = tf.multiply(x, 2.0, name="doubled")
        with tf.control_dependencies([tf.group(doubled, name="waits")]):
            twice = tf.negative(tf.negative(x, name="negated"))
            tf.square(twice, name="answer")
        yield graph


def test_nothing_is_optimized_but_what_every_session_optimizes(graph):
    nodes = _nodes_run(optimizing_config(None, graph, Optimizing.NOTHING), graph=graph)
    assert {"doubled", "waits", "negated"} <= nodes


@pytest.mark.parametrize("given", [None, v1.ConfigProto(), default_session_config()])
def test_a_node_that_only_others_wait_for_goes_with_the_dependencies(graph, given):
    nodes = _nodes_run(optimizing_config(given, graph, Optimizing.DEPENDENCIES), graph=graph)
    assert "waits" not in nodes
    assert "negated" in nodes


def test_the_whole_optimizer_simplifies_arithmetic_too(graph):
    nodes = _nodes_run(optimizing_config(None, graph, Optimizing.CONFIGURED), graph=graph)
    assert nodes.isdisjoint({"waits", "negated"})


@pytest.mark.parametrize("optimizing", [Optimizing.DEPENDENCIES, Optimizing.CONFIGURED])
def test_options_of_the_optimizer_in_a_session_config_hold(graph, optimizing):
    given = v1.ConfigProto()
    given.graph_options.rewrite_options.disable_meta_optimizer = True
    config = optimizing_config(given, graph, optimizing)
    assert config == given
    assert config is not given
    assert "waits" in _nodes_run(config, graph=graph)


@pytest.mark.parametrize("optimizing", Optimizing)
def test_other_settings_of_a_session_config_are_kept(graph, optimizing):
    given = v1.ConfigProto(intra_op_parallelism_threads=3)
    config = optimizing_config(given, graph, optimizing)
    assert config.intra_op_parallelism_threads == 3
    assert given == v1.ConfigProto(intra_op_parallelism_threads=3)


def _ops_that_initialize(config: v1.ConfigProto) -> set[str]:
    """Returns the types of the ops that a session makes of a variable's initializer."""
    options = v1.RunOptions(output_partition_graphs=True)
    metadata = v1.RunMetadata()
    with fresh_graph() as graph:
        weights = v1.get_variable("weights", [500, 20], initializer=v1.zeros_initializer())
        with v1.Session(graph=graph, config=config) as session:
            session.run(weights.initializer, options=options, run_metadata=metadata)
    return {node.op for part in metadata.partition_graphs for node in part.node}


def test_initial_values_become_constants_unless_nothing_is_folded():
    folding, not_folding = default_session_config(), default_session_config()
    for config in (folding, not_folding):
        config.graph_options.rewrite_options.disable_meta_optimizer = True
    fold_no_constants(not_folding)
    assert "Fill" not in _ops_that_initialize(folding)
    assert "Fill" in _ops_that_initialize(not_folding)


def test_what_a_session_config_says_of_its_graphs_holds():
    config = v1.ConfigProto()
    config.graph_options.optimizer_options.do_function_inlining = True
    given = v1.ConfigProto.FromString(config.SerializeToString())
    fold_no_constants(config)
    assert config == given


def test_a_graph_with_functions_of_both_kinds_is_placed_whole():
    @tf.function
    def doubled(x):
        return 2.0 * x

    with fresh_graph() as graph:
        x = doubled(tf.constant(3.0))
        tf.while_loop(lambda i: i < 3, lambda i: i + 1, [0])
        rows = tf.data.Dataset.range(3).map(lambda row: row + 1)
        v1.data.make_one_shot_iterator(rows).get_next()
        config = optimizing_config(None, graph, Optimizing.CONFIGURED)
        assert not config.graph_options.place_pruned_graph
        with v1.Session(config=config) as session:
            assert session.run(x) == 6.0


@pytest.fixture
def slow_close(monkeypatch):
    """Lets sessions close when the test says so."""
    close, may_close = v1.Session.close, threading.Event()

    def slowly(session):
        assert may_close.wait(30)
        close(session)

    monkeypatch.setattr(v1.Session, "close", slowly)
    yield may_close
    may_close.set()
    for thread in threading.enumerate():
        if thread.name == "session-close":
            thread.join(30)


def leave(*, master="", raises=None):
    """Opens a session, calls it and leaves it; returns the session."""
    with tf.Graph().as_default():
        one = tf.constant(1)
        session = v1.train.MonitoredSession()
        calls = ReconnectingSession(session, StallWatch("Test", timeout_secs=None))
        with closed_in_thread(session, calls, master=master):
            assert calls.run(one) == 1
            left = calls.latest
            if raises is not None:
                raise raises
    return left


def test_a_session_that_waits_goes_on_closing_in_a_thread(slow_close):
    left = leave()
    assert not slow_close.is_set()
    # It has its own method again, for its end.
    assert "close" not in vars(left)
    slow_close.set()


def test_errors_come_through(slow_close):
    with pytest.raises(KeyError, match="mine"):
        leave(raises=KeyError("mine"))
    slow_close.set()


def test_a_session_of_several_hosts_that_failed_is_not_waited_for_long(
    slow_close, monkeypatch, caplog
):
    monkeypatch.setattr(lifecycle, "_TASKS_PATIENCE_SECONDS", 0.2)
    with log_lines(caplog) as logged, pytest.raises(KeyError, match="mine"):
        leave(master="grpc://host", raises=KeyError("mine"))
    assert not slow_close.is_set()
    assert [line for line in logged if "not closed within 0.2 s" in line and "'mine'" in line]


@pytest.mark.parametrize("options", [{"master": "grpc://host"}, {"raises": GeneratorExit()}])
def test_others_are_closed_as_ever(slow_close, options):
    timer = threading.Timer(0.5, slow_close.set)
    timer.start()
    with contextlib.suppress(GeneratorExit):
        leave(**options)
    assert slow_close.is_set()


def test_a_closed_session_runs_nothing_more():
    left = leave()
    with pytest.raises(RuntimeError, match="closed"):
        left.run(left.graph.get_operations()[0])


class _OpensOnce(v1.train.ChiefSessionCreator):
    opened = None

    def create_session(self):
        if self.opened is not None:
            raise KeyError("the host does not come back")
        self.opened = super().create_session()
        return self.opened


def _lose(step_context):
    raise tf.errors.UnavailableError(None, None, "the host is gone")


@pytest.mark.parametrize("master", ["", "grpc://host"])
def test_a_session_that_was_lost_for_good_has_its_own_method_again(master):
    """With the other one, which starts a thread, the interpreter was seen to wait forever for the session's end."""
    creator = _OpensOnce()
    with tf.Graph().as_default():
        tf.constant(1)
        session = v1.train.MonitoredSession(creator)
        calls = ReconnectingSession(session, StallWatch("Test", timeout_secs=None))
        with (
            pytest.raises(KeyError, match="does not come back"),
            closed_in_thread(session, calls, master=master),
        ):
            calls.run_step_fn(_lose)
    assert calls.latest is creator.opened
    assert "close" not in vars(creator.opened)


@pytest.mark.sweep
@pytest.mark.parametrize("tuned", [None, True])
def test_200_trainings_end_at_once(tuned, tmp_path):
    ends = [_seconds_to_end(tmp_path / str(i % 10), 30 + i % 150, tuned) for i in range(200)]
    # A sleep is one of seconds; that of a busy machine comes once or twice.
    assert sorted(ends)[-3] < 0.5


def _model_fn(features, labels, mode):
    weight = v1.get_variable("weight", [1])
    loss = tf.reduce_mean((0 * features + weight - labels) ** 2)
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


def _seconds_to_end(folder, steps, tuned):
    class LastStep(v1.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            # As long as a step of a small model: the thread that tunes sleeps longer and longer.
            time.sleep(0.02)

        def end(self, session):
            self.at = time.monotonic()

    def input_fn():
        made = tf.data.Dataset.range(10**9).map(
            lambda x: tf.cast(x, tf.float32)[None], num_parallel_calls=tf.data.AUTOTUNE
        )
        options = tf.data.Options()
        if tuned:
            options.autotune.enabled = True
        return made.batch(8).map(lambda x: (x, 0 * x)).with_options(options)

    hook = LastStep()
    Estimator(_model_fn, model_dir=str(folder)).train(input_fn, hooks=[hook], steps=steps)
    return time.monotonic() - hook.at


_PARAMETER_SERVER = """
import json, sys
from tfx_tpu_trainer.estimator import RunConfig
from tfx_tpu_trainer.estimator.schedule._tasks import start_server
start_server(RunConfig(tf_config=json.loads(sys.argv[1]))).join()
"""


class _LosesItsHost(v1.train.SessionRunHook):
    """Ends a process, makes a call that fails for want of it, and raises its own error."""

    def __init__(self, process):
        self._process = process

    def after_run(self, run_context, run_values):
        self._process.kill()
        self._process.wait()
        try:
            run_context.session.run(v1.train.get_global_step())
        except tf.errors.OpError as error:
            raise KeyError("mine") from error


@pytest.mark.sweep
def test_the_error_of_a_training_whose_parameter_server_is_gone_is_seen(tmp_path):
    def input_fn():
        return tf.data.Dataset.from_tensors((tf.ones([1]), tf.zeros([1]))).repeat()

    cluster = {
        task: [address] for task, address in zip(("chief", "ps"), free_ports(2), strict=True)
    }
    of_ps, of_chief = (
        {"cluster": cluster, "task": {"type": task, "index": 0}} for task in ("ps", "chief")
    )
    config = RunConfig(model_dir=str(tmp_path), tf_config=of_chief)
    with subprocess.Popen(
        [sys.executable, "-c", _PARAMETER_SERVER, json.dumps(of_ps)],
        cwd=Path(__file__).parents[4],
    ) as process:
        try:
            server = start_server(config)
            with pytest.raises(KeyError, match="mine"):
                Estimator(_model_fn, config=config).train(input_fn, hooks=[_LosesItsHost(process)])
            del server
        finally:
            process.kill()
