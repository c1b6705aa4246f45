"""Canned estimators on emulated TPU cores, and any other Estimator that `from_estimator` takes."""

import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.canned.canned_runs import SetFirstValues
from tfx_tpu_trainer import estimator as ours
from tfx_tpu_trainer.estimator import tpu

pytestmark = pytest.mark.matrix

v1 = tf.compat.v1
fc = tf.feature_column

BATCH, ROWS, STEPS = 8, 20, 6


def rows() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Features and labels; no strings."""
    random = np.random.RandomState(8)
    x = random.uniform(-1, 1, (ROWS, 2)).astype(np.float32)
    town = random.randint(0, 5, (ROWS, 1))
    weight = random.choice([0.5, 2.0], ROWS).astype(np.float32)
    return {"x": x, "town": town, "weight": weight}, (x.sum(1) + town[:, 0] > 2).astype(np.int64)


def train_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Full batches without end."""
    dataset = tf.data.Dataset.from_tensor_slices(rows()).repeat()
    return dataset.batch(params["batch_size"], drop_remainder=True)


def eval_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """All rows; the last batch is short."""
    return tf.data.Dataset.from_tensor_slices(rows()).batch(params["batch_size"])


def combined(api: Any, **options: Any) -> Any:
    """A wide and deep classifier."""
    town = fc.categorical_column_with_identity("town", 5)
    return api.DNNLinearCombinedClassifier(
        linear_feature_columns=[town, fc.numeric_column("x", 2)],
        linear_optimizer="Ftrl",
        dnn_feature_columns=[fc.numeric_column("x", 2), fc.embedding_column(town, 2)],
        dnn_optimizer="Adagrad",
        dnn_hidden_units=[3],
        weight_column="weight",
        **options,
    )


def on_cores(canned: Any, folder: Any, cores: int, **options: Any) -> tpu.TPUEstimator:
    """An estimator on emulated cores."""
    tpu_config = tpu.TPUConfig(num_shards=cores, iterations_per_loop=3)
    config = tpu.RunConfig(master="emulated", tpu_config=tpu_config, model_dir=str(folder))
    sizes = {f"{mode}_batch_size": BATCH for mode in ("train", "eval", "predict")}
    return tpu.from_estimator(canned, config, model_dir=str(folder), **{**sizes, **options})


def outcome(estimator: Any) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """Trains; gives variables, metrics and predictions.

    The linear half starts with zeros, as it always does: Ftrl forgets other first values of a row as
    soon as it updates it, which on the host it does once the row is seen.
    """
    estimator.train(train_input_fn, steps=STEPS, hooks=[SetFirstValues("dnn/")])
    values = {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}
    return values, estimator.evaluate(eval_input_fn), list(estimator.predict(eval_input_fn))


def assert_same(found: Any, expected: Any) -> None:
    """The same names, and the same numbers but for the order of sums."""
    assert sorted(found) == sorted(expected)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-5, atol=2e-6, err_msg=name)


def test_cores_give_the_hosts_numbers(tmp_path):
    on_host = tpu.from_estimator(
        combined(ours, model_dir=str(tmp_path / "host")),
        use_tpu=False,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
    )
    values, metrics, predictions = outcome(on_host)
    on_two = outcome(on_cores(combined(ours), tmp_path / "cores", 2))
    assert_same(on_two[0], values)
    # On the host the loss is the mean over batches, on cores over rows.
    for each in (metrics, on_two[1]):
        del each["loss"]
    assert_same(on_two[1], metrics)
    assert len(on_two[2]) == len(predictions) == ROWS
    for row, expected in zip(on_two[2], predictions, strict=True):
        np.testing.assert_allclose(row["logits"], expected["logits"], rtol=2e-5, atol=2e-6)


def own_model_fn(make_optimizer: Callable[[], Any]) -> Callable[..., Any]:
    """A model_fn that knows of no cores, no heads and no CrossShardOptimizer."""

    def model_fn(features, labels, mode):
        w = v1.get_variable("w", [2, 1], initializer=v1.ones_initializer())
        out = tf.matmul(features["x"], w)
        if mode == "infer":
            return ours.EstimatorSpec(mode, predictions={"out": out})
        error = tf.cast(labels, tf.float32)[:, None] - out
        loss = tf.reduce_mean(tf.square(error))
        v1.summary.scalar("error", loss)
        step = v1.train.get_global_step()
        optimizer = make_optimizer()
        if isinstance(optimizer, v1.train.Optimizer):
            train_op = optimizer.minimize(loss, step)
        elif not hasattr(optimizer, "get_updates"):
            update = optimizer.apply_gradients(zip(tf.gradients(loss, [w]), [w]))
            train_op = tf.group(update, step.assign_add(1))
        else:
            optimizer.iterations = step
            train_op = optimizer.get_updates(loss, [w])[0]
        metrics = {"error": v1.metrics.mean(error)} if mode == "eval" else None
        return ours.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)

    return model_fn


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda: v1.train.MomentumOptimizer(0.1, 0.9),
        pytest.param(
            lambda: tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9), marks=pytest.mark.sweep
        ),
        pytest.param(lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9), marks=pytest.mark.sweep),
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    ],
    ids=["v1", "legacy", "keras_2", "keras_3"],
)
def test_a_model_fn_of_ones_own_gets_the_gradient_of_all_rows(tmp_path, make_optimizer):
    plain = ours.Estimator(own_model_fn(make_optimizer), model_dir=str(tmp_path / "host"))
    plain.train(lambda: train_input_fn({"batch_size": BATCH}), steps=STEPS)
    apply = v1.train.Optimizer.apply_gradients
    estimator = on_cores(plain, tmp_path / "cores", 4, eval_on_tpu=False)
    estimator.train(train_input_fn, steps=STEPS)
    assert v1.train.Optimizer.apply_gradients is apply
    np.testing.assert_allclose(
        estimator.get_variable_value("w"), plain.get_variable_value("w"), rtol=1e-5
    )
    assert "error" in estimator.evaluate(eval_input_fn)


def test_metrics_that_no_head_makes_are_refused_on_cores(tmp_path):
    plain = ours.Estimator(own_model_fn(lambda: v1.train.AdamOptimizer()))
    estimator = on_cores(plain, tmp_path, 2)
    with pytest.raises(ValueError, match=r"\['error'\].*eval_on_tpu=False"):
        estimator.evaluate(eval_input_fn)


def test_strings_are_refused_on_cores_by_name(tmp_path):
    colour = fc.categorical_column_with_vocabulary_list("colour", ["red", "blue"])
    estimator = on_cores(ours.LinearClassifier([colour]), tmp_path, 2)

    def input_fn(params):
        features = {"colour": [["red"], ["blue"]] * 8}
        dataset = tf.data.Dataset.from_tensor_slices((features, [["a"], ["b"]] * 8))
        return dataset.batch(params["batch_size"], drop_remainder=True)

    text = re.escape("features['colour'], labels: TPU cores can't compute with strings")
    with pytest.raises(ValueError, match=text):
        estimator.train(input_fn, steps=1)


def test_arguments_are_checked(tmp_path):
    with pytest.raises(TypeError, match="not a TPUEstimator; got 'runs/model'"):
        tpu.from_estimator("runs/model")
    with pytest.raises(ValueError, match=r"one of \('mean', 'sum'\); got 'max'"):
        tpu.from_estimator(ours.BaselineClassifier(model_dir=str(tmp_path)), gradients="max")


def test_a_model_folder_of_the_config_is_used_where_the_estimator_had_none(tmp_path):
    config = tpu.RunConfig(model_dir=str(tmp_path / "of_config"))
    options = {"use_tpu": False, "train_batch_size": BATCH}
    without = ours.BaselineClassifier()
    assert tpu.from_estimator(without, config, **options).model_dir == config.model_dir
    without.train(lambda: tf.data.Dataset.from_tensors(rows()), steps=1)
    with_one = ours.BaselineClassifier(model_dir=str(tmp_path / "own"))
    for estimator in (without, with_one):
        with pytest.raises(ValueError, match="`model_dir` are set both in constructor and `RunCon"):
            tpu.from_estimator(estimator, config, **options)
