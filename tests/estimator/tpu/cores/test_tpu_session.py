"""What runs on a TPU in a session, by the graph that is built: no TPU is here to run it."""

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.compiler.xla.experimental import xla_sharding

from tests.bad_input import row
from tests.estimator import linear_model
from tests.estimator._engine.tpu_bridge import Split, split_by_tensorflow
from tests.estimator.tpu import on_cores
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.places.place import bind_call
from tfx_tpu_trainer.estimator.places.shardings import tiled
from tfx_tpu_trainer.estimator.tpu.cores.emulated import OnEmulatedCores
from tfx_tpu_trainer.estimator.tpu.cores.run import CoreRun, loops_of
from tfx_tpu_trainer.estimator.tpu.cores.tpu_session import OnTPU
from tfx_tpu_trainer.estimator.tpu.cores.tpu_system import TPUSystem, TPUSystemHook
from tfx_tpu_trainer.estimator.tpu.cores.trace import CoreCall

v1 = tf.compat.v1

SYSTEM = TPUSystem("grpc://tpu:8470", num_cores=4, num_hosts=1, job="worker")

# Two chips of two cores.
TOPOLOGICAL = dataclasses.replace(
    SYSTEM,
    topology=tf.tpu.experimental.Topology(
        mesh_shape=[2, 1, 1, 2],
        device_coordinates=[[[0, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0], [1, 0, 0, 1]]],
    ),
)


def _call(
    mode: str, *, batch: int = 8, input_fn: Any = None, model_fn: Any = None, **tpu_options: Any
) -> CoreCall:
    config = tpu.RunConfig(master=SYSTEM.master, tpu_config=tpu.TPUConfig(**tpu_options))
    of_mode = on_cores.train_input_fn if mode == "train" else linear_model.input_fn
    call = bind_call(
        input_fn or of_mode,
        mode,
        model_fn=model_fn or linear_model.model_fn_for(tpu, "momentum"),
        params={},
        config=config,
    )
    return CoreCall(
        call=call,
        config=config,
        batch_size=batch,
        batch_axis=None,
        loops=loops_of(config, log_every_n_steps=100),
    )


def _on_tpu(mode: str, system: TPUSystem = SYSTEM, **options: Any) -> OnTPU:
    return OnTPU(_call(mode, **options), lambda: system)


def _run(system: TPUSystem = SYSTEM, **options: Any) -> CoreRun:
    with fresh_graph():
        return _on_tpu("train", system, **options).trace().run


def _nodes(graph: tf.Graph) -> list[v1.NodeDef]:
    graph_def = graph.as_graph_def()
    functions = [function.node_def for function in graph_def.library.function]
    return [node for nodes in [graph_def.node, *functions] for node in nodes]


def _programs(graph: tf.Graph) -> list[v1.NodeDef]:
    return [node for node in _nodes(graph) if node.op == "TPUReplicateMetadata"]


def test_training_is_one_program_on_every_core():
    with fresh_graph() as graph:
        plan, _ = _on_tpu("train").plan_training(steps=4, max_steps=None)
        (program,) = _programs(graph)
    assert program.attr["num_replicas"].i == 4
    assert plan.loss.shape.rank == 0
    types = {node.op for node in _nodes(graph)}
    assert {"CrossReplicaSum", "ResourceApplyMomentum"} <= types


def test_evaluation_runs_full_batches_on_cores_and_the_rest_here():
    with fresh_graph() as graph:
        _on_tpu("eval").plan_evaluation(steps=None)
        (program,) = _programs(graph)
    assert program.attr["num_replicas"].i == 4
    short = [node for node in _nodes(graph) if node.name.startswith("short_batch/")]
    assert short
    assert not any("_tpu_replicate" in node.attr for node in short)


def test_prediction_runs_padded_batches_on_cores():
    with fresh_graph() as graph:
        plan, _ = _on_tpu("infer").plan_prediction(None)
        (program,) = _programs(graph)
    assert program.attr["num_replicas"].i == 4
    assert set(plan.fetches) == {"y", "x"}


def _with_gradient_of_tensorflow(values: tf.Tensor) -> tf.Tensor:
    def triple(value: tf.Tensor) -> tf.Tensor:
        return 3 * value

    def on_host(values: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.py_function(triple, [values], values.dtype), values.shape)

    return v1.tpu.outside_compilation(on_host, values)


def _with_gradient_of_its_own(values: tf.Tensor) -> tf.Tensor:
    def on_host(values: tf.Tensor) -> tf.Tensor:
        tripled = tf.numpy_function(lambda value: 3 * value, [values], values.dtype)
        return tf.ensure_shape(tripled, values.shape)

    @tf.custom_gradient
    def triple(values: tf.Tensor) -> Any:
        return (
            v1.tpu.outside_compilation(on_host, values),
            lambda gradient: v1.tpu.outside_compilation(on_host, gradient),
        )

    return triple(values)


def _uses_host(features: Any, labels: Any, mode: str, params: Any) -> tpu.TPUEstimatorSpec:
    """The linear model with Python in its forward pass, and with a summary and a print of each step."""
    one_core = params["context"].num_replicas == 1
    triple = _with_gradient_of_tensorflow if one_core else _with_gradient_of_its_own
    outputs = triple(linear_model.outputs_of(features))
    if mode == "infer":
        return tpu.TPUEstimatorSpec(mode, predictions={"y": outputs})
    loss = tf.reduce_mean(tf.square(outputs - labels))
    if mode == "eval":
        return tpu.TPUEstimatorSpec(mode, loss=loss)
    step = v1.train.get_global_step()

    def report(value: tf.Tensor, number: tf.Tensor) -> None:
        with tf.summary.create_file_writer("/nowhere").as_default():
            tf.summary.scalar("loss", value, step=number)
        tf.print("loss:", value)

    v1.tpu.outside_compilation(report, loss, step.read_value())
    optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))


def _split(mode: str, model_fn: Any = _uses_host, system: TPUSystem = SYSTEM) -> Split:
    with fresh_graph() as graph:
        wanted = _plan(_on_tpu(mode, system, model_fn=model_fn), mode)
        return split_by_tensorflow(graph, *wanted)


def _plan(place: OnTPU, mode: str) -> list[Any]:
    """Plans a call; returns what a session fetches."""
    if mode == "train":
        return [place.plan_training(steps=4, max_steps=None)[0].loss]
    if mode == "eval":
        return [place.plan_evaluation(steps=None)[0].update_op]
    return list(place.plan_prediction(None)[0].fetches.values())


@pytest.mark.parametrize(("cores", "python"), [(1, "EagerPyFunc"), (4, "PyFunc")])
def test_tensorflow_cuts_outside_compilation_out_of_the_steps(cores, python):
    split = _split("train", system=dataclasses.replace(SYSTEM, num_cores=cores))
    host_only = {python, "PrintV2", "StringFormat", "WriteSummary"}
    assert not host_only & split.core_ops
    assert host_only <= split.host_ops
    # The gradient of Python calls Python as well.
    assert split.launch.count(f'"tf.{python}"') == 2
    # The program loops over steps; the host follows step by step, told by the core when to go on.
    assert "While" in split.launch
    assert {"XlaSendToHost", "_XlaHostComputeMlir"} <= split.core_ops
    for transfer in ("_XlaRecvAtHost", "_XlaSendFromHost"):
        assert any(op.startswith(transfer) for op in split.host_ops)


_NESTED = {
    "loop": lambda on_host, y: tf.while_loop(
        lambda turn, _: turn < 3, lambda turn, y: (turn + 1, on_host(y)), [0, y]
    )[1],
    "condition": lambda on_host, y: tf.cond(y[0] > 0, lambda: on_host(y), lambda: y),
    "function": lambda on_host, y: tf.function(on_host, autograph=False)(y),
}


@pytest.mark.parametrize("inside_of", _NESTED)
def test_tensorflow_cuts_it_out_of_functions(inside_of):
    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> tpu.TPUEstimatorSpec:
        outputs = _NESTED[inside_of](_with_gradient_of_its_own, linear_model.outputs_of(features))
        return tpu.TPUEstimatorSpec(mode, predictions={"y": outputs})

    split = _split("infer", model_fn)
    assert "PyFunc" not in split.core_ops
    assert split.launch.count('"tf.PyFunc"') == 1


@pytest.mark.parametrize("mode", ["eval", "infer"])
def test_tensorflow_cuts_it_out_of_a_batch(mode):
    split = _split(mode)
    assert "PyFunc" not in split.core_ops
    assert '"tf.PyFunc"' in split.launch
    assert "MatMul" in split.core_ops


def test_without_outside_compilation_the_host_has_nothing_to_do():
    split = _split("train", linear_model.model_fn_for(tpu, "momentum"))
    assert not split.launch
    assert "ResourceApplyMomentum" not in split.host_ops


@pytest.mark.parametrize("mode", ["train", "eval", "infer"])
def test_emulated_cores_have_no_program(mode):
    place = OnEmulatedCores(_call(mode, num_shards=4))
    with fresh_graph() as graph:
        if mode == "train":
            _, hooks = place.plan_training(steps=4, max_steps=None)
        elif mode == "eval":
            _, hooks = place.plan_evaluation(steps=None)
        else:
            _, hooks = place.plan_prediction(None)
        assert not _programs(graph)
    assert not any(isinstance(hook, TPUSystemHook) for hook in hooks)


def test_a_session_on_a_tpu_initializes_it():
    with fresh_graph():
        hook, *_ = _on_tpu("train").trace().hooks
    assert isinstance(hook, TPUSystemHook)
    with tf.Graph().as_default() as graph:
        hook.begin()
        devices = {op.type: op.device for op in graph.get_operations()}
    assert devices["ConfigureDistributedTPU"] == "/job:worker/device:TPU_SYSTEM:0"


@pytest.mark.behaviour(91)
def test_the_tpu_says_how_many_replicas_there_are():
    run = _run()
    assert run.cores == 4
    assert run.sizes.model_fn == 2
    assert _run(num_shards=4).cores == 4
    with pytest.raises(
        ValueError, match=r"num_shards is not set correctly. Acc.*be \(4\), got \(8\)"
    ):
        _run(num_shards=8)


@pytest.mark.parametrize("mode", ["train", "eval", "infer"])
def test_a_number_of_shards_that_counts_cores_is_refused_in_the_originals_words(mode):
    # What TensorFlow 2.15 says of a TPU of four cores, to its master's name.
    told = (
        "TPUConfig.num_shards is not set correctly. According to TPU system metadata for "
        f"Tensorflow master ({TOPOLOGICAL.master}): num_replicas should be (2), got (4). For "
        "non-model-parallelism, num_replicas should be the total num of TPU cores in the system. "
        "For model-parallelism, the total number of TPU cores should be num_cores_per_replica * "
        "num_replicas. Please set it accordingly or leave it as `None`"
    )
    call = _on_tpu(mode, TOPOLOGICAL, num_shards=4, num_cores_per_replica=2)
    with fresh_graph(), pytest.raises(ValueError, match=f"^{re.escape(told)}: .* replica 2"):
        call.trace()


@pytest.mark.behaviour(93)
def test_cores_per_replica_must_use_up_the_cores():
    with pytest.raises(ValueError, match=r"^The num of cores required .*replica: 8, .*system: 4"):
        _run(num_cores_per_replica=8)
    odd = TPUSystem("", num_cores=6, num_hosts=1, job=None)
    with pytest.raises(
        RuntimeError, match=r"system \(6\) is not divisible by .*cores \(4\) required"
    ):
        _run(odd, num_cores_per_replica=4)
    run = _run(TOPOLOGICAL, num_cores_per_replica=2)
    assert (run.cores, run.sizes.model_fn, run.layout.num_cores_per_replica) == (2, 4, 2)


def test_hosts_are_those_of_the_system():
    pod = TPUSystem("grpc://pod:8470", num_cores=16, num_hosts=4, job="worker")
    seen = []

    def input_fn(params: dict[str, Any]) -> tf.data.Dataset:
        seen.append(params["context"].current_input_fn_deployment())
        return on_cores.train_input_fn(params)

    with fresh_graph():
        run = _on_tpu("train", pod, batch=32, input_fn=input_fn).trace().run
    assert run.layout.num_hosts == 4
    assert run.sizes.input_fn == 8
    assert seen == [(f"/job:worker/task:{i}/device:CPU:0", i, 4, 4) for i in range(4)]


def _sharded(features: Any, labels: Any, mode: str, params: Any) -> tpu.TPUEstimatorSpec:
    """A layer whose columns are cut over two cores, with Adam's slots."""
    del labels
    kernel = v1.get_variable("kernel", [4, 8])
    xla_sharding.split(kernel, 1, 2)
    outputs = tf.matmul(features["x"], kernel)
    if mode == "infer":
        assignment = params["context"].device_assignment
        assert assignment.core_assignment.tolist() == [
            [[chip, 0, 0, core] for core in (0, 1)] for chip in (0, 1)
        ]
        return tpu.TPUEstimatorSpec(mode, predictions={"y": outputs})
    loss = tf.reduce_mean(outputs)
    if mode == "eval":
        return tpu.TPUEstimatorSpec(mode, loss=loss)
    optimizer = tpu.CrossShardOptimizer(v1.train.AdamOptimizer(0.1))
    return tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step())
    )


def _wide_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    rows = tf.data.Dataset.from_tensors(({"x": tf.ones([4])}, 0.0)).repeat(64)
    return rows.batch(params["batch_size"], drop_remainder=True)


def _in_parts(dims: list[int], **options: Any) -> dict[str, Any]:
    return {
        "model_fn": _sharded,
        "input_fn": _wide_input_fn,
        "num_cores_per_replica": 2,
        "per_host_input_for_training": on_cores.PER_HOST_V2,
        "input_partition_dims": [{"x": dims}, None],
        **options,
    }


_COLUMNS = tiled([1, 2]).SerializeToString()
_COLUMNS_OF_A_STACK = tiled([1, 1, 2]).SerializeToString()


@pytest.mark.parametrize(
    ("mode", "cut"),
    # The input; kernel, and in training its two slots.
    [
        ("train", [_COLUMNS_OF_A_STACK, *[_COLUMNS] * 3]),
        ("eval", [_COLUMNS] * 2),
        ("infer", [_COLUMNS] * 2),
    ],
)
def test_a_replica_of_several_cores_is_one_program_for_all_of_them(mode, cut):
    with fresh_graph() as graph:
        wanted = _plan(_on_tpu(mode, TOPOLOGICAL, **_in_parts([1, 2])), mode)
        (program,) = _programs(graph)
        (parts,) = {
            tuple(node.attr["partition_dims"].list.i)
            for node in _nodes(graph)
            if node.op == "TPUPartitionedInputV2"
        }
        split = split_by_tensorflow(graph, *wanted)
    assert program.attr["num_replicas"].i == 2
    assert program.attr["num_cores_per_replica"].i == 2
    assert program.attr["use_spmd_for_xla_partitioning"].b
    cores_of_replicas = np.reshape(program.attr["device_assignment"].list.i, [2, 2, 4])
    assert cores_of_replicas[:, :, 0].tolist() == [[0, 0], [1, 1]]
    assert program.attr["topology"].s == TOPOLOGICAL.topology.serialized()
    assert parts == ((1, 1, 2) if mode == "train" else (1, 2))
    # What TensorFlow's passes send each core is its part of the input and of the variables.
    assert sorted(filter(None, split.input_shardings)) == sorted(cut)


def test_without_a_topology_of_its_own_a_replica_has_one_core():
    with fresh_graph() as graph:
        _plan(_on_tpu("train"), "train")
        (program,) = _programs(graph)
    assert not program.attr["device_assignment"].list.i


@row(
    "estimator",
    "`input_partition_dims=[{'x': [4, 1]}]` for batches of 2 rows, on a TPU",
    "TPUConfig.input_partition_dims[0]",
    "is [4, 1].",
    "which is not divisible by 4 partitions: pad it to 4",
)
def test_parts_of_an_input_on_a_tpu_are_even(refused):
    options = _in_parts([4, 1], num_cores_per_replica=4, batch=2)
    with fresh_graph(), refused():
        _on_tpu("train", TOPOLOGICAL, **options).trace()


@row(
    "estimator",
    "`num_cores_per_replica=4` on a TPU whose chips stand in another shape",
    "num_cores_per_replica=4 is a larger block than the TPU's topology of 1x1x1x2",
    "use a larger TPU, or at most 2",
)
def test_a_replica_larger_than_the_topology(refused):
    one_chip = tf.tpu.experimental.Topology(
        mesh_shape=[1, 1, 1, 2], device_coordinates=[[[0, 0, 0, 0], [0, 0, 0, 1]]]
    )
    system = dataclasses.replace(SYSTEM, topology=one_chip)
    with refused():
        _run(system, num_cores_per_replica=4)
