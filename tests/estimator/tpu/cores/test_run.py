from __future__ import annotations

import pytest
import tensorflow as tf

from tests.estimator.tpu import on_cores
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import (
    LoopLength,
    LoopLengthFromTime,
    TunedLoopLength,
)
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.places.place import Call
from tfx_tpu_trainer.estimator.tpu.cores.layout import BatchSizes, InputMode
from tfx_tpu_trainer.estimator.tpu.cores.run import core_run_of, loops_of
from tfx_tpu_trainer.estimator.tpu.cores.trace import trace_on_cores

v1 = tf.compat.v1


def _plan(mode: str, batch: int | None = 16, *, number: int | None = 4, axis=None, **options):
    config = on_cores.config_for("m", cores=number, tpu_options=options)
    return core_run_of(mode, config=config, global_batch_size=batch, batch_axis=axis)


@pytest.mark.behaviour(31, 75)
def test_a_run_with_defaults_has_eight_cores_and_per_host_input():
    run = _plan("train", number=None)
    assert (run.cores, run.broadcast, run.input_mode) == (8, False, InputMode.PER_HOST_V1)
    assert run.sizes == BatchSizes(16, 2)


@pytest.mark.parametrize(
    ("mode", "options", "input_mode"),
    [
        ("train", {"per_host_input_for_training": False}, InputMode.PER_SHARD_V1),
        ("eval", {"per_host_input_for_training": False}, InputMode.PER_HOST_V1),
        ("infer", {"per_host_input_for_training": 4}, InputMode.BROADCAST),
        ("train", {"eval_training_input_configuration": 5}, InputMode.PER_HOST_V1),
        ("infer", {"eval_training_input_configuration": 5}, InputMode.SLICED),
    ],
)
@pytest.mark.behaviour(74, 77, 78, 79)
def test_the_input_of_a_mode(mode, options, input_mode):
    assert _plan(mode, **options).input_mode is input_mode


def test_evaluation_and_prediction_read_one_input_whatever_the_hosts():
    assert _plan("train", 32, number=16).layout.num_hosts == 2
    for mode in ("eval", "infer"):
        run = _plan(mode, 32, number=16)
        assert run.layout.num_hosts == 1
        assert run.sizes == BatchSizes(32, 2)
        # One call of input_fn feeds all hosts.
        run = _plan(mode, 33, number=16, per_host_input_for_training=on_cores.BROADCAST)
        assert run.layout.num_hosts == 2
        assert run.sizes == BatchSizes(33, 33)


@pytest.mark.parametrize("mode", on_cores.MODES)
@pytest.mark.behaviour(94)
def test_only_per_host_v2_has_replicas_wider_than_a_host(mode):
    wide = {"num_cores_per_replica": 16}
    v2 = {"per_host_input_for_training": on_cores.PER_HOST_V2}
    for evaluated in ({}, {"eval_training_input_configuration": on_cores.SLICED}):
        assert _plan(mode, **wide, **v2, **evaluated).sizes.model_fn == 4
        with pytest.raises(ValueError, match=r"^Except the PER_HOST_V2 mode, the num"):
            _plan(mode, **wide, **evaluated)


@pytest.mark.behaviour(132)
def test_batch_axis_is_of_per_host_v1_only():
    assert _plan("train", axis=[1, 0]).batch_axis == [1, 0]
    assert _plan("train", axis=[1, 0], per_host_input_for_training=3).batch_axis is None


@pytest.mark.parametrize(
    ("mode", "name"), [("train", "train"), ("eval", "eval"), ("infer", "predict")]
)
@pytest.mark.behaviour(81, 85)
def test_batches_that_do_not_hold(mode, name):
    with pytest.raises(ValueError, match=f"{name}_batch_size in .* cannot be `None` if"):
        _plan(mode, None)
    with pytest.raises(
        ValueError, match=f"{name} batch size 18 must be divisible .* 16 and 20 are"
    ):
        _plan(mode, 18)


@pytest.mark.behaviour(149)
def test_model_fn_is_called_once_under_the_number_of_replicas():
    calls = []

    def model_fn(features, labels, added):
        calls.append((features.shape.as_list(), added["batch_size"], added["use_tpu"]))
        total = v1.tpu.cross_replica_sum(tf.reduce_mean(features))
        groups = tf.get_static_value(total.op.inputs[1])
        assert groups.tolist() == [[0, 1, 2, 3]]
        return tpu.TPUEstimatorSpec("train", loss=total, train_op=tf.no_op())

    with fresh_graph():
        call = Call(
            mode="train",
            config=tpu.RunConfig(),
            call_input_fn=lambda added, _=None: (tf.zeros([added["batch_size"], 3]),) * 2,
            call_model_fn=model_fn,
        )
        trace = trace_on_cores(_plan("train"), call)
        assert calls == [([4, 3], 4, True)]
        assert trace.is_padding is None
        assert trace.template.features.shape == [4, 3]
        assert {op.name.split("/")[0] for op in v1.get_default_graph().get_operations()} >= {
            "input_pipeline_task0"
        }


@pytest.mark.parametrize(
    ("iterations", "kind", "longest", "periods"),
    [
        (7, LoopLength, 7, ()),
        ("2m", LoopLengthFromTime, 1 << 32, ()),
        ("auto", TunedLoopLength, 1 << 32, (50, 20, 100)),
    ],
)
def test_loops_are_as_configured(iterations, kind, longest, periods):
    config = tpu.RunConfig(
        tpu_config=tpu.TPUConfig(
            iterations_per_loop=iterations, experimental_host_call_every_n_steps=3
        ),
        save_checkpoints_steps=50,
        save_summary_steps=20,
    )
    loops = loops_of(config, log_every_n_steps=100)
    assert isinstance(loops.length, kind)
    assert (loops.longest, loops.periods, loops.host_call_every_n_steps) == (longest, periods, 3)
