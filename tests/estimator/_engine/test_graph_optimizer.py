import re

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator._engine.log_lines import log_lines
from tests.estimator.counting_model import SeesEveryStep
from tests.serving.exports import EACH_OTHER, IN_A_ROW, TWICE_EACH, library_of
from tfx_tpu_trainer.estimator import ModeKeys, tpu
from tfx_tpu_trainer.estimator._engine.graph_nodes import (
    all_nodes,
    functions_of,
    functions_with,
    nodes_called,
    upstream,
)
from tfx_tpu_trainer.estimator._engine.graph_optimizer import (
    decided_on_cpu,
    keep_dependencies_only,
    optimize_dependencies_only,
    sees_gpus,
)
from tfx_tpu_trainer.estimator._engine.loops.step_loop import repeat_step
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import LoopEndHook
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


def test_the_pass_over_control_dependencies_runs_alone_and_once():
    config = v1.ConfigProto(intra_op_parallelism_threads=3)
    keep_dependencies_only(config)
    rewrite = config.graph_options.rewrite_options
    assert rewrite.meta_optimizer_iterations == type(rewrite).ONE
    assert rewrite.dependency_optimization == type(rewrite).DEFAULT
    assert rewrite.constant_folding == rewrite.remapping == type(rewrite).OFF
    assert rewrite.memory_optimization == type(rewrite).NO_MEM_OPT
    assert config.intra_op_parallelism_threads == 3


def _config_of_call() -> v1.ConfigProto:
    with tf.Graph().as_default():
        doubled = tf.function(lambda x: x * 2, autograph=False)(tf.constant(21))
        optimize_dependencies_only(doubled.op)
        with v1.Session() as session:
            assert session.run(doubled) == 42
        return v1.ConfigProto.FromString(doubled.op.get_attr("config_proto"))


def test_the_function_of_a_call_gets_one_pass():
    rewrite = _config_of_call().graph_options.rewrite_options
    assert rewrite.constant_folding == type(rewrite).OFF


@pytest.fixture
def remapping_off():
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"remapping": False})
    yield
    tf.config.optimizer.set_experimental_options({"remapping": before.get("remapping", True)})


@pytest.mark.usefixtures("remapping_off")
def test_what_a_program_sets_of_the_optimizer_stays():
    rewrite = _config_of_call().graph_options.rewrite_options
    assert rewrite.remapping == type(rewrite).OFF
    assert rewrite.constant_folding == type(rewrite).DEFAULT


_ON_HOST = "/device:CPU:0"


@pytest.fixture
def gpu(monkeypatch):
    """Has TensorFlow name a GPU, for what is decided by there being one; ops still run on the CPU."""
    visible = tf.config.get_visible_devices
    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")

    def with_gpu(device_type=None):
        return visible(device_type) + [gpu] * (device_type in (None, "GPU"))

    monkeypatch.setattr(tf.config, "get_visible_devices", with_gpu)


def _device_of_condition():
    with tf.Graph().as_default(), decided_on_cpu():
        return (tf.constant(1.0) > 0.0).op.device


def test_without_a_gpu_ops_of_conditions_name_no_device():
    assert not sees_gpus()
    assert _device_of_condition() == ""


@pytest.mark.usefixtures("gpu")
def test_beside_a_gpu_conditions_are_decided_on_the_host():
    assert sees_gpus()
    assert _device_of_condition() == _ON_HOST


@pytest.mark.usefixtures("gpu")
def test_beside_a_gpu_a_functions_ops_are_fused():
    with tf.Graph().as_default():
        call = tf.function(lambda x: x * 2, autograph=False)(tf.constant(21)).op
        before = call.get_attr("config_proto")
        optimize_dependencies_only(call)
        assert call.get_attr("config_proto") == before


@pytest.mark.usefixtures("gpu")
def test_beside_a_gpu_a_loop_of_steps_looks_at_its_loss_on_the_host():
    with tf.Graph().as_default() as graph:
        losses = tf.constant([1.0, float("inf"), 3.0])
        loss = repeat_step(
            lambda number: tf.gather(losses, number),
            tf.constant(3),
            loss_dtype=tf.float32,
            stop_if_not_finite=True,
        )
        functions = graph.as_graph_def().library.function
        devices = {node.op: node.device for f in functions for node in f.node_def}
        assert devices["IsFinite"] == devices["LogicalAnd"] == _ON_HOST
        with v1.Session() as session:
            assert session.run(loss) == float("inf")


BATCH = 4


@pytest.fixture
def logged(caplog):
    with log_lines(caplog):
        yield lambda start: [
            r for r in caplog.records if re.match(start, r.getMessage()) is not None
        ]


class _KeepsGraph(v1.train.SessionRunHook):
    def begin(self):
        self.graph = v1.get_default_graph()


def _noisy_model_fn(features, labels, mode, params):
    outputs = linear_model.outputs_of(features) + tf.random.uniform([])
    loss = tf.reduce_mean(tf.square(outputs - labels))
    train_op = linear_model.OPTIMIZERS["sgd"]().minimize(loss, v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def _estimator(folder, model_fn=None, **config):
    return tpu.TPUEstimator(
        model_fn or linear_model.model_fn_for(tpu, "sgd"),
        config=tpu.RunConfig(model_dir=str(folder), save_summary_steps=9999, **config),
        use_tpu=False,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
    )


@pytest.mark.usefixtures("gpu")
def test_both_loops_are_measured_by_default(tmp_path, logged):
    steps = 30_000  # for 0.7 s of trials, on any machine
    estimator = _estimator(tmp_path / "default", log_step_count_steps=9999)
    estimator.train(linear_model.full_batches_input_fn, steps=steps)
    (line,) = logged("jit_compile=None, which is 'auto' on a GPU: a step takes ")
    assert line.levelname == "INFO"
    *_, (_, weights, _) = linear_model.descend(
        linear_model.batches(BATCH, epochs=steps * BATCH // linear_model.ROWS)
    )
    value = estimator.get_variable_value("linear/weights")
    np.testing.assert_allclose(value, weights, rtol=1e-4, atol=1e-6)
    plain = _estimator(tmp_path / "off", log_step_count_steps=9999, jit_compile=False)
    plain.train(linear_model.full_batches_input_fn, steps=200)
    assert logged("jit_compile") == [line]


@pytest.mark.usefixtures("gpu")
def test_a_model_that_xla_would_change_runs_op_by_op_and_no_line_warns(tmp_path, logged):
    _estimator(tmp_path, _noisy_model_fn).train(linear_model.full_batches_input_fn, steps=200)
    (line,) = logged("The steps run op by op, because XLA can't compile them: .*RandomUniform")
    assert line.levelname == "INFO"
    assert not logged("jit_compile")


@pytest.mark.usefixtures("gpu")
def test_a_hook_that_sees_every_step_is_no_reason_to_warn(tmp_path, logged):
    _estimator(tmp_path).train(linear_model.full_batches_input_fn, hooks=[SeesEveryStep()], steps=5)
    assert not logged("jit_compile")


@pytest.mark.usefixtures("gpu")
def test_a_seed_leaves_the_choice_to_the_graph_without_a_word(tmp_path, logged):
    _estimator(tmp_path, tf_random_seed=3).train(linear_model.full_batches_input_fn, steps=500)
    assert not logged("jit_compile|The steps run op by op")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("steps", [None, 7])
def test_an_evaluation_reads_clock_and_count_on_the_host(tmp_path, steps):
    estimator, hook = _estimator(tmp_path), _KeepsGraph()
    estimator.train(linear_model.full_batches_input_fn, steps=1)

    def input_fn(params):
        return linear_model.full_batches_input_fn(params).take(9)

    results = estimator.evaluate(input_fn, steps=steps, hooks=[hook])
    weights = estimator.get_variable_value("linear/weights")
    bias = estimator.get_variable_value("linear/bias")
    x, y = linear_model.rows(linear_model.ROWS)
    rows = np.arange(BATCH * (steps or 9)) % linear_model.ROWS
    expected = np.mean((x[rows] @ np.reshape(weights, -1) + bias - y[rows]) ** 2)
    assert results["loss"] == pytest.approx(expected, rel=1e-4)
    functions = hook.graph.as_graph_def().library.function
    (condition,) = [
        f for f in functions if {"Timestamp", "LogicalNot"} <= {node.op for node in f.node_def}
    ]
    decided = [n for n in condition.node_def if n.op not in ("Identity", "NoOp", "Const")]
    assert decided
    assert {node.device for node in decided} == {"/device:CPU:0"}


class _SeesNodes(v1.train.SessionRunHook):
    """Keeps the names of the nodes that run."""

    def __init__(self):
        self.nodes = set()

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(None, options=v1.RunOptions(output_partition_graphs=True))

    def after_run(self, run_context, run_values):
        graphs = run_values.run_metadata.partition_graphs
        self.nodes |= {node.name for graph in graphs for node in graph.node}


class _SeesNodesAtLoopEnds(_SeesNodes, LoopEndHook):
    """The same, but leaves steps to loops."""


def _images(params):
    rows = tf.data.Dataset.from_tensor_slices({"x": tf.ones([12, 6, 6, 1])})
    return rows.batch(params["batch_size"])


def _endless_input_fn(params):
    return _images(params).repeat()


def _python_input_fn(params):
    def rows():
        for _ in range(2):
            yield {"x": tf.ones([BATCH, 6, 6, 1]).numpy()}

    signature = {"x": tf.TensorSpec([BATCH, 6, 6, 1], tf.float32)}
    return tf.data.Dataset.from_generator(rows, output_signature=signature)


def _model_fn(*, kernel_size, with_sum=False):
    """A model in which something waits for `waits`, and something is negated twice."""

    def model_fn(features, labels, mode, params):
        del labels, params
        x = features["x"]
        with tf.control_dependencies([tf.group(tf.square(x), name="waits")]):
            x = tf.negative(tf.negative(x, name="negated"))
        if kernel_size:
            kernel = v1.get_variable("kernel", [kernel_size, kernel_size, 1, 2])
            outputs = tf.nn.conv2d(x, kernel, strides=1, padding="SAME")
        else:
            outputs = x * v1.get_variable("factor", [])
        outputs = tf.square(outputs)
        if mode == ModeKeys.PREDICT:
            return tpu.TPUEstimatorSpec(mode, predictions={"y": outputs})
        loss = tf.reduce_mean(outputs)
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        if with_sum:
            optimizer = v1.tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def _with_kernel(folder, *, kernel_size=3, with_sum=False, **config):
    return tpu.TPUEstimator(
        _model_fn(kernel_size=kernel_size, with_sum=with_sum),
        config=tpu.RunConfig(model_dir=str(folder), **config),
        use_tpu=False,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
    )


ALL, SOME, NONE = {"waits", "negated"}, {"negated"}, set()


NOT_OPTIMIZED = v1.ConfigProto()
NOT_OPTIMIZED.graph_options.rewrite_options.disable_meta_optimizer = True


@pytest.mark.parametrize(
    ("hook", "options", "left"),
    [
        pytest.param(_SeesNodes, {}, NONE, id="each step is seen"),
        pytest.param(_SeesNodes, {"kernel_size": 0}, SOME, id="each small step is seen"),
        pytest.param(_SeesNodesAtLoopEnds, {}, SOME, id="steps between loops"),
        pytest.param(_SeesNodesAtLoopEnds, {"kernel_size": 0}, ALL, id="small steps between loops"),
        *(
            pytest.param(_SeesNodesAtLoopEnds, {"kernel_size": 0, every: 2}, SOME, id=every)
            for every in ("save_summary_steps", "save_checkpoints_steps")
        ),
        pytest.param(_SeesNodes, {"with_sum": True}, ALL, id="a sum that can't run here"),
        pytest.param(_SeesNodes, {"session_config": NOT_OPTIMIZED}, ALL, id="session_config"),
    ],
)
def test_single_steps_are_optimized_as_far_as_it_is_worth_it(tmp_path, hook, options, left):
    seen = hook()
    _with_kernel(tmp_path, **options).train(_endless_input_fn, steps=3, hooks=[seen])
    assert seen.nodes & ALL == left


def test_batches_that_a_hook_sees_each_of_are_optimized(tmp_path):
    estimator = _with_kernel(tmp_path).train(_endless_input_fn, steps=1)
    hook = _SeesNodes()
    estimator.evaluate(_images, hooks=[hook])
    assert hook.nodes & ALL == NONE


@pytest.mark.parametrize("seen", ["by a hook", "by the input's Python code"])
def test_batches_predicted_one_by_one_are_optimized(tmp_path, seen):
    estimator = _with_kernel(tmp_path).train(_endless_input_fn, steps=1)
    by_hook = seen == "by a hook"
    hook = _SeesNodes() if by_hook else _SeesNodesAtLoopEnds()
    rows = list(estimator.predict(_images if by_hook else _python_input_fn, hooks=[hook]))
    assert len(rows) == (12 if by_hook else 2 * BATCH)
    assert hook.nodes & ALL == NONE


def _names(nodes, **options) -> list[str]:
    return [op.name for op in upstream(nodes, **options)]


def test_each_operation_comes_once_and_after_one_that_needs_it():
    with fresh_graph():
        x = tf.constant(1.0, name="x")
        with tf.control_dependencies([tf.no_op("before")]):
            y = tf.add(x, x, name="y")
        tf.add(y, 1.0, name="beside")
        assert _names([y, y.op, x]) == ["x", "y", "before"]


def test_what_only_makes_given_tensors_is_left_out():
    with fresh_graph():
        first, second = tf.unstack(tf.constant([1.0, 2.0]), name="parts")
        with tf.control_dependencies([first]):
            total = tf.add(first, 3.0, name="total")
        assert "parts" in _names([total], given={second.name})
        # The control input waits for the whole op, of which one result is still needed.
        assert "parts" in _names([total], given={first.name})
        assert _names([total], given={first.name, second.name}) == ["total", "total/y"]
        assert _names([total], given={total.name}) == []


def test_nodes_of_functions_are_nodes_too():
    with fresh_graph() as graph:
        tf.function(tf.sin, autograph=False)(tf.constant(1.0))
    assert {"Const", "Sin"} <= {node.op for node in all_nodes(graph.as_graph_def())}


@pytest.mark.parametrize("calls", [TWICE_EACH, IN_A_ROW, EACH_OTHER])
def test_each_function_is_gone_through_once_whatever_calls_it(calls):
    graph_def = library_of(calls, "PartitionedCall")
    functions = functions_of(graph_def.library)
    found = list(nodes_called(graph_def.node, functions))
    ones = sum(not called for called in calls.values())
    assert len(found) == sum(map(len, calls.values())) + ones
    assert functions_with(functions, lambda node: node.op == "Const") == (
        set(calls) if ones else set()
    )
    seen = {"f1"}
    assert len(list(nodes_called(graph_def.node, functions, seen=seen))) == len(calls["f0"])
    assert seen == {"f0", "f1"}


def test_nodes_of_functions_come_in_the_order_of_the_calls():
    calls = {"f0": ["f1", "f2", "none"], "f1": ["f3"], "f2": ["f3"], "f3": []}
    graph_def = library_of(calls, "PartitionedCall")
    functions = functions_of(graph_def.library)
    found = nodes_called(graph_def.node, functions)
    called = [node.attr["f"].func.name for node in found if node.op != "Const"]
    assert called == ["f1", "f3", "f2", "f3", "none"]
    found = nodes_called(graph_def.node, functions, enters=lambda n: n.attr["f"].func.name != "f1")
    assert [node.op for node in found].index("Const") == 3
    assert functions_with(functions, lambda node: node.attr["f"].func.name == "f1") == {"f0"}
