"""Heads in model_fns of an Estimator: subclasses, strategies, exports."""

import pathlib
import re
import tempfile
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.estimator.heads import head_facts
from tfx_tpu_trainer import estimator
from tfx_tpu_trainer.estimator import export, heads

v1 = tf.compat.v1


class WithSpread(heads.RegressionHead):
    """Measures how far apart predictions are, with a feature that no other head needs."""

    def metrics(self, regularization_losses=None):
        spread = tf_keras.metrics.Mean(name="spread")
        return {**super().metrics(regularization_losses), "spread": spread}

    def update_metrics(self, eval_metrics, features, logits, labels, regularization_losses=None):
        eval_metrics["spread"].update_state(tf.abs(logits - features["middle"]))
        return super().update_metrics(eval_metrics, features, logits, labels, regularization_losses)


def model_fn_for(head: heads.Head, optimizer: Any = "SGD") -> Any:
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

    made = estimator.Estimator(model_fn_for(WithSpread()), str(tmp_path))
    made.train(input_fn, steps=1)
    w = made.get_variable_value("w")
    metrics = made.evaluate(input_fn)
    x = np.arange(12, dtype=np.float32).reshape([4, 3])
    assert metrics["spread"] == pytest.approx(np.abs(x @ w - 1.0).mean(), rel=1e-5)
    assert metrics["average_loss"] == pytest.approx(
        np.square(x @ w - x.sum(axis=1, keepdims=True)).mean(), rel=1e-5
    )


# A canned estimator's head under a strategy, in strategies/test_gradients.py, is in `make test`.
@pytest.mark.sweep
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum"])
def test_replicas_of_a_strategy_train_as_one(reduction: str, tmp_path: Any) -> None:
    strategy = tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    optimizer = tf_keras.optimizers.legacy.SGD(0.05, momentum=0.9)
    weights, metrics = [], []
    for name, of_all, batch in (("one", None, 4), ("two", strategy, 2)):
        made = estimator.Estimator(
            model_fn_for(heads.BinaryClassHead("weight", loss_reduction=reduction), optimizer),
            config=estimator.RunConfig(
                str(tmp_path / name), train_distribute=of_all, eval_distribute=of_all
            ),
        )
        made.train(lambda batch=batch: head_facts.input_fn().unbatch().batch(batch), steps=4)
        assert made.get_variable_value("global_step") == 4
        weights.append(made.get_variable_value("w"))
        metrics.append(made.evaluate(head_facts.input_fn))
        # Of the losses of replicas evaluation takes the mean.
        del metrics[-1]["loss"]
    np.testing.assert_allclose(*weights, rtol=1e-5)
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-5)


def test_every_signature_of_an_export_can_be_served(tmp_path: Any) -> None:
    head = heads.BinaryClassHead("weight", label_vocabulary=["no", "yes"])
    made = estimator.Estimator(model_fn_for(head), str(tmp_path / "model"))

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
