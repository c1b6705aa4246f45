"""The same metrics on any number of cores and with any batch size: those of NumPy on the predictions."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests import tfx_testdata
from tests.components.trainer import small_model
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.components.evaluation._data_slices import parse_slicing_specs
from tfx_tpu_trainer.components.trainer.slicing import Slicing
from tfx_tpu_trainer.estimator import tpu

pytestmark = pytest.mark.matrix

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
