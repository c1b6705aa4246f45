"""The pipelines' model_fns, built in plain graphs and trained for a few steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pipelines.digits import model as digits
from pipelines.digits.config import DigitsModelSettings
from pipelines.taxi import model as taxi
from pipelines.taxi.config import TaxiModelSettings
from pipelines.taxi.transform.preprocessing import NUMBERS
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import ModeKeys

ROWS = 16

TAXI_PARAMS = {
    **TaxiModelSettings(learning_rate=0.05, decay_steps=1000).model_dump(),
    "vocabulary_sizes": {"payment_type": 4, "company": 9},
}
DIGITS_PARAMS = DigitsModelSettings(learning_rate=0.01).model_dump()


def taxi_batch() -> tuple[dict[str, Any], Any]:
    random = np.random.RandomState(0)
    features = {
        f"{name}_id": random.randint(size, size=ROWS)
        for name, size in taxi.id_sizes(TAXI_PARAMS["vocabulary_sizes"]).items()
    }
    features |= {f"{name}_scaled": random.normal(size=ROWS).astype(np.float32) for name in NUMBERS}
    return features, (features["payment_type_id"] == 1).astype(np.int64)


def digits_batch() -> tuple[dict[str, Any], Any]:
    random = np.random.RandomState(0)
    labels = random.randint(10, size=(ROWS, 1))
    pixels = random.uniform(size=(ROWS, 64)) * 0.1
    pixels[np.arange(ROWS), labels[:, 0]] = 1.0
    return {"pixels": pixels.astype(np.float32)}, labels


DIGITS = (digits.model_fn, DIGITS_PARAMS, digits_batch)
TAXI = (taxi.model_fn, TAXI_PARAMS, taxi_batch)
MODEL = ("model_fn", "params", "batch")
MODELS = pytest.mark.parametrize(
    MODEL, [pytest.param(*TAXI, id="taxi"), pytest.param(*DIGITS, id="digits")]
)


def constants(batch: Callable[[], tuple[dict[str, Any], Any]]) -> tuple[Any, Any]:
    return tf.nest.map_structure(tf.constant, batch())


@pytest.mark.parametrize(
    MODEL,
    [
        # The pipeline's own run trains it, and sees its loss.
        pytest.param(*TAXI, id="taxi", marks=pytest.mark.sweep),
        pytest.param(*DIGITS, id="digits"),
    ],
)
def test_training_lowers_the_loss(model_fn: Any, params: dict[str, Any], batch: Any) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.set_random_seed(1)
        spec = model_fn(*constants(batch), ModeKeys.TRAIN, params)
        session.run(tf.compat.v1.global_variables_initializer())
        first = session.run(spec.loss)
        for _ in range(60):
            session.run(spec.train_op)
        assert session.run(spec.loss) < 0.5 * first
        assert session.run(tf.compat.v1.train.get_global_step()) == 60


@MODELS
def test_metrics_are_those_of_numpy(model_fn: Any, params: dict[str, Any], batch: Any) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        features, labels = constants(batch)
        spec = model_fn(features, labels, ModeKeys.EVAL, params)
        metric_fn, tensors = spec.eval_metrics
        metrics = metric_fn(**tensors) if isinstance(tensors, dict) else metric_fn(*tensors)
        session.run(
            [
                tf.compat.v1.global_variables_initializer(),
                tf.compat.v1.local_variables_initializer(),
            ]
        )
        session.run([update for _, update in metrics.values()])
        values, tensors, loss = session.run(
            [{k: v[0] for k, v in metrics.items()}, tensors, spec.loss]
        )
    if isinstance(tensors, dict):
        expected = np.mean(np.argmax(tensors["logits"], axis=1) == tensors["labels"])
    else:
        expected = np.mean((tensors[1] > 0.5) == tensors[0])
        assert values["average_loss"] == pytest.approx(loss, rel=1e-5)
    assert values["accuracy"] == pytest.approx(expected)


@MODELS
def test_predictions_need_no_labels(model_fn: Any, params: dict[str, Any], batch: Any) -> None:
    with tf.Graph().as_default():
        features, _ = constants(batch)
        spec = model_fn(features, None, ModeKeys.PREDICT, params)
        assert set(spec.export_outputs) == {"serving_default"}
        assert {value.shape[0] for value in spec.predictions.values()} == {ROWS}


@MODELS
@mostly_swept("use_tpu", [False, True], kept=[True])
def test_on_cores_every_gradient_is_combined(
    model_fn: Any, params: dict[str, Any], batch: Any, use_tpu: bool
) -> None:
    def computation() -> tf.Tensor:
        spec = model_fn(*constants(batch), ModeKeys.TRAIN, {**params, "use_tpu": use_tpu})
        with tf.control_dependencies([spec.train_op]):
            return tf.identity(spec.loss)

    with tf.Graph().as_default() as graph:
        tf.compat.v1.tpu.shard(computation, num_shards=2)
        sums = [op for op in graph.get_operations() if op.type == "CrossReplicaSum"]
        variables = tf.compat.v1.trainable_variables()
        assert len(sums) == (len(variables) if use_tpu else 0)
