"""The three examples of the original's page, on the host and on emulated cores."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.export import saved_model_facts, small_export, tpu_graph_on_host
from tests.estimator.tpu.documentation_examples import (
    example_export,
    example_mnist,
    example_predict,
)
from tfx_tpu_trainer.estimator import export, tpu

BATCH = 16
PLACES = pytest.mark.parametrize(
    ("use_tpu", "cores"),
    [
        pytest.param(False, None, marks=pytest.mark.sweep),
        pytest.param(True, 4, marks=pytest.mark.matrix),
        pytest.param(True, 8, marks=pytest.mark.sweep),
    ],
    ids=["host", "4 cores", "8 cores"],
)


def config_for(folder, cores, **options):
    tpu_config = tpu.TPUConfig(num_shards=cores, iterations_per_loop=5)
    return tpu.RunConfig(model_dir=str(folder), master="emulated", tpu_config=tpu_config, **options)


@functools.cache
def digits():
    """Images of ten classes, each a pattern of its own under noise; 10 of 72 rows are of class 0."""
    random = np.random.RandomState(0)
    patterns = random.uniform(0, 1, (10, 28, 28, 1))
    labels = np.arange(72) % 10
    images = patterns[labels] + random.normal(0, 0.1, (72, 28, 28, 1))
    return images.astype(np.float32), labels


def digits_input_fn(params, *, endless=False):
    images, labels = digits()
    dataset = tf.data.Dataset.from_tensor_slices(({"image": images}, labels))
    if endless:
        return dataset.repeat().batch(params["batch_size"], drop_remainder=True)
    return dataset.batch(params["batch_size"])


# The page, run unedited on cores in tests/compat/test_programs.py, has these two examples in `make test`.
@pytest.mark.sweep
@pytest.mark.parametrize(("use_tpu", "cores"), [(False, None), (True, 4), (True, 8)])
@pytest.mark.parametrize("form", ["list", "dict"])
def test_mnist_with_eval_metrics_as_list_and_as_dict(tmp_path, use_tpu, cores, form):
    model_fn = getattr(example_mnist, f"model_fn_with_{form}")
    estimator = tpu.TPUEstimator(
        model_fn,
        config=config_for(tmp_path, cores),
        use_tpu=use_tpu,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
    )
    before = estimator.evaluate(digits_input_fn)
    estimator.train(functools.partial(digits_input_fn, endless=True), max_steps=30)
    metrics = estimator.evaluate(digits_input_fn)
    assert set(metrics) == {"accuracy", "loss", "global_step"}
    assert metrics["global_step"] == 30
    assert metrics["loss"] < before["loss"] / 4

    # Precision takes every class but 0 for positive.
    _, labels = digits()
    predicted = np.array([row["class"] for row in estimator.predict(digits_input_fn)])
    positive = predicted != 0
    precision = np.sum(positive & (labels != 0)) / np.sum(positive)
    assert metrics["accuracy"] == pytest.approx(precision)
    assert np.mean(predicted == labels) > 0.9


@pytest.mark.sweep
def test_mnist_trains_alike_with_both_forms_and_on_the_host(tmp_path):
    losses = []
    for form, use_tpu in (("list", True), ("dict", True), ("dict", False)):
        estimator = tpu.TPUEstimator(
            getattr(example_mnist, f"model_fn_with_{form}"),
            config=config_for(tmp_path / f"{form}{use_tpu}", 4),
            use_tpu=use_tpu,
            train_batch_size=BATCH,
            eval_batch_size=BATCH,
        )
        estimator.train(functools.partial(digits_input_fn, endless=True), max_steps=5)
        losses.append(estimator.evaluate_result(digits_input_fn).loss_by_rows)
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)


@pytest.mark.sweep
@PLACES
def test_predict_with_is_padding(tmp_path, use_tpu, cores):
    config = config_for(tmp_path / "one", cores, tf_random_seed=1)
    kept = example_predict.predict(config, use_tpu=use_tpu)
    assert len(kept) == example_predict.total_examples == len(set(kept))
    assert 0 < np.abs(kept).max() < 0.1
    on_host = example_predict.predict(
        config_for(tmp_path / "other", None, tf_random_seed=1), use_tpu=False
    )
    np.testing.assert_allclose(kept, on_host, atol=1e-6)


ROWS = np.array([[0.1, 0.2, 0.3], [1.0, -1.0, 0.5], [0.4, 0.4, 0.4]], np.float32)


def rows_input_fn(params):
    x = np.resize(ROWS, (BATCH, 3))
    labels = np.arange(BATCH) % 4
    return (
        tf.data.Dataset.from_tensor_slices(({"x": x}, labels))
        .repeat()
        .batch(params["batch_size"], drop_remainder=True)
    )


def serialized_rows():
    def example(row):
        value = tf.train.Feature(float_list=tf.train.FloatList(value=row))
        return tf.train.Example(features=tf.train.Features(feature={"x": value}))

    return [example(row).SerializeToString() for row in ROWS]


def train_and_export(folder, version, *, use_tpu, cores):
    """Trains a step, exports, and gives the SavedModel's path and the logits that it must serve."""
    estimator = tpu.TPUEstimator(
        getattr(example_export, f"model_fn_version_{version}"),
        config=config_for(folder / "model", cores),
        use_tpu=use_tpu,
        train_batch_size=BATCH,
        export_saved_model_api_version=version,
    )
    estimator.train(rows_input_fn, max_steps=1)
    receiver_fn = export.build_parsing_serving_input_receiver_fn(
        {"x": tf.io.FixedLenFeature([3], tf.float32)}
    )
    path = estimator.export_saved_model(str(folder / "export"), receiver_fn).decode()
    kernel, bias = estimator.get_variable_value(["logits/kernel", "logits/bias"])
    return path, ROWS @ kernel + bias


@PLACES
def test_export_version_1_with_outside_compilation(tmp_path, use_tpu, cores):
    path, logits = train_and_export(tmp_path, 1, use_tpu=use_tpu, cores=cores)
    of_host, of_tpu = saved_model_facts.read_facts(path)
    assert set(of_host["signatures"]) == {"serving_default", "logits", "classes"}
    assert of_tpu["signatures"] == of_host["signatures"]
    assert "AsString" in of_tpu["outside_compiled_ops"]
    assert "MatMul" not in of_tpu["outside_compiled_ops"]
    for serve in (small_export.serve, tpu_graph_on_host.serve):
        answers = serve(path, {"examples": serialized_rows()})
        np.testing.assert_allclose(answers["logits"], logits, rtol=1e-5)
        answers = serve(path, {"inputs": serialized_rows()}, signature="classes")
        best = [[str(number).encode()] for number in logits.argmax(axis=1)]
        assert answers["classes"].tolist() == best


@PLACES
def test_export_version_2_with_inference_on_tpu(tmp_path, use_tpu, cores):
    path, logits = train_and_export(tmp_path, 2, use_tpu=use_tpu, cores=cores)
    of_host, of_tpu = saved_model_facts.read_facts(path)
    assert of_host["batch_functions"] == []
    (batch_function,) = of_tpu["batch_functions"]
    assert batch_function["allowed_batch_sizes"] == [2, 8]
    for serve in (small_export.serve, tpu_graph_on_host.serve):
        answers = serve(path, {"examples": serialized_rows()})
        np.testing.assert_allclose(answers["logits"], logits, rtol=1e-5)
