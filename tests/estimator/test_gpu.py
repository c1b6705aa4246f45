"""A host with a GPU: steps are compiled where that is faster, and loops wait for nothing they need not."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator._engine.fake_gpu import see_a_gpu
from tests.estimator._engine.log_lines import log_lines
from tests.estimator.step_hooks import SeesEveryStep
from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1

BATCH = 4


@pytest.fixture(autouse=True)
def _gpu(monkeypatch):
    see_a_gpu(monkeypatch)


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


def test_both_loops_are_measured_by_default(tmp_path, logged):
    steps = 30_000  # for 0.7 s of trials, on any machine
    estimator = _estimator(tmp_path / "default", log_step_count_steps=9999)
    estimator.train(linear_model.full_batches_input_fn, steps=steps)
    (line,) = logged("jit_compile=None, which is 'auto' on a GPU: a step takes ")
    assert line.levelname == "INFO"
    plain = _estimator(tmp_path / "off", log_step_count_steps=9999, jit_compile=False)
    plain.train(linear_model.full_batches_input_fn, steps=steps)
    assert logged("jit_compile") == [line]
    np.testing.assert_allclose(
        estimator.get_variable_value("linear/weights"),
        plain.get_variable_value("linear/weights"),
        rtol=1e-4,
        atol=1e-6,
    )


def test_a_model_that_xla_would_change_runs_op_by_op_and_no_line_warns(tmp_path, logged):
    _estimator(tmp_path, _noisy_model_fn).train(linear_model.full_batches_input_fn, steps=200)
    (line,) = logged("The steps run op by op, because XLA can't compile them: .*RandomUniform")
    assert line.levelname == "INFO"
    assert not logged("jit_compile")


def test_a_hook_that_sees_every_step_is_no_reason_to_warn(tmp_path, logged):
    _estimator(tmp_path).train(linear_model.full_batches_input_fn, hooks=[SeesEveryStep()], steps=5)
    assert not logged("jit_compile")


def test_a_seed_leaves_the_choice_to_the_graph_without_a_word(tmp_path, logged):
    _estimator(tmp_path, tf_random_seed=3).train(linear_model.full_batches_input_fn, steps=500)
    assert not logged("jit_compile|The steps run op by op")


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
