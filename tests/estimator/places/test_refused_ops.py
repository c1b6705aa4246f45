"""TensorFlow's TPU and XLA ops: each runs on emulated cores, to the right numbers, or is refused."""

import re

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

from tests.estimator._engine.log_lines import log_lines
from tests.estimator._engine.templates import make_template
from tests.estimator._engine.xla_cases import CASES
from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import EXCHANGES, REPLICA_NUMBER
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import placed_by_need
from tfx_tpu_trainer.estimator._engine.template import HostFunction
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.places.host import place_on_host
from tfx_tpu_trainer.estimator.places.ops_on_tpu import nodes_of_step
from tfx_tpu_trainer.estimator.places.outside_compilation import outside_marked
from tfx_tpu_trainer.estimator.places.refused_ops import (
    check_gradients_are_combined,
    refuse_ops_not_emulated,
    warn_of_ops_for_hosts,
    why_not_emulated,
)
from tfx_tpu_trainer.estimator.places.stateless_random import draw_by_step

v1 = tf.compat.v1


ROWS = [
    np.array([[3.0, 1, 5, 2], [4, 6, 7, 8]], np.float32),
    np.array([[9.0, 2, 4, 7], [1, 6, 3, 8]], np.float32),
]


# What the names of ops for TPUs and XLA are like. Others are no matter of this test.
_FOR_TPUS = re.compile(
    "Xla|XLA|TPU|Tpu|^CrossReplica|^AllToAll|Collective|^Infeed|^Outfeed|^Prelinearize|DTensor|"
    "CopyToMesh|Relayout|Physical|Dedup|Minibatch|CooTensor|GlobalIterId|Unique$|KthOrder|"
    "WorkerHeartbeat|^_?(Host)?(Send|Recv)$"
)


_NOT_FOR_TPUS = {"Unique"}


def _registered() -> set[str]:
    definitions = op_def_pb2.OpList.FromString(
        pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
    )
    return {definition.name for definition in definitions.op}


def test_each_op_for_tpus_either_runs_here_or_is_refused():
    runs = EXCHANGES | {REPLICA_NUMBER} | set(CASES)
    refused = {name for name in _registered() if why_not_emulated(v1.NodeDef(op=name)) is not None}
    assert not runs & refused
    assert (
        runs | refused == {name for name in _registered() if _FOR_TPUS.search(name)} - _NOT_FOR_TPUS
    )


def test_xla_ops_with_a_kernel_for_cpus_give_each_core_numpys_numbers():
    with fresh_graph() as graph:
        x = v1.placeholder(tf.float32, [2, 4])
        made = {name: model(x) for name, (model, _) in CASES.items()}
        refuse_ops_not_emulated(nodes_of_step(make_template("infer", features=x, predictions=made)))
        copier = GraphCopier(graph)
        fetches = [Fetch(core, tensor) for core in range(2) for tensor in made.values()]
        replaced = [{x.name: tf.constant(rows)} for rows in ROWS]
        copies = copier.copy(fetches, replaced=replaced, name="cores")
        with v1.Session(config=placed_by_need(None)) as session:
            got = session.run(copies)
    for core, rows in enumerate(ROWS):
        values = got[core * len(made) : (core + 1) * len(made)]
        for (name, (_, expected)), value in zip(CASES.items(), values):
            np.testing.assert_allclose(value, expected(rows), 1e-4, 1e-3, err_msg=name)


def _in_a_branch(x: tf.Tensor) -> tf.Tensor:
    return tf.cond(
        tf.reduce_any(x > 0), lambda: tf.raw_ops.InfeedDequeue(dtype=x.dtype, shape=[4]), lambda: x
    )


def _rewritten(x: tf.Tensor) -> tf.Tensor:
    return v1.tpu.rewrite(lambda y: y + 1.0, [x])[0]


def _sent(x: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([gen_xla_ops.xla_send(x, "name")]):
        return tf.identity(x)


def _module(x: tf.Tensor) -> tf.Tensor:
    module = (
        b"module { func.func @main() -> tensor<ui32> { %0 = stablehlo.replica_id : tensor<ui32>"
    )
    return gen_xla_ops.xla_call_module([x], version=5, module=module, Tout=[x.dtype], Sout=[[4]])[0]


def _refusal(predict, check) -> str:
    with fresh_graph(None):
        x = v1.placeholder(tf.float32, [4])
        template = make_template("infer", features=x, predictions={"y": predict(x)})
        with pytest.raises(ValueError, match=r"^Operation of type") as error:
            check(template)
    return str(error.value)


@pytest.mark.parametrize(
    ("predict", "op", "advice"),
    [
        (_in_a_branch, "InfeedDequeue", "come from the input_fn"),
        (_rewritten, "TPUReplicatedOutput", "TPU computations cannot be nested"),
        (_sent, "XlaSend", "cross_replica_sum"),
        (_module, "XlaCallModule", "cross_replica_sum"),
    ],
)
def test_on_cores_the_refusal_names_op_advice_and_line(predict, op, advice):
    message = _refusal(predict, lambda template: refuse_ops_not_emulated(nodes_of_step(template)))
    assert message.startswith(f"Operation of type {op} (")
    assert advice in message
    assert f"{__file__}:" in message


def _number(x: tf.Tensor) -> tf.Tensor:
    return x + tf.cast(gen_xla_ops.xla_replica_id(), x.dtype)


@pytest.mark.parametrize("predict", [_number, tf.function(_number, jit_compile=True), _module])
def test_on_the_host_what_would_end_the_process_is_refused(predict):
    """The original dies there: `xla.replica_id()` in a session without TPUs is a SIGSEGV."""
    message = _refusal(predict, place_on_host)
    assert "would end the process" in message
    assert "params['use_tpu']" in message


def test_on_the_host_the_host_call_is_looked_at_too():
    with fresh_graph(None):
        x = v1.placeholder(tf.float32, [4])
        host_call = HostFunction("host_call", lambda y: [_number(y)], [x])
        template = make_template("infer", features=x, predictions={"y": x}, host_call=host_call)
        with pytest.raises(ValueError, match="would end the process"):
            place_on_host(template)


def test_what_no_step_reads_is_not_refused():
    with fresh_graph(None):
        x = v1.placeholder(tf.float32, [4])
        _number(x)
        _in_a_branch(x)
        template = make_template("infer", features=x, predictions={"y": x * 1})
        refuse_ops_not_emulated(nodes_of_step(template))
        placed, _ = place_on_host(template)
        with v1.Session(config=placed_by_need(None)) as session:
            predicted = session.run(placed.predictions["y"], {x: [1.0, 2.0, 3.0, 4.0]})
    assert predicted.tolist() == [1.0, 2.0, 3.0, 4.0]


def _double(x: tf.Tensor) -> tf.Tensor:
    return tf.numpy_function(lambda value: 2 * value, [x], tf.float32)


def _length(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.strings.length(tf.strings.as_string(x)), tf.float32)


def _python_in_a_branch(x: tf.Tensor) -> tf.Tensor:
    return tf.cond(tf.reduce_any(x > 0), lambda: _double(x), lambda: x)


def _warnings(caplog, predict, **fields) -> list[str]:
    with fresh_graph(None), log_lines(caplog) as lines:
        features = v1.placeholder(tf.float32, [4])
        template = make_template(
            "infer", features=features, predictions={"y": predict(features)}, **fields
        )
        warn_of_ops_for_hosts(nodes_of_step(template))
    return [line for line in lines if "TPU" in line]


@pytest.mark.parametrize(
    ("predict", "op", "reason"),
    [
        (_double, "PyFunc", "calls Python"),
        (_length, "AsString", "handles strings"),
        (_python_in_a_branch, "If", "calls Python"),
    ],
)
def test_one_warning_names_op_reason_and_line(caplog, predict, op, reason):
    (line,) = _warnings(caplog, predict)
    assert op in line
    assert reason in line
    assert f"{__file__}:" in line


def test_no_warning_where_a_tpu_can_run_it(caplog):
    assert not _warnings(caplog, lambda x: tf.nn.softmax(x * 2.0))


def test_what_outside_compilation_keeps_on_the_host_is_left_out(caplog):
    with outside_marked():
        assert not _warnings(caplog, lambda x: v1.tpu.outside_compilation(_double, x))


def test_what_makes_the_features_is_no_part_of_the_step(caplog):
    with fresh_graph(None), log_lines(caplog) as lines:
        features = _length(tf.constant(np.ones(4, np.float32)))
        template = make_template("infer", features=features, predictions=features + 1)
        warn_of_ops_for_hosts(nodes_of_step(template))
    assert not [line for line in lines if "TPU" in line]


def test_tensors_of_host_functions_are_made_on_the_cores(caplog):
    with fresh_graph(None), log_lines(caplog) as lines:
        features = v1.placeholder(tf.float32, [4])
        metrics = HostFunction("eval_metrics", lambda x: {}, [_double(features)])
        template = make_template("eval", features=features, eval_metrics=metrics)
        warn_of_ops_for_hosts(nodes_of_step(template))
    assert [line for line in lines if "calls Python" in line]


def test_functions_that_call_others_twice_are_walked_through_once():
    def twice(inner):
        return tf.function(lambda x: inner(x) + inner(2 * x), autograph=False)

    function = tf.function(lambda x: x * x, autograph=False)
    for _ in range(8):
        function = twice(function)
    with fresh_graph() as graph:
        predictions = function(tf.constant(1.0))
        inside = sum(len(f.node_def) for f in graph.as_graph_def().library.function)
        walked = sum(
            len(inner)
            for _, _, inner in nodes_of_step(make_template("infer", predictions=predictions))
        )
    assert 0 < walked <= inside


@pytest.mark.behaviour(191)
def test_gradients_must_be_combined_functions_count_too():
    with fresh_graph() as graph:
        x = tf.constant(1.0)
        with pytest.raises(ValueError, match="CrossShardOptimizer must be used"):
            check_gradients_are_combined(graph)
        tf.cond(x > 0, lambda: v1.tpu.cross_replica_sum(x), lambda: x)
        check_gradients_are_combined(graph)


def _drawn(build, *, steps, unseeded=False, first=0, by_step=True):
    """What each step of a model draws whose loss is a draw."""
    with fresh_graph():
        loss = tf.identity(build())
        step = v1.train.get_global_step()
        with tf.control_dependencies([loss]):
            train_op = step.assign_add(1, read_value=False)
        if by_step:
            reads = draw_by_step(
                make_template("train", loss=loss, train_op=train_op), unseeded=unseeded
            )
            assert (reads is None) == (build is _in_v1_loop)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(step.assign(first).op)
            return [session.run([loss, train_op])[0] for _ in range(steps)]


_BUILDS = {
    "uniform": lambda: tf.reduce_sum(tf.random.uniform([3], seed=4)),
    "normal": lambda: tf.reduce_sum(tf.random.normal([3], seed=4)),
    "truncated normal": lambda: tf.reduce_sum(tf.random.truncated_normal([3], seed=4)),
    "integers": lambda: tf.random.uniform([], 0, 1 << 30, tf.int32, seed=4),
}


@pytest.mark.parametrize("kind", _BUILDS)
def test_a_seed_draws_what_its_op_draws_at_that_step(kind):
    expected = _drawn(_BUILDS[kind], steps=5, by_step=False)
    assert len(set(expected)) == 5
    np.testing.assert_array_equal(_drawn(_BUILDS[kind], steps=5), expected)
    np.testing.assert_array_equal(_drawn(_BUILDS[kind], steps=2, first=3), expected[3:])


def test_without_a_seed_each_graph_draws_something_else():
    def build():
        return tf.reduce_sum(tf.random.uniform([3]))

    draws = [_drawn(build, steps=3, unseeded=True) for _ in range(2)]
    assert len({*draws[0], *draws[1]}) == 6


def _in_v1_loop():
    with_v2 = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    try:
        return v1.while_loop(
            lambda total: total < 1,
            lambda total: total + tf.random.uniform([], 0.3, 0.6, seed=4),
            [tf.constant(0.0)],
        )
    finally:
        if with_v2:
            v1.enable_control_flow_v2()


def test_draws_in_a_version_1_loop_stay_and_are_named(caplog):
    with log_lines(caplog):
        drawn = _drawn(_in_v1_loop, steps=2, unseeded=True)
    assert all(1 <= total < 1.6 for total in drawn)
    (line,) = [r.getMessage() for r in caplog.records if "draw the same numbers" in r.getMessage()]
    assert "(RandomUniform)" in line
