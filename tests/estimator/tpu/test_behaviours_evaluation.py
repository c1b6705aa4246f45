"""Evaluation, prediction and host_call: groups J, K and L of behaviours.md."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1

pytestmark = pytest.mark.matrix


@pytest.mark.behaviour(201)
def test_sliced_gathers_all_cores_however_training_is_fed(tmp_path):
    # A lift: where training is BROADCAST, the original takes the first core's tensors only.
    seen = []

    def model_fn(features, labels, mode, params):
        keep = on_cores.recorder(seen, 0)
        metrics = (lambda x: {"seen": (tf.constant(0.0), keep(x))}), [features["x"]]
        return tpu.TPUEstimatorSpec(mode, loss=tf.reduce_mean(labels), eval_metrics=metrics)

    options = {
        "per_host_input_for_training": on_cores.BROADCAST,
        "eval_training_input_configuration": on_cores.SLICED,
    }
    estimator = on_cores.make(tmp_path, model_fn, cores=4, tpu_options=options)
    estimator.evaluate(linear_model.input_fn)
    rows = np.concatenate([x for (x,) in seen])
    np.testing.assert_array_equal(rows, linear_model.rows()[0])


@pytest.mark.behaviour(204, 206)
def test_the_loss_is_of_all_cores_and_rows_and_steps_may_be_left_out(tmp_path):
    # Lifts: the original shows the first core's loss, and wants steps.
    estimator = on_cores.linear(tmp_path, cores=4)
    result = estimator.evaluate_result(linear_model.input_fn)
    assert result.num_examples == linear_model.ROWS
    assert result.metrics["loss"] == pytest.approx(linear_model.loss(linear_model.rows()), rel=1e-5)
    batches = linear_model.batches(on_cores.BATCH)[:2]
    whole, first_core = (
        np.mean([linear_model.loss((x[rows], y[rows])) for x, y in batches])
        for rows in (slice(None), slice(2))
    )
    shown = estimator.evaluate(linear_model.input_fn, steps=2)["loss"]
    assert shown == pytest.approx(whole, rel=1e-5)
    assert abs(shown - first_core) > 0.1


class _Address(v1.train.SessionRunHook):
    """Keeps the address that a session was opened at."""

    def after_run(self, run_context, run_values):
        self.seen = run_context.session.sess_str.decode()


@pytest.mark.behaviour(218)
def test_evaluation_is_at_the_evaluation_master(tmp_path):
    server = tf.distribute.Server.create_local_server()
    estimator = on_cores.linear(
        tmp_path, use_tpu=False, config={"evaluation_master": server.target}
    )
    training, evaluation, prediction = _Address(), _Address(), _Address()
    estimator.train(on_cores.train_input_fn, steps=2, hooks=[training])
    metrics = estimator.evaluate(linear_model.input_fn, hooks=[evaluation])
    next(estimator.predict(linear_model.input_fn, hooks=[prediction]))
    assert (training.seen, evaluation.seen, prediction.seen) == ("", server.target, "")
    assert metrics["global_step"] == 2


@mostly_swept("use_tpu", [True, False], kept=[True])
@pytest.mark.behaviour(239)
def test_generators_may_be_interleaved(tmp_path, use_tpu):
    # A lift: on a TPU the original's would fight over the one system.
    estimator = on_cores.linear(tmp_path, use_tpu=use_tpu)
    pairs = list(
        itertools.zip_longest(
            (row["y"] for row in estimator.predict(linear_model.input_fn)),
            (row["y"] for row in estimator.predict(linear_model.input_fn)),
        )
    )
    expected = linear_model.output(linear_model.rows()[0])
    np.testing.assert_allclose(pairs, np.stack([expected] * 2, axis=1), rtol=1e-5, atol=1e-6)


@pytest.mark.behaviour(237)
def test_tensors_of_no_dataset_predict_forever_on_the_host(tmp_path):
    features, _ = linear_model.rows(4)
    rows = on_cores.linear(tmp_path, use_tpu=False).predict(
        lambda params: {"x": tf.constant(features)}
    )
    outputs = [row["y"] for row in itertools.islice(rows, 40)]
    rows.close()
    np.testing.assert_allclose(
        outputs, np.tile(linear_model.output(features), 10), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("use_tpu", "every", "calls"),
    [
        (True, 3, 3),
        pytest.param(False, 3, 3, marks=pytest.mark.sweep),
        pytest.param(True, 1, 3, marks=pytest.mark.sweep),
    ],
)
@pytest.mark.behaviour(244, 245)
def test_every_n_steps_is_of_training_on_cores_only(tmp_path, use_tpu, every, calls):
    seen = []

    def model_fn(features, labels, mode, params):
        spec = linear_model.model_fn_for(tpu)(features, labels, mode, params)
        return spec._replace(host_call=(on_cores.recorder(seen, 0), [features["x"]]))

    options = {"experimental_host_call_every_n_steps": every}
    estimator = on_cores.make(tmp_path, model_fn, use_tpu=use_tpu, loop=6, tpu_options=options)
    estimator.evaluate(linear_model.input_fn)
    assert len(seen) == calls
    seen.clear()
    estimator.train(on_cores.train_input_fn, steps=6)
    assert len(seen) == (6 // every if use_tpu else 6)
