import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import placed_by_need
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.places.choice import Choice, Kind, choose_place, session_master
from tfx_tpu_trainer.estimator.places.one_core import (
    bypass_sums,
    put_on_one_core,
    read_rows_of_one_core,
    reads_other_cores,
)


def _no_cores():
    raise RuntimeError("no TPU system here")


def _choose(**given):
    return choose_place(**{"use_tpu": True, "master": "", "count_cores": _no_cores, **given})


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch):
    monkeypatch.delenv("TFX_TPU_TRAINER_EMULATE", raising=False)


def test_use_tpu_false_is_the_host():
    assert _choose(use_tpu=False, master="emulated").kind is Kind.HOST


def test_the_master_emulated_chooses_emulated_cores():
    assert _choose(master="emulated") == Choice(
        Kind.EMULATED_CORES, "emulated TPU cores (RunConfig(master='emulated'))"
    )
    assert session_master("emulated") == ""
    assert session_master("grpc://host:1") == "grpc://host:1"


def test_the_environment_variable_wins_over_an_address(monkeypatch):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", "1")
    assert _choose(master="grpc://host:1") == Choice(
        Kind.EMULATED_CORES, "emulated TPU cores (TFX_TPU_TRAINER_EMULATE=1)"
    )
    assert session_master("grpc://host:1") == ""


@pytest.mark.parametrize("text", ["true", "yes", "2", " 1"])
def test_another_value_of_the_variable_is_refused(monkeypatch, text):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", text)
    with pytest.raises(ValueError, match=f"TFX_TPU_TRAINER_EMULATE='{text}' is not valid; give 1"):
        _choose(master="grpc://host:1")
    for off in ("", "0"):
        monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", off)
        assert _choose(master="grpc://host:1").kind is Kind.TPU


@pytest.mark.behaviour(92)
def test_no_tpu_and_no_emulation_names_the_ways():
    says = "RunConfig.master='emulated'.*TFX_TPU_TRAINER_EMULATE=1.*use_tpu=False"
    with pytest.raises(RuntimeError, match=says):
        _choose()


def test_a_master_or_a_strategy_is_where_cores_are():
    assert _choose(master="grpc://host:1") == Choice(Kind.TPU, "TPU cores (master 'grpc://host:1')")
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    assert _choose(master="grpc://host:1", strategy=strategy) == Choice(
        Kind.STRATEGY, "a tf.distribute strategy (RunConfig has a OneDeviceStrategy)"
    )


def test_this_machines_own_cores_are_counted_where_nothing_else_says_where():
    assert _choose(count_cores=lambda: 4) == Choice(
        Kind.TPU, "TPU cores (this machine has 4 TPU cores)"
    )


v1 = tf.compat.v1


def _y(graph_def: v1.GraphDef) -> np.ndarray:
    with tf.Graph().as_default():
        (y,) = tf.graph_util.import_graph_def(graph_def, return_elements=["y:0"])
        with v1.Session() as session:
            return session.run(y)


def _sum_and_number(x: tf.Tensor) -> tf.Tensor:
    return v1.tpu.cross_replica_sum(x) + tf.cast(gen_xla_ops.xla_replica_id(), tf.float32)


def test_a_graph_that_is_written_has_no_op_that_a_host_lacks():
    with fresh_graph() as graph:
        inside = tf.function(_sum_and_number, autograph=False)(tf.constant(2.0))
        tf.identity(_sum_and_number(inside), name="y")
        graph_def = graph.as_graph_def()
    assert reads_other_cores(graph_def)
    put_on_one_core(graph_def)
    assert not reads_other_cores(graph_def)
    # The addend, and twice a core's number, which is 0.
    assert _y(graph_def) == 2.0


_X = np.arange(8, dtype=np.float32).reshape(4, 2)
_ALL, _PAIRS = [[0, 1, 2, 3]], [[0, 2], [1, 3]]


def _sum(x, groups):
    return tf.raw_ops.CrossReplicaSum(input=x, group_assignment=groups)


def _sum_in_function(x, groups):
    # As in a gradient, the groups are an argument.
    return tf.function(lambda x, groups: _sum(x, groups) + 1, autograph=False)(x, groups)


def _permute(x, pairs):
    return tf.raw_ops.CollectivePermute(input=x, source_target_pairs=pairs)


def _all_to_all(x, groups):
    return tf.raw_ops.AllToAll(
        input=x,
        group_assignment=groups,
        concat_dimension=1,
        split_dimension=0,
        split_count=groups.shape[1],
    )


@pytest.mark.parametrize(
    ("exchange", "groups", "expected"),
    [
        (_sum, _ALL, 4 * _X),
        (_sum, _PAIRS, 2 * _X),
        (_sum_in_function, _PAIRS, 2 * _X + 1),
        (_permute, [[1, 0], [0, 1]], _X),
        (_permute, [[0, 1], [1, 2]], 0 * _X),
        (_all_to_all, _ALL, np.tile(_X[:1], [1, 4])),
        (_all_to_all, _PAIRS, np.tile(_X[:2], [1, 2])),
    ],
)
def test_other_cores_are_taken_to_have_the_same_values(exchange, groups, expected):
    with fresh_graph() as graph:
        tf.identity(exchange(tf.constant(_X), tf.constant(groups)), name="y")
        graph_def = graph.as_graph_def()
    put_on_one_core(graph_def, cores=4)
    np.testing.assert_array_equal(_y(graph_def), expected)


def test_a_core_reads_the_first_rows_of_what_feeds_the_cores():
    with fresh_graph() as graph:
        tf.reshape(tf.range(12), [4, 3], name="batch")
        rows = v1.placeholder(tf.int32, [2, 3], name="rows")
        v1.placeholder(tf.int32, [2, 3], name="other")
        tf.identity(rows * 2, name="y")
        graph_def = graph.as_graph_def()
    read_rows_of_one_core(graph_def, {"rows": "batch:0"})
    np.testing.assert_array_equal(_y(graph_def), [[0, 2, 4], [6, 8, 10]])
    assert {node.name for node in graph_def.node if node.op == "Placeholder"} == {"other"}


def test_what_reads_a_sum_or_waits_for_it_has_its_addend():
    with fresh_graph() as graph:
        count = v1.get_variable("count", initializer=1.0)
        added = count.assign_add(1.0)
        total = v1.tpu.cross_replica_sum(added)
        with tf.control_dependencies([total.op]):
            waited = tf.constant(5.0) + 0
        doubled = total * 2
        bypass_sums(graph)
        with v1.Session(config=placed_by_need(None)) as session:
            session.run(v1.global_variables_initializer())
            assert session.run([doubled, waited]) == [4.0, 5.0]
            session.run(waited)
            assert session.run(count) == 3.0


def test_a_graph_without_a_sum_is_left_as_it_is(monkeypatch):
    def fails(*args, **kwargs):
        raise AssertionError("there is nothing to import")

    with fresh_graph() as graph:
        tf.function(lambda x: 2 * x, autograph=False)(tf.constant(1.0))
        before = graph.as_graph_def()
        monkeypatch.setattr(tf.graph_util, "import_graph_def", fails)
        bypass_sums(graph)
    assert graph.as_graph_def() == before
