"""Tests TpuTrainerExecutor's evaluation: slices, the learning curve, the best checkpoint, each row once."""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_analysis as tfma

from tests import tfx_testdata
from tests.bad_input import row
from tests.components.trainer import small_model
from tests.components.trainer.execution import Execution
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.components.evaluation import read_eval_metrics
from tfx_tpu_trainer.components.evaluation._data_slices import parse_slicing_specs
from tfx_tpu_trainer.components.evaluation._learning_curve import read_learning_curve
from tfx_tpu_trainer.components.trainer.slicing import Slicing
from tfx_tpu_trainer.estimator import tpu

pytestmark = pytest.mark.matrix

_SPECS = [{"feature_keys": ["payment_type_xf"]}, {"feature_keys": ["tips_xf"]}]


@functools.cache
def _columns():
    """The transformed eval split, by the feature's name."""
    (path,) = tf.io.gfile.glob(tfx_testdata.files("eval"))
    kinds = dict.fromkeys(small_model.DENSE, tf.float32)
    kinds |= dict.fromkeys(("payment_type_xf", "tips_xf"), tf.int64)
    spec = {name: tf.io.FixedLenFeature([], kind) for name, kind in kinds.items()}
    rows = list(tf.data.TFRecordDataset(path, compression_type="GZIP").as_numpy_iterator())
    return {name: column.numpy() for name, column in tf.io.parse_example(rows, spec).items()}


def _column(name):
    return _columns()[name].tolist()


def _expected_metrics(checkpoint):
    """Computes the small model's metrics on the eval split with NumPy."""
    columns = _columns()
    table, kernel, bias = (
        tf.train.load_variable(checkpoint, name).astype(np.float64)
        for name in ("payment", "kernel", "bias")
    )
    dense = [columns[name][:, None] for name in small_model.DENSE]
    logits = np.concatenate([*dense, table[columns["payment_type_xf"]]], axis=1) @ kernel + bias
    logits, labels = logits[:, 0], columns["tips_xf"]
    return {
        "accuracy": np.mean((logits > 0) == labels),
        "label_mean": np.mean(labels),
        "loss_by_rows": np.mean(np.logaddexp(0, np.where(labels == 1, -logits, logits))),
    }


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    execution = Execution.of_trainer(
        tmp_path_factory.mktemp("evaluated"),
        steps=30,
        eval_batch_size=1000,
        slicing_specs=json.dumps(_SPECS),
        max_slices=3,
        eval_every_steps=10,
        best_metric="loss",
        best_metric_mode="min",
        tf_random_seed=1,
        export_to_tpu=0,
        serving_check="off",
    )
    small_model.calls.clear()
    execution.run()
    execution.calls = dict(small_model.calls)
    return execution


def test_each_graph_is_traced_once(evaluated):
    # Slices are measured at the end, in a graph of their own.
    assert evaluated.calls == {"train": 1, "eval": 2, "infer": 1}


def test_slices_are_counted_and_measured(evaluated):
    metrics = read_eval_metrics(evaluated.model.uri)
    slices = {one.key: one for one in metrics.slices}
    payments, tips = (Counter(_column(name)) for name in ("payment_type_xf", "tips_xf"))
    expected = {(("payment_type_xf", value),): count for value, count in payments.most_common(3)}
    rest = len(_column("tips_xf")) - sum(expected.values())
    expected[(("payment_type_xf", "__OTHER__"),)] = rest
    expected |= {(("tips_xf", value),): count for value, count in tips.items()}
    assert {key: one.num_examples for key, one in slices.items()} == expected

    for value in tips:
        of_label = slices[(("tips_xf", value),)].metrics
        assert set(of_label) == {"accuracy", "label_mean"}
        assert of_label["label_mean"] == value
    right = sum(
        one.metrics["accuracy"] * tips[key[0][1]]
        for key, one in slices.items()
        if key[0][0] == "tips_xf"
    )
    assert right / metrics.num_examples == pytest.approx(metrics.overall["accuracy"], rel=1e-6)


def test_the_evaluation_has_them_too(evaluated):
    metrics = read_eval_metrics(evaluated.model.uri)
    result = tfma.load_eval_result(evaluated.outputs["evaluation"][0].uri)
    for one in metrics.slices:
        stored = result.get_metrics_for_slice(one.key)
        assert {name: value["doubleValue"] for name, value in stored.items()} == {
            **one.metrics,
            "example_count": one.num_examples,
        }


def test_the_learning_curve_is_in_the_model(evaluated):
    curve = read_learning_curve(evaluated.model.uri)
    assert [point.step for point in curve.points] == [10, 20, 30]
    losses = {point.step: point.metrics.overall["loss"] for point in curve.points}
    assert curve.best.metrics.overall["loss"] == min(losses.values())
    assert not [name for name in os.listdir(evaluated.model.uri) if ".tmp" in name]


def test_the_best_checkpoint_is_exported(evaluated):
    curve = read_learning_curve(evaluated.model.uri)
    metrics = read_eval_metrics(evaluated.model.uri)
    assert metrics.checkpoint == os.path.join(
        evaluated.outputs["model_run"][0].uri, curve.best_checkpoint
    )
    assert metrics.global_step == curve.best.step
    assert metrics.overall == curve.best.metrics.overall


# tests/components/trainer/test_trainer_evaluation.py has slices on cores.
@pytest.mark.sweep
def test_on_emulated_cores(tmp_path):
    execution = Execution.of_trainer(
        tmp_path,
        steps=6,
        use_tpu=1,
        master="emulated",
        num_shards=2,
        iterations_per_loop=4,
        eval_batch_size=2000,
        eval_every_steps=4,
        best_metric="accuracy",
        slicing_specs='[{"feature_keys": ["payment_type"]}]',
        export_to_tpu=0,
        serving_check="off",
    )
    # A text feature to slice by, which itself does not go to the cores.
    execution.add_raw_examples()
    execution.run()
    curve = read_learning_curve(execution.model.uri)
    assert [point.step for point in curve.points] == [4, 6]
    metrics = read_eval_metrics(execution.model.uri)
    rows = tfx_testdata.ROWS["eval"]
    assert metrics.num_examples == sum(one.num_examples for one in metrics.slices) == rows
    expected = curve.best.metrics.overall["accuracy"]
    by_slice = sum(one.metrics["accuracy"] * one.num_examples for one in metrics.slices) / rows
    assert by_slice == pytest.approx(expected, rel=1e-5)


def test_slices_of_an_endless_input(tmp_path):
    path = tmp_path / "endless.py"
    path.write_text(
        "import tensorflow as tf\n"
        f"from {small_model.__name__} import DENSE, model_fn, params\n"
        "def input_fn(params):\n"
        "    features = {name: tf.ones([8, 1]) for name in DENSE}\n"
        "    features['payment_type_xf'] = tf.constant([[0], [1]] * 4, tf.int64)\n"
        "    rows = (features, tf.ones([8, 1], tf.int64))\n"
        "    return tf.data.Dataset.from_tensors(rows).repeat()\n"
    )
    execution = Execution.of_trainer(
        tmp_path,
        steps=1,
        module=None,
        module_file=str(path),
        eval_args='{"num_steps": 2}',
        slicing_specs='[{"feature_keys": ["payment_type_xf"]}]',
        export_to_tpu=0,
        serving_check="off",
    )
    execution.run()
    slices = read_eval_metrics(execution.model.uri).slices
    assert {one.key: one.num_examples for one in slices} == {
        (("payment_type_xf", 0),): 8,
        (("payment_type_xf", 1),): 8,
    }


def test_raw_features(tmp_path):
    specs = [
        {"feature_keys": ["payment_type"]},
        {
            "feature_keys": ["trip_start_hour", "tips_xf"],
            "feature_values": {"payment_type": "Cash"},
        },
    ]
    execution = Execution.of_trainer(
        tmp_path,
        steps=2,
        eval_batch_size=tfx_testdata.ROWS["eval"],
        slicing_specs=json.dumps(specs),
        export_to_tpu=0,
    )
    execution.add_raw_examples()
    execution.run()
    metrics = read_eval_metrics(execution.model.uri)
    counts = {one.key: one.num_examples for one in metrics.slices}

    paths = tf.io.gfile.glob(f"{tfx_testdata.RAW_EXAMPLES}/Split-eval/*")
    rows = tf.data.TFRecordDataset(paths, compression_type="GZIP").as_numpy_iterator()
    raw = [tf.train.Example.FromString(row).features.feature for row in rows]
    payments = Counter(row["payment_type"].bytes_list.value[0].decode() for row in raw)
    assert {key: counts[key] for key in counts if len(key) == 1} == {
        (("payment_type", value),): count for value, count in payments.items()
    }
    crossed = [key for key in counts if len(key) == 3]
    assert {key[0] for key in crossed} == {("payment_type", "Cash")}
    assert sum(counts[key] for key in crossed) == payments["Cash"]

    # The same numbers as those of the transformed examples.
    assert metrics.num_examples == tfx_testdata.ROWS["eval"]
    expected = _expected_metrics(metrics.checkpoint)
    overall = dict(metrics.overall)
    # One batch holds all rows, so the mean over batches is the one over rows.
    assert overall == pytest.approx({**expected, "loss": expected["loss_by_rows"]}, rel=1e-5)


@row(
    "component",
    '`slicing_specs=[{"feature_keys": ["payment_type"]}]`, of a feature that is not there',
    "slicing_specs name the feature 'payment_type', which the evaluation's input doesn't have",
    "did you mean 'payment_type_xf'",
    "or let Transform return it under this name",
)
def test_a_slice_of_what_is_not_there(tmp_path, refused):
    specs = '[{"feature_keys": ["payment_type"]}]'
    execution = Execution.of_trainer(tmp_path, steps=2, export_to_tpu=0, slicing_specs=specs)
    with refused(ValueError):
        execution.run()
    assert execution.files() == []


_METRIC_FNS = {
    "no_dict": (
        "lambda labels, p: tf.reduce_mean(p)",
        "eval_metric_ops must be a dict, given: .*metric_fn of eval_metrics must return",
    ),
    "bare_tensor": (
        "lambda labels, p: {'mean': tf.reduce_mean(p)}",
        "must be .*tuples.* for key: mean",
    ),
}


_SLICED = '[{"feature_keys": ["tips_xf"]}]'


@mostly_swept(
    ("specs", "name"),
    itertools.product(["[]", _SLICED], _METRIC_FNS),
    kept=[("[]", "bare_tensor"), (_SLICED, "no_dict")],
)
def test_metric_fns_that_give_no_metrics(tmp_path, name, specs):
    function, says = _METRIC_FNS[name]
    execution = _execution_with(tmp_path, function, slicing_specs=specs)
    with pytest.raises((ValueError, TypeError), match=says):
        execution.run()
    assert execution.files() == []


@mostly_swept("function", ["lambda labels, p: {}", "_no_scalar"], kept=["_no_scalar"])
def test_without_a_scalar_the_loss_is_left(tmp_path, function):
    execution = _execution_with(tmp_path, function, slicing_specs=_SLICED)
    execution.run()
    metrics = read_eval_metrics(execution.model.uri)
    assert set(metrics.overall) == {"loss", "loss_by_rows"}
    assert [dict(one.metrics) for one in metrics.slices] == [{}, {}]


def _execution_with(folder, metric_fn, **properties):
    path = folder / "own_metrics.py"
    path.write_text(
        "import tensorflow as tf\n"
        "from tests.components.trainer import small_model\n"
        "params = small_model.params\n"
        "def _no_scalar(labels, p):\n"
        "    return {'values': tf.compat.v1.metrics.mean_tensor(tf.reduce_sum(p, 0))}\n"
        "def model_fn(features, labels, mode, params):\n"
        "    spec = small_model.model_fn(features, labels, mode, params)\n"
        "    if mode != 'eval':\n"
        "        return spec\n"
        f"    return spec._replace(eval_metrics=({metric_fn}, spec.eval_metrics[1]))\n"
    )
    return Execution.of_trainer(
        folder,
        steps=1,
        eval_batch_size=1000,
        module=None,
        module_file=str(path),
        export_to_tpu=0,
        serving_check="off",
        **properties,
    )


ROWS = 1024


def _input_fn(params, repeat=1):
    (path,) = tf.io.gfile.glob(tfx_testdata.files("eval"))
    kinds = dict.fromkeys(small_model.DENSE, tf.float32)
    kinds |= dict.fromkeys(("payment_type_xf", small_model.LABEL), tf.int64)
    spec = {name: tf.io.FixedLenFeature([1], kind) for name, kind in kinds.items()}

    def parse(rows):
        features = tf.io.parse_example(rows, spec)
        label = features.pop(small_model.LABEL)
        return features, label

    rows = tf.data.TFRecordDataset(path, compression_type="GZIP").take(ROWS).repeat(repeat)
    return rows.batch(params["batch_size"], drop_remainder=repeat is None).map(parse)


def _estimator(folder, model_fn, *, batch, cores=None):
    config = tpu.RunConfig(
        model_dir=folder,
        master="emulated" if cores else "",
        tpu_config=tpu.TPUConfig(num_shards=cores),
        tf_random_seed=1,
    )
    sizes = dict.fromkeys(("train_batch_size", "eval_batch_size", "predict_batch_size"), batch)
    params = {**small_model.params, "vocabulary_sizes": {small_model.PAYMENT_VOCABULARY: 10}}
    return tpu.TPUEstimator(
        model_fn, config=config, params=params, use_tpu=cores is not None, **sizes
    )


@pytest.fixture(scope="module")
def slicing():
    return Slicing.find(
        parse_slicing_specs([{"feature_keys": ["payment_type_xf"]}]),
        lambda: _input_fn({"batch_size": 100}),
        max_slices=50,
        label_key=small_model.LABEL,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trained model's folder, and its rows: labels, payments and predicted probabilities."""
    folder = str(tmp_path_factory.mktemp("trained"))
    estimator = _estimator(folder, small_model.model_fn, batch=64)
    estimator.train(functools.partial(_input_fn, repeat=None), max_steps=30)
    rows = estimator.predict(_input_fn)
    probabilities = np.array([row["probabilities"][0] for row in rows], np.float64)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        batch = tf.compat.v1.data.make_one_shot_iterator(_input_fn({"batch_size": ROWS})).get_next()
        features, labels = session.run(batch)
    return folder, labels[:, 0], features["payment_type_xf"][:, 0], probabilities


def _expected(labels, probabilities):
    return {
        "accuracy": np.mean((probabilities > 0.5) == labels),
        "label_mean": np.mean(labels),
    }


# A short last batch on the host and on cores, of which it leaves some without a row; full batches
# only; fewer rows than a batch.
@mostly_swept(
    ("cores", "batch"),
    itertools.product([None, 1, 2, 8], [64, 1024, 48, 720, 2048]),
    kept=[(None, 48), (2, 64), (8, 720), (1, 2048)],
)
def test_metrics_are_those_of_numpy(trained, slicing, cores, batch):
    folder, labels, payments, probabilities = trained
    model_fn = slicing.model_fn(small_model.model_fn)
    estimator = _estimator(folder, model_fn, batch=batch, cores=cores)
    metrics = slicing.metrics_of(estimator.evaluate_result(slicing.input_fn(_input_fn)))

    chosen = np.where(labels == 1, probabilities, 1 - probabilities)
    losses = -np.log(chosen)
    # On the host `loss` is that of evaluate(), where each batch weighs the same.
    batches = [losses] if cores else np.split(losses, range(batch, len(losses), batch))
    expected = {
        **_expected(labels, probabilities),
        "loss": np.mean([np.mean(each) for each in batches]),
        "loss_by_rows": np.mean(losses),
    }
    assert dict(metrics.overall) == pytest.approx(expected, rel=1e-5)
    assert metrics.num_examples == ROWS
    assert {one.key[0][1] for one in metrics.slices} == set(payments)
    for one in metrics.slices:
        rows = payments == one.key[0][1]
        assert one.num_examples == np.sum(rows)
        assert dict(one.metrics) == pytest.approx(
            _expected(labels[rows], probabilities[rows]), rel=1e-5
        )
