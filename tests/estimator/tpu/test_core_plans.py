"""What runs on a TPU in a session, by the graph that is built: no TPU is here to run it."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator.tpu import cores
from tfx_tpu_trainer.engine.loops.loop_hook import LoopLength, LoopLengthFromTime, TunedLoopLength
from tfx_tpu_trainer.engine.sessions.tpu_system import TPUSystem, TPUSystemHook
from tfx_tpu_trainer.engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.tpu import core_plans
from tfx_tpu_trainer.estimator.tpu.core_run import CoreRun, CoreTrace, plan_core_run, trace_on_cores

v1 = tf.compat.v1

SYSTEM = TPUSystem("grpc://tpu:8470", num_cores=4, num_hosts=1, job="worker")


def _plan_run(mode: str, *, system: TPUSystem | None = SYSTEM, batch: int = 8, **tpu_options: Any):
    config = tpu.RunConfig(master=SYSTEM.master, tpu_config=tpu.TPUConfig(**tpu_options))
    return plan_core_run(
        mode, config=config, global_batch_size=batch, batch_axis=None, system=system
    )


def _trace(run: CoreRun) -> CoreTrace:
    input_fn = cores.train_input_fn if run.mode == "train" else linear_model.input_fn
    return trace_on_cores(
        run,
        call_input_fn=input_fn,
        call_model_fn=lambda features, labels, added: linear_model.model_fn_for(tpu, "momentum")(
            features, labels, run.mode, added
        ),
    )


def _nodes(graph: tf.Graph) -> list[v1.NodeDef]:
    graph_def = graph.as_graph_def()
    functions = [function.node_def for function in graph_def.library.function]
    return [node for nodes in [graph_def.node, *functions] for node in nodes]


def _programs(graph: tf.Graph) -> list[v1.NodeDef]:
    return [node for node in _nodes(graph) if node.op == "TPUReplicateMetadata"]


def _loops(**options: Any) -> core_plans.Loops:
    return core_plans.plan_loops(tpu.RunConfig(**options), log_every_n_steps=100)


def test_training_is_one_program_on_every_core():
    run = _plan_run("train")
    with fresh_graph() as graph:
        plan = core_plans.plan_training(run, _trace(run), loops=_loops(), steps=4, max_steps=None)
        (program,) = _programs(graph)
    assert program.attr["num_replicas"].i == 4
    assert plan.loss.shape.rank == 0
    types = {node.op for node in _nodes(graph)}
    assert {"CrossReplicaSum", "ResourceApplyMomentum"} <= types


def test_evaluation_runs_full_batches_on_cores_and_the_rest_here():
    run = _plan_run("eval")
    with fresh_graph() as graph:
        core_plans.plan_evaluation(run, _trace(run), steps=None)
        (program,) = _programs(graph)
    assert program.attr["num_replicas"].i == 4
    short = [node for node in _nodes(graph) if node.name.startswith("short_batch/")]
    assert short
    assert not any("_tpu_replicate" in node.attr for node in short)


def test_prediction_runs_padded_batches_on_cores():
    run = _plan_run("infer")
    with fresh_graph() as graph:
        plan = core_plans.plan_prediction(run, _trace(run), None)
        (program,) = _programs(graph)
    assert program.attr["num_replicas"].i == 4
    assert set(plan.fetches) == {"y", "x"}


@pytest.mark.parametrize("mode", ["train", "eval", "infer"])
def test_emulated_cores_have_no_program(mode):
    run = _plan_run(mode, system=None, num_shards=4)
    with fresh_graph() as graph:
        trace = _trace(run)
        if mode == "train":
            core_plans.plan_training(run, trace, loops=_loops(), steps=4, max_steps=None)
        elif mode == "eval":
            core_plans.plan_evaluation(run, trace, steps=None)
        else:
            core_plans.plan_prediction(run, trace, None)
        assert not _programs(graph)
    assert core_plans.system_hooks(run) == []


def test_a_session_on_a_tpu_initializes_it():
    (hook,) = core_plans.system_hooks(_plan_run("train"))
    assert isinstance(hook, TPUSystemHook)
    with tf.Graph().as_default() as graph:
        hook.begin()
        devices = {op.type: op.device for op in graph.get_operations()}
    assert devices["ConfigureDistributedTPU"] == "/job:worker/device:TPU_SYSTEM:0"


def test_b91_the_tpu_says_how_many_replicas_there_are():
    run = _plan_run("train")
    assert run.cores == 4
    assert run.sizes.model_fn == 2
    assert _plan_run("train", num_shards=4).cores == 4
    with pytest.raises(
        ValueError, match=r"num_shards is not set correctly. Acc.*be \(4\), got \(8\)"
    ):
        _plan_run("train", num_shards=8)


def test_b93_cores_per_replica_must_use_up_the_cores():
    with pytest.raises(ValueError, match=r"^The num of cores required .*replica: 8, .*system: 4"):
        _plan_run("train", num_cores_per_replica=8)
    odd = TPUSystem("", num_cores=6, num_hosts=1, job=None)
    with pytest.raises(
        RuntimeError, match=r"system \(6\) is not divisible by .*cores \(4\) required"
    ):
        _plan_run("train", system=odd, num_cores_per_replica=4)
    with pytest.raises(ValueError, match="num_cores_per_replica=2 on TPU hardware"):
        _plan_run("train", num_cores_per_replica=2)


def test_hosts_are_those_of_the_system():
    pod = TPUSystem("grpc://pod:8470", num_cores=16, num_hosts=4, job="worker")
    run = _plan_run("train", system=pod, batch=32)
    assert run.layout.num_hosts == 4
    assert run.sizes.input_fn == 8
    seen = []

    def input_fn(params: dict[str, Any]) -> tf.data.Dataset:
        seen.append(params["context"].current_input_fn_deployment())
        return cores.train_input_fn(params)

    with fresh_graph():
        trace_on_cores(
            run,
            call_input_fn=input_fn,
            call_model_fn=lambda features, labels, added: linear_model.model_fn_for(tpu, "sgd")(
                features, labels, "train", added
            ),
        )
    assert seen == [(f"/job:worker/task:{i}/device:CPU:0", i, 4, 4) for i in range(4)]


@pytest.mark.parametrize(
    ("iterations", "kind", "longest", "periods"),
    [
        (7, LoopLength, 7, ()),
        ("2m", LoopLengthFromTime, 1 << 32, ()),
        ("auto", TunedLoopLength, 1 << 32, (50, 20, 100)),
    ],
)
def test_loops_are_as_configured(iterations, kind, longest, periods):
    loops = _loops(
        tpu_config=tpu.TPUConfig(
            iterations_per_loop=iterations, experimental_host_call_every_n_steps=3
        ),
        save_checkpoints_steps=50,
        save_summary_steps=20,
    )
    assert isinstance(loops.length, kind)
    assert (loops.longest, loops.periods, loops.host_call_every_n_steps) == (longest, periods, 3)
