"""Tests that models are the same functions in every framework, trained and served, with the sizes in their names."""

import io
import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from benchmarks import data, keras_models, models, served_models, serving
from benchmarks.contenders import CONTENDERS
from benchmarks.models import MODELS, Model, make_model_fn
from benchmarks.plan import FULL, OF_REAL_SIZE
from benchmarks.serving import Served
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1


def parameters(model):
    return sum(math.prod(weight.shape) for weight in MODELS[model].weights if weight.trainable)


def test_they_are_as_large_as_they_are_elsewhere():
    # keras.applications.ResNet50 has 25,583,592 trainable ones, 26,560 of them biases before batch
    # norms, which ResNet-50 has not.
    assert parameters("resnet") == 25_583_592 - 26_560
    # 12 layers of 7,087,872, the embeddings for sequences of 128, and the head.
    embeddings = (30_522 + 128 + 2 + 2) * 768
    head = 768 * 768 + 3 * 768 + 30_522
    assert parameters("bert") == embeddings + 12 * 7_087_872 + head


@pytest.fixture
def small(monkeypatch):
    """Smaller sizes of both models, everywhere."""
    sizes = {"VOCABULARY": 120, "LENGTH": 8, "MASKED": 3, "HEADS": 3, "LAYERS": 2, "INNER": 20}
    sizes |= {"BERT_WIDTH": 12, "RESNET_IMAGE_SIZE": 32, "STAGES": ((1, 4), (2, 8))}
    for name, value in sizes.items():
        monkeypatch.setattr(models, name, value)
    for name, weights in (("bert", models.bert_weights()), ("resnet", models.resnet_weights())):
        model = MODELS[name]
        small = Model(
            batch_size=4, weights=tuple(weights), logits=model.logits, knows_training=True
        )
        monkeypatch.setitem(MODELS, name, small)


def batch_of(model):
    dataset = data.batches(model, "").map(lambda features, labels: features)
    return next(iter(dataset))


@mostly_swept(
    ("model", "training"),
    [(model, training) for model in ("bert", "resnet") for training in (True, False)],
    kept=[("bert", False), ("resnet", True)],
)
def test_keras_computes_the_same(model, training, small):
    features = batch_of(model)
    if model == "bert":
        features["there"] = tf.cast(tf.range(8) < [[8], [5], [1], [8]], tf.int32)
    given = {
        weight.name: tf.Variable(weight.initial_value(), name=weight.name)
        for weight in MODELS[model].weights
    }
    ours = MODELS[model].logits_of(given, features, training=training)
    theirs = keras_models.build(keras, model)(features, training=training)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    assert np.std(ours) > 0


@mostly_swept(
    ("model", "cores"),
    [(model, cores) for model in ("bert", "resnet") for cores in (None, 2)],
    kept=[("resnet", None)],
)
def test_our_estimator_trains_them(model, cores, small, tmp_path):
    options = {}
    if cores:
        options = {"master": "emulated", "tpu_config": tpu.TPUConfig(num_shards=cores)}
    estimator = tpu.TPUEstimator(
        make_model_fn(MODELS[model], tpu),
        config=tpu.RunConfig(model_dir=str(tmp_path), **options),
        use_tpu=bool(cores),
        train_batch_size=4,
        eval_batch_size=4,
    )

    def input_fn(params):
        return data.batches(model, "")

    before = {weight.name: weight.initial_value() for weight in MODELS[model].weights}
    estimator.train(input_fn, max_steps=2)
    moved = {
        name: float(np.abs(estimator.get_variable_value(name) - value).max())
        for name, value in before.items()
    }
    # A key's bias adds the same to all scores of a word: it has no gradient.
    assert all(change > 0 for name, change in moved.items() if "key/bias" not in name), moved
    assert np.isfinite(estimator.evaluate(input_fn, steps=1)["loss"])


def test_they_are_measured_where_they_are_named_only():
    assert not set(OF_REAL_SIZE) & set(FULL)
    measuring = [name for name, contender in CONTENDERS.items() if contender.runs("bert")]
    assert measuring == ["real", "ours", "keras3", "ours-2-cores"]
    assert not CONTENDERS["ours-2-cores"].runs("mlp")


RESULTS = [
    Served(
        model="mlp", way="session", batch_size=1, ours=(900.0, 1200.0, 1000.0), keras=(800.0, 800.0)
    ),
    Served(model="cnn", way="Python", batch_size=32, ours=(50_000.0,), keras=(100_000.0,)),
]


def test_a_ratio_is_that_of_the_medians():
    assert [each.ratio for each in RESULTS] == [1.25, 0.5]


def test_the_report():
    lines = serving.markdown(RESULTS).splitlines()
    assert lines[0].startswith("## ")
    assert "| MLP | session | 1 | 1,000 | 800 | 1.25x |" in lines
    assert "| CNN | Python | 32 | 50,000 | 100,000 | 0.50x |" in lines
    console = Console(file=io.StringIO(), width=120)
    console.print(serving.table(RESULTS))
    assert "1.25x" in console.file.getvalue()
    assert [each["ratio"] for each in json.loads(serving.as_json(RESULTS))] == [1.25, 0.5]


@pytest.mark.matrix
@mostly_swept("model", ["mlp", "cnn", "wide_and_deep"], kept=["mlp"])
def test_ours_and_keras_are_the_same_model(model, tmp_path):
    batch = served_models.batch(model, 3)
    answers = [
        call_of(path, batch)()
        for path in served_models.export_both(model, str(tmp_path))
        for call_of in served_models.WAYS.values()
    ]
    for answer in answers:
        assert set(answer) == {"class_id", "probability"}
        served_models.check_same(answers[0], answer)


@pytest.mark.matrix
def test_it_is_measured_in_turns_and_of_both_ways(monkeypatch):
    monkeypatch.setattr(serving, "_SEGMENT_SECONDS", 0.02)
    results = serving.measure("mlp", segments=2, batch_sizes=(1, 32))
    found = [(each.way, each.batch_size) for each in results]
    assert found == [("session", 1), ("session", 32), ("Python", 1), ("Python", 32)]
    for each in results:
        assert len(each.ours) == len(each.keras) == 2
        assert min(*each.ours, *each.keras) > 0


@pytest.mark.matrix
def test_a_model_that_fails_is_named_and_left_out():
    console = Console(file=io.StringIO(), width=120)
    found = serving.measure_all(["mlp"], segments=1, threads=1, timeout=0.01, console=console)
    assert found == []
    assert "serving mlp failed: took longer than 0.01 s" in console.file.getvalue()
