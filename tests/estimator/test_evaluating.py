"""evaluate() and evaluate_result()."""

import functools
import math
import re

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.bad_input import row
from tests.estimator import linear_model
from tests.estimator._engine.event_files import read_values
from tests.estimator._engine.log_lines import log_lines
from tfx_tpu_trainer.estimator import Estimator, EstimatorSpec
from tfx_tpu_trainer.estimator.extending import OpenEvaluation

v1 = tf.compat.v1

BATCH = 8


def _input_fn(**options):
    return functools.partial(linear_model.input_fn, {"batch_size": BATCH}, **options)


def _estimator(folder, **fields) -> Estimator:
    """The linear model; fields that are functions are given labels and outputs, in the graph."""

    def model_fn(features, labels, mode):
        outputs = linear_model.outputs_of(features)
        loss = tf.reduce_mean(tf.square(outputs - labels))
        optimizer = v1.train.GradientDescentOptimizer(linear_model.RATE)
        made = {name: field(labels, outputs) for name, field in fields.items()}
        train_op = optimizer.minimize(loss, v1.train.get_global_step()) if mode == "train" else None
        return EstimatorSpec(mode, loss=loss, train_op=train_op, **made)

    return Estimator(model_fn, folder)


def _batch_losses(*variables) -> list[float]:
    return [linear_model.loss(batch, *variables) for batch in linear_model.batches(BATCH)]


@pytest.mark.behaviour(194, 203, 399)
def test_loss_and_metrics_of_a_trained_model(tmp_path, caplog):
    estimator = _estimator(tmp_path, eval_metric_ops=linear_model.metric_fn)
    estimator.train(_input_fn(epochs=10), steps=5)
    *_, (_, weights, bias) = linear_model.descend(linear_model.batches(BATCH, epochs=10)[:5])
    features, labels = linear_model.rows()
    outputs = linear_model.output(features, weights, bias)
    with log_lines(caplog) as logged:
        metrics = estimator.evaluate(_input_fn())
    (line,) = [line for line in logged if line.startswith("Saving dict for global step 5: ")]
    assert "global_step = 5, loss = " in line
    assert set(metrics) == {"loss", "global_step", "mae", "mean_output"}
    assert metrics["global_step"] == 5
    assert metrics["loss"] == pytest.approx(np.mean(_batch_losses(weights, bias)), rel=1e-5)
    assert metrics["mae"] == pytest.approx(np.mean(np.abs(outputs - labels)), rel=1e-5)
    assert metrics["mean_output"] == pytest.approx(np.mean(outputs), rel=1e-5)


def test_evaluate_result_knows_rows_loss_by_rows_and_checkpoint(tmp_path):
    estimator = _estimator(tmp_path)
    estimator.train(_input_fn(), steps=1)
    result = estimator.evaluate_result(_input_fn())
    *_, (_, weights, bias) = linear_model.descend(linear_model.batches(BATCH)[:1])
    assert result.num_examples == linear_model.ROWS
    assert result.loss_by_rows == pytest.approx(
        linear_model.loss(linear_model.rows(), weights, bias), rel=1e-5
    )
    assert result.global_step == 1
    assert result.checkpoint_path == str(tmp_path / "model.ckpt-1")
    assert result.metrics["loss"] == pytest.approx(np.mean(_batch_losses(weights, bias)), rel=1e-5)


@pytest.mark.parametrize(("steps", "batches"), [(None, 3), (2, 2), (0.5, 1), (1.5, 2), (9, 3)])
@pytest.mark.behaviour(205)
def test_steps(tmp_path, steps, batches):
    result = _estimator(tmp_path).evaluate_result(_input_fn(), steps=steps)
    assert result.metrics["loss"] == pytest.approx(np.mean(_batch_losses()[:batches]), rel=1e-5)
    assert result.num_examples == min(BATCH * batches, linear_model.ROWS)


@pytest.mark.parametrize("steps", [0, -1, math.nan])
@pytest.mark.behaviour(207)
@row("estimator", "`evaluate(steps=0)`", "Must specify steps > 0, given: ")
def test_steps_must_be_positive(tmp_path, steps, refused):
    with refused(ValueError) as raised:
        _estimator(tmp_path).evaluate(_input_fn(), steps=steps)
    assert re.search(f"Must specify steps > 0, given: {steps}", str(raised.value))


@row("estimator", "`evaluate(steps=tf.constant(3))`", "steps must be a number; got <tf.Tensor: ")
def test_steps_are_no_tensor(tmp_path, refused):
    with refused(TypeError):
        _estimator(tmp_path).evaluate(_input_fn(), steps=tf.constant(3))


@pytest.mark.behaviour(210)
@row("estimator", "a metric called 'loss'", 'Metric with name "loss" is not allowed')
def test_a_metric_called_like_ours_is_refused(tmp_path, refused):
    def evaluate_with(name):
        metrics = lambda labels, outputs: {name: v1.metrics.mean(outputs)}  # noqa: E731
        _estimator(tmp_path, eval_metric_ops=metrics).evaluate(_input_fn())

    with refused(ValueError):
        evaluate_with("loss")
    with pytest.raises(ValueError, match="`global_step` is not allowed, because Estimator"):
        evaluate_with("global_step")


@pytest.mark.behaviour(212)
def test_keras_metrics(tmp_path):
    def metrics(labels, outputs):
        error = tf_keras.metrics.MeanAbsoluteError()
        error.update_state(labels[:, None], outputs[:, None])
        return {"mae": error}

    features, labels = linear_model.rows()
    expected = np.mean(np.abs(linear_model.output(features) - labels))
    found = _estimator(tmp_path, eval_metric_ops=metrics).evaluate(_input_fn())
    assert found["mae"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.behaviour(213, 219)
def test_the_latest_checkpoint_a_given_one_or_none(tmp_path):
    estimator = _estimator(tmp_path)
    for _ in range(2):
        assert estimator.evaluate(_input_fn())["loss"] == pytest.approx(np.mean(_batch_losses()))
    estimator.train(_input_fn(epochs=10), steps=2)
    estimator.train(_input_fn(epochs=10), steps=2)
    assert estimator.evaluate(_input_fn())["global_step"] == 4
    older = estimator.evaluate(_input_fn(), checkpoint_path=str(tmp_path / "model.ckpt-2"))
    assert older["global_step"] == 2


def _sum_in_python(labels, outputs):
    """A metric whose state is a Python object of the trace, never emptied."""
    seen = []
    total = tf.numpy_function(lambda: np.float32(sum(seen)), [], tf.float32)
    update = tf.numpy_function(lambda rows: seen.append(rows.sum()) or 0, [outputs], tf.int64)
    return {"sum": (tf.ensure_shape(total, []), update)}


def _noise(labels, outputs):
    return {"noise": v1.metrics.mean(tf.random.uniform([]))}


class _NoHook(v1.train.SessionRunHook):
    """A user's hook."""


def _shuffled(dataset):
    return lambda: dataset().unbatch().shuffle(9).batch(BATCH)


@pytest.mark.parametrize(
    ("metrics", "hooks", "edit", "traces", "sessions"),
    [
        (linear_model.metric_fn, [], lambda input_fn: input_fn, 1, 1),
        (linear_model.metric_fn, [], _shuffled, 1, 1),
        # What may differ in a session's second evaluation, or in a graph's.
        (_noise, [], lambda input_fn: input_fn, 1, 3),
        (_sum_in_python, [], lambda input_fn: input_fn, 3, 3),
        (linear_model.metric_fn, [_NoHook()], lambda input_fn: input_fn, 3, 3),
    ],
    ids=["all", "shuffled", "random", "python", "hooks"],
)
def test_evaluations_share_a_graph_and_a_session(
    tmp_path, caplog, metrics, hooks, edit, traces, sessions
):
    traced = []
    estimator = _estimator(
        tmp_path,
        eval_metric_ops=lambda labels, outputs: traced.append(1) or metrics(labels, outputs),
    )
    estimator = Estimator(estimator.model_fn, config=estimator.config.replace(tf_random_seed=1))
    estimator.train(_input_fn(epochs=10), steps=2)
    estimator.train(_input_fn(epochs=10), steps=2)
    paths = [str(tmp_path / f"model.ckpt-{step}") for step in (2, 4, 2)]
    expected = [
        estimator.evaluate(edit(_input_fn()), hooks=hooks, checkpoint_path=path) for path in paths
    ]
    traced.clear()
    caplog.clear()
    evaluation = OpenEvaluation(estimator, edit(_input_fn()), hooks=hooks, keeps_session=True)
    with log_lines(caplog) as logged:
        found = [dict(evaluation.evaluate(path).metrics) for path in paths]
    evaluation.close()
    assert found == expected
    assert len(traced) == traces
    assert sum(line == "Running local_init_op." for line in logged) == sessions


@pytest.mark.behaviour(214, 215, 216)
def test_events(tmp_path):
    estimator = _estimator(tmp_path)
    estimator.train(_input_fn(epochs=10), steps=3)
    result = estimator.evaluate_result(_input_fn(), name="test")
    values = read_values(estimator.eval_dir("test"))
    # The mean over rows, which is ours alone, stands beside the original's over batches.
    assert values == {
        "loss": {3: result.metrics["loss"]},
        "loss_by_rows": {3: pytest.approx(result.loss_by_rows)},
        "checkpoint_path": {3: str(tmp_path / "model.ckpt-3").encode()},
    }
    assert not (tmp_path / "eval").exists()


@pytest.mark.behaviour(209, 258)
def test_hooks_run_once_a_step(tmp_path):
    class Counts(v1.train.SessionRunHook):
        runs = 0

        def after_run(self, run_context, run_values):
            self.runs += 1

    call, spec, other = Counts(), Counts(), Counts()
    estimator = _estimator(
        tmp_path,
        evaluation_hooks=lambda labels, outputs: [spec],
        training_hooks=lambda labels, outputs: [other],
    )
    estimator.evaluate(_input_fn(), hooks=[call])
    assert (call.runs, spec.runs, other.runs) == (3, 3, 0)


@pytest.mark.behaviour(254)
@row("estimator", "`evaluate(hooks=[3])`", "Hooks must be a SessionRunHook")
def test_hooks_must_be_session_run_hooks(tmp_path, refused):
    with refused(TypeError):
        _estimator(tmp_path).evaluate(_input_fn(), hooks=[3])
