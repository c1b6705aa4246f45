"""Heads in a TPUEstimator: emulated cores give one host's numbers."""

import contextlib
import pathlib
import re
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.estimator.heads import head_facts
from tests.estimator.tpu import on_cores
from tfx_tpu_trainer import estimator
from tfx_tpu_trainer.estimator import export, heads, tpu
from tfx_tpu_trainer.estimator._modes import on_cores as optimizers_on_cores
from tfx_tpu_trainer.estimator.heads import _v1 as v1_heads

pytestmark = pytest.mark.matrix

v1 = tf.compat.v1

ROWS = 40

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
        lambda: heads.MultiHead([heads.BinaryClassHead(name="a"), heads.RegressionHead(name="b")]),
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


class WithSpread(heads.RegressionHead):
    """Measures how far apart predictions are, with a feature that no other head needs."""

    def metrics(self, regularization_losses=None):
        spread = tf_keras.metrics.Mean(name="spread")
        return {**super().metrics(regularization_losses), "spread": spread}

    def update_metrics(self, eval_metrics, features, logits, labels, regularization_losses=None):
        eval_metrics["spread"].update_state(tf.abs(logits - features["middle"]))
        return super().update_metrics(eval_metrics, features, logits, labels, regularization_losses)


def model_fn_of(head: heads.Head, optimizer: Any = "SGD") -> Any:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        w = v1.get_variable("w", [3, 1], initializer=v1.constant_initializer(0.25))
        return head.create_estimator_spec(
            features=features,
            mode=mode,
            logits=features["x"] @ w,
            labels=labels,
            optimizer=optimizer if mode == "train" else None,
            trainable_variables=[w],
        )

    return model_fn


def test_a_subclass_measures_more(tmp_path: Any) -> None:
    def input_fn() -> tf.data.Dataset:
        x = np.arange(12, dtype=np.float32).reshape([4, 3])
        rows = ({"x": x, "middle": np.ones([4, 1], np.float32)}, x.sum(axis=1, keepdims=True))
        return tf.data.Dataset.from_tensor_slices(rows).batch(2)

    made = estimator.Estimator(model_fn_of(WithSpread()), str(tmp_path))
    made.train(input_fn, steps=1)
    w = made.get_variable_value("w")
    metrics = made.evaluate(input_fn)
    x = np.arange(12, dtype=np.float32).reshape([4, 3])
    assert metrics["spread"] == pytest.approx(np.abs(x @ w - 1.0).mean(), rel=1e-5)
    assert metrics["average_loss"] == pytest.approx(
        np.square(x @ w - x.sum(axis=1, keepdims=True)).mean(), rel=1e-5
    )


def test_every_signature_of_an_export_can_be_served(tmp_path: Any) -> None:
    head = heads.BinaryClassHead("weight", label_vocabulary=["no", "yes"])
    made = estimator.Estimator(model_fn_of(head), str(tmp_path / "model"))

    def input_fn() -> tf.data.Dataset:
        names = tf.constant(["no", "yes"])
        return head_facts.input_fn().map(lambda x, y: (x, tf.gather(names, y)))

    made.train(input_fn, steps=2)
    receiver = export.build_parsing_serving_input_receiver_fn(
        {"x": tf.io.FixedLenFeature([3], tf.float32)}
    )
    path = made.export_saved_model(str(tmp_path / "export"), receiver).decode()
    signatures = tf.saved_model.load(path).signatures
    features = {"x": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 2.0, 3.0]))}
    example = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    logit = np.array([[1.0, 2.0, 3.0]]) @ made.get_variable_value("w")
    probability = 1 / (1 + np.exp(-logit))
    classified = signatures["serving_default"](tf.constant([example]))
    np.testing.assert_allclose(
        classified["scores"], [[1 - probability.item(), probability.item()]], rtol=1e-5
    )
    assert classified["classes"].numpy().tolist() == [[b"no", b"yes"]]
    regressed = signatures["regression"](tf.constant([example]))
    np.testing.assert_allclose(regressed["outputs"], probability, rtol=1e-5)
    predicted = signatures["predict"](tf.constant([example]))
    assert predicted["classes"].numpy().tolist() == [[b"yes"]]
    assert predicted.keys() == {
        "all_class_ids",
        "all_classes",
        "class_ids",
        "classes",
        "logistic",
        "logits",
        "probabilities",
    }


def test_the_listing_of_the_docs_page_runs(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # The listing names no folder for its model.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    page = pathlib.Path(__file__).parents[3] / "docs" / "heads.md"
    (listing,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(listing, str(page), "exec"), names)
    assert names["metrics"]["global_step"] == 50
    assert "recall/positive_threshold_0.7" in names["metrics"]
