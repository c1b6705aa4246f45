"""What estimators tell of their trainings, evaluations and predictions, wherever these run."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator._engine.log_lines import log_lines
from tests.estimator.tpu import on_cores
from tfx_tpu_trainer._support.progress import Progress, followed, log_view
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator._engine.loops.pace import allows_loops, needs_no_call
from tfx_tpu_trainer.estimator._engine.loops.progress_hook import ProgressHook
from tfx_tpu_trainer.estimator.schedule._local import EvaluateAfterSaving

v1 = tf.compat.v1

BATCH = 8


def _on_host(folder, **config):
    return tpu.TPUEstimator(
        linear_model.model_fn_for(tpu),
        config=tpu.RunConfig(model_dir=str(folder), **config),
        use_tpu=False,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
    )


def _mirrored(folder):
    strategy = tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    config = tpu.RunConfig(
        model_dir=str(folder), train_distribute=strategy, eval_distribute=strategy
    )
    return tpu.TPUEstimator(linear_model.model_fn_for(tpu), config=config, **on_cores.BATCH_SIZES)


def _rows(count):
    features, labels = linear_model.rows(count)
    return tf.data.Dataset.from_tensor_slices(({"x": features}, labels))


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (_on_host, "this host"),
        (functools.partial(on_cores.linear, cores=4), "4 emulated TPU cores"),
        (_mirrored, "MirroredStrategy (2 replicas)"),
    ],
    ids=["host", "cores", "strategy"],
)
def test_each_place_tells_its_steps_and_batches_and_that_it_ran_there(
    tmp_path, caplog, make, place
):
    made = make(tmp_path)
    with log_lines(caplog) as logged, followed("log"):
        made.train(on_cores.train_input_fn, max_steps=4)
        result = made.evaluate_result(linear_model.input_fn)
    checkpoint = "checkpoint at step 4"
    (trained,) = (line for line in logged if line.startswith("train: "))
    assert trained.startswith("train: step 4 of 4 (100 %), loss ") and trained.endswith(checkpoint)
    assert f"evaluate: {result}" in logged and "20 rows, loss " in str(result)
    (ran,) = (line for line in logged if line.startswith("Ran on "))
    assert ran.startswith(f"Ran on {place}: trace ") and ", evaluate " in ran


def test_both_losses_of_an_evaluation_are_named(tmp_path):
    made = _on_host(tmp_path)
    made.train(linear_model.endless_input_fn, max_steps=2)
    weights, bias = (made.get_variable_value(f"linear/{name}") for name in ("weights", "bias"))
    features, labels = linear_model.rows(11)
    squares = (features @ weights + bias - labels) ** 2
    # A batch of eight rows and one of three.
    means = [np.mean(squares[:8]), np.mean(squares[8:])]
    result = made.evaluate_result(lambda params: _rows(11).batch(params["batch_size"]))
    assert result.losses == pytest.approx(
        {"loss": np.mean(means), "loss_by_rows": np.mean(squares)}, rel=1e-5
    )


def test_predictions_tell_their_batches_now_and_then(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(log_view, "LINE_SECONDS", 0.0)
    made = _on_host(tmp_path)
    made.train(linear_model.endless_input_fn, max_steps=1)
    with log_lines(caplog) as logged:
        assert len(list(made.predict(lambda params: _rows(40).batch(params["batch_size"])))) == 40
    assert [line for line in logged if line.startswith("predict: ")] == [
        *(f"predict: {done} batches" for done in range(2, 6)),
        "predict: 5 batches",
    ]


def test_progress_bounds_no_loop_and_asks_for_no_call():
    hook = ProgressHook(Progress(), tf.constant(0.0), steps=None, max_steps=7)
    assert hook.every_n_steps is None
    assert allows_loops([hook]) and needs_no_call(hook)


def test_the_next_evaluation_is_with_a_checkpoint_that_is_not_throttled():
    now = [0.0]
    evaluations = EvaluateAfterSaving(None, throttle_secs=600, clock=lambda: now[0])
    assert evaluations.next_in_words() == "with the next checkpoint"
    evaluations._started = 0.0
    now[0] = 400
    assert evaluations.next_in_words() == "with a checkpoint in 3 min 20 s or later"
    now[0] = 600
    assert evaluations.next_in_words() == "with the next checkpoint"
