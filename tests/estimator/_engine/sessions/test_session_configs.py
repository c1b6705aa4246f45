from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.sessions.session_configs import (
    Optimizing,
    default_session_config,
    fold_no_constants,
    optimizing_config,
    placed_by_need,
)
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

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
