"""Heads in a TPUEstimator: emulated cores give one host's numbers."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.estimator.tpu import on_cores
from tfx_tpu_trainer.estimator import heads, tpu
from tfx_tpu_trainer.estimator._modes import on_cores as optimizers_on_cores
from tfx_tpu_trainer.estimator.heads import _v1 as v1_heads

pytestmark = pytest.mark.matrix

v1 = tf.compat.v1

ROWS = 40
BATCH = 8

HEADS: dict[str, tuple[Callable[[], heads.Head], Callable[[], Any]]] = {
    "binary": (
        lambda: heads.BinaryClassHead("weight", thresholds=[0.4]),
        lambda: tf_keras.optimizers.legacy.Adam(0.1),
    ),
    "binary_summed": (
        lambda: heads.BinaryClassHead(loss_reduction="sum"),
        lambda: tf_keras.optimizers.legacy.Adagrad(0.1),
    ),
    "v1_binary_summed": (
        lambda: v1_heads.BinaryClassHead(),
        lambda: v1.train.AdagradOptimizer(0.1),
    ),
    "multi": (
        lambda: heads.MultiHead(
            [heads.BinaryClassHead(name="a"), heads.RegressionHead(name="b")],
        ),
        lambda: v1.train.AdamOptimizer(0.1),
    ),
}


def input_fn_for(multi: bool) -> Callable[..., tf.data.Dataset]:
    def input_fn(params: dict[str, Any]) -> tf.data.Dataset:
        generator = np.random.default_rng(3)
        x = generator.normal(size=[ROWS, 3]).astype(np.float32)
        features = {"x": x, "weight": generator.uniform(0.5, 2.0, [ROWS]).astype(np.float32)}
        clicks = (x.sum(axis=1, keepdims=True) > 0).astype(np.int32)
        labels = {"a": clicks, "b": x[:, :1]} if multi else clicks
        dataset = tf.data.Dataset.from_tensor_slices((features, labels)).repeat(2)
        return dataset.batch(params["batch_size"], drop_remainder=True)

    return input_fn


def model_fn_for(name: str, use_tpu: bool) -> Callable[..., Any]:
    make_head, make_optimizer = HEADS[name]
    head = make_head()

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del params
        size = head.logits_dimension
        w = v1.get_variable("w", [3, size], initializer=v1.constant_initializer(0.25))
        with optimizers_on_cores() if use_tpu else contextlib.nullcontext():
            return head.create_tpu_estimator_spec(
                features,
                mode,
                features["x"] @ w,
                labels,
                make_optimizer() if mode == "train" else None,
                [w],
                regularization_losses=[0.01 * tf.reduce_sum(w * w)] if name == "binary" else None,
            )

    return model_fn


def run(folder: Any, name: str, use_tpu: bool) -> tuple[np.ndarray, dict[str, Any], list[Any]]:
    input_fn = input_fn_for(name == "multi")
    estimator = on_cores.make(folder, model_fn_for(name, use_tpu), use_tpu=use_tpu, cores=2)
    estimator.train(input_fn, steps=4)
    predicted = list(estimator.predict(input_fn))
    return estimator.get_variable_value("w"), estimator.evaluate(input_fn), predicted


@pytest.mark.parametrize(
    "name",
    # Heads of today's on cores are in canned/test_on_cores.py too.
    [
        "v1_binary_summed",
        pytest.param("binary", marks=pytest.mark.sweep),
        pytest.param("binary_summed", marks=pytest.mark.sweep),
        pytest.param("multi", marks=pytest.mark.sweep),
    ],
)
def test_a_head_on_emulated_cores_gives_one_hosts_numbers(name: str, tmp_path: Any) -> None:
    (w, metrics, rows), (host_w, host_metrics, host_rows) = (
        run(tmp_path / str(use_tpu), name, use_tpu) for use_tpu in (True, False)
    )
    np.testing.assert_allclose(w, host_w, rtol=1e-4)
    if "summed" in name:
        # On cores the loss is the mean of theirs.
        del metrics["loss"], host_metrics["loss"]
    assert metrics == pytest.approx(host_metrics, rel=1e-4)
    assert len(rows) == len(host_rows) == 2 * ROWS
    numbers = [key for key, value in rows[0].items() if value.dtype.kind == "f"]
    for key in numbers:
        np.testing.assert_allclose(rows[-1][key], host_rows[-1][key], rtol=1e-4)


def test_an_optimizer_that_no_core_shares_is_refused(tmp_path: Any) -> None:
    estimator = on_cores.make(tmp_path, model_fn_for("binary", use_tpu=False))
    with pytest.raises(ValueError, match="CrossShardOptimizer must be used"):
        estimator.train(input_fn_for(False), steps=1)


def test_the_spec_has_only_the_features_that_metrics_need() -> None:
    with tf.Graph().as_default():
        features = {"x": tf.zeros([2, 3]), "weight": tf.ones([2])}
        labels, logits = tf.zeros([2, 1]), tf.zeros([2, 1])
        for head, sent in (
            (heads.BinaryClassHead(), None),
            (heads.BinaryClassHead("weight"), ["weight"]),
            (heads.BinaryClassHead(loss_fn=_loss_of_features), ["weight", "x"]),
        ):
            spec = head.create_tpu_estimator_spec(features, "eval", logits, labels)
            assert isinstance(spec, tpu.TPUEstimatorSpec)
            tensors = spec.eval_metrics[1]
            assert (sorted(tensors["features"]) if "features" in tensors else None) == sent


def _loss_of_features(labels: tf.Tensor, logits: tf.Tensor, features: Any) -> tf.Tensor:
    return labels - logits + features["x"][:, :1]


@pytest.mark.parametrize(
    ("head", "predicted"),
    [
        (heads.BinaryClassHead(), b"1"),
        (heads.BinaryClassHead(label_vocabulary=["no", "yes"]), b"yes"),
        (heads.MultiClassHead(3), b"2"),
        (heads.MultiClassHead(3, label_vocabulary=["a", "b", "c"]), b"c"),
        (heads.MultiLabelHead(2), b"0"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_names_of_classes_are_made_on_the_host_of_cores(head, predicted, tmp_path, caplog):
    def model_fn(features, labels, mode, params):
        logits = tf.cumsum(tf.repeat(1.0 + features["x"], head.logits_dimension, axis=1), axis=1)
        return head.create_tpu_estimator_spec(features=features, mode=mode, logits=logits)

    def input_fn(params):
        rows = tf.data.Dataset.from_tensor_slices({"x": np.arange(4.0, dtype=np.float32)[:, None]})
        return rows.batch(params["batch_size"])

    estimator = on_cores.make(tmp_path, model_fn)
    rows = list(estimator.predict(input_fn))
    assert [row["classes"][0] for row in rows] == [predicted] * 4
    assert "no TPU can run" not in caplog.text
