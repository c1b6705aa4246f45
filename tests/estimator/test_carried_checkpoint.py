"""The checkpoint of the original's that the tfx wheel carries: Chicago taxi, a wide and deep model.

`tfx/components/testdata/trainer/previous/Format-Serving` is the model folder of a
DNNLinearCombinedClassifier of `tf.estimator`: dense columns for the deep half of 100, 70, 48 and 34
units, categorical ones for the linear half, trained for 1,000 steps. Its eval events hold what the
original found on 20,000 rows, which are the 5,091 of the eval split nearly four times.
"""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests import tfx_testdata
from tfx_tpu_trainer import estimator as tfe

pytestmark = pytest.mark.matrix

FOLDER = os.path.join(os.path.dirname(tfx_testdata.ROOT), "trainer", "previous", "Format-Serving")
CHECKPOINT = os.path.join(FOLDER, "model.ckpt-1000")
HIDDEN_UNITS = (100, 70, 48, 34)
DENSE = ("trip_miles_xf", "fare_xf", "trip_seconds_xf")
CATEGORIES = {
    "payment_type_xf": 1010,
    "company_xf": 1010,
    "pickup_latitude_xf": 10,
    "pickup_longitude_xf": 10,
    "dropoff_latitude_xf": 10,
    "dropoff_longitude_xf": 10,
    "trip_start_hour_xf": 24,
    "trip_start_day_xf": 31,
    "trip_start_month_xf": 12,
}
# The original's own evaluation, in its event file.
METRICS = {
    "accuracy": 0.77735,
    "accuracy_baseline": 0.77775,
    "auc": 0.912848,
    "auc_precision_recall": 0.627195,
    "average_loss": 0.438815,
    "label/mean": 0.22225,
    "loss": 0.438815,
    "precision": 0.0,
    "prediction/mean": 0.234202,
    "recall": 0.0,
}


def taxi_classifier(**arguments) -> tfe.DNNLinearCombinedClassifier:
    column = tf.feature_column
    return tfe.DNNLinearCombinedClassifier(
        linear_feature_columns=[
            column.categorical_column_with_identity(name, buckets, default_value=0)
            for name, buckets in CATEGORIES.items()
        ],
        dnn_feature_columns=[column.numeric_column(name, shape=()) for name in DENSE],
        dnn_hidden_units=HIDDEN_UNITS,
        **arguments,
    )


def input_fn(split: str = "eval", rows: int | None = None):
    spec = {name: tf.io.FixedLenFeature([], tf.float32) for name in DENSE}
    ids = (*CATEGORIES, tfx_testdata.LABEL)
    spec |= {name: tf.io.FixedLenFeature([], tf.int64) for name in ids}

    def features_and_label(serialized):
        features = tf.io.parse_example(serialized, spec)
        return features, features.pop(tfx_testdata.LABEL)

    files = tf.io.gfile.glob(tfx_testdata.files(split))
    records = tf.data.TFRecordDataset(files, compression_type="GZIP")
    return records.take(rows or -1).batch(1000).map(features_and_label)


def logits_by_formula(features) -> np.ndarray:
    """What the checkpoint's variables make of rows."""
    read = tf.train.load_checkpoint(CHECKPOINT).get_tensor
    # Columns are put together by name.
    layer = np.stack([features[name] for name in sorted(DENSE)], axis=1)
    for number in range(len(HIDDEN_UNITS)):
        name = f"dnn/hiddenlayer_{number}"
        layer = np.maximum(layer @ read(f"{name}/kernel") + read(f"{name}/bias"), 0)
    logits = layer @ read("dnn/logits/kernel") + read("dnn/logits/bias")
    for name, buckets in CATEGORIES.items():
        # An id beyond the last, such as month 12, counts as 0.
        ids = np.where(features[name] < buckets, features[name], 0)
        logits += read(f"linear/linear_model/{name}/weights")[ids]
    return logits + read("linear/linear_model/bias_weights")


@pytest.fixture(scope="module")
def rows() -> dict[str, np.ndarray]:
    features, _ = next(input_fn(rows=500).as_numpy_iterator())
    return features


def predicted(classifier, **arguments) -> np.ndarray:
    answers = classifier.predict(lambda: input_fn(rows=500), ["logits"], **arguments)
    return np.array([answer["logits"] for answer in answers])


def test_predict_and_evaluate_in_the_originals_folder(tmp_path, rows):
    shutil.copytree(FOLDER, tmp_path / "model")
    classifier = taxi_classifier(model_dir=tmp_path / "model")
    assert classifier.latest_checkpoint() == str(tmp_path / "model" / "model.ckpt-1000")
    np.testing.assert_allclose(predicted(classifier), logits_by_formula(rows), rtol=1e-4, atol=1e-5)

    metrics = classifier.evaluate(input_fn)
    assert metrics.pop("global_step") == 1000
    assert metrics == pytest.approx(METRICS, abs=2e-3)

    # Its optimizers' slots are there as well.
    assert {
        "training/Adagrad/dnn/hiddenlayer_0/kernel/accumulator",
        "training/Ftrl/linear/linear_model/company_xf/weights/linear",
    } <= set(classifier.get_variable_names())


@pytest.mark.sweep
def test_training_goes_on_in_the_originals_folder(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "model")
    classifier = taxi_classifier(model_dir=tmp_path / "model")
    classifier.train(lambda: input_fn("train").repeat(), max_steps=1010)
    assert classifier.get_variable_value("global_step") == 1010
    assert classifier.evaluate(input_fn)["average_loss"] < METRICS["average_loss"] + 1e-3


@pytest.mark.sweep
def test_warm_start_from_the_originals_checkpoint(tmp_path, rows):
    classifier = taxi_classifier(model_dir=tmp_path, warm_start_from=CHECKPOINT)
    np.testing.assert_allclose(predicted(classifier), logits_by_formula(rows), rtol=1e-4, atol=1e-5)
    classifier.train(lambda: input_fn("train").repeat(), steps=2)
    assert classifier.get_variable_value("global_step") == 2
    kernel = tf.train.load_checkpoint(CHECKPOINT).get_tensor("dnn/hiddenlayer_0/kernel")
    np.testing.assert_allclose(
        classifier.get_variable_value("dnn/hiddenlayer_0/kernel"), kernel, atol=0.02
    )


@pytest.mark.sweep
def test_predict_answers_as_the_originals_own_export(tmp_path):
    (export,) = os.scandir(os.path.join(FOLDER, "export", "chicago-taxi"))
    (first, *_) = sorted(tf.io.gfile.glob(f"{tfx_testdata.RAW_EXAMPLES}/Split-eval/*"))
    raw = next(iter(tf.data.TFRecordDataset(first, compression_type="GZIP").batch(200)))
    served = tf.saved_model.load(export.path).signatures["predict"](examples=raw)

    transform = tf.saved_model.load(f"{tfx_testdata.TRANSFORM_GRAPH}/transform_fn")
    transform = transform.signatures["transform_signature"]
    of_values = {
        name.removesuffix("_values"): spec.dtype
        for name, spec in transform.structured_input_signature[1].items()
        if name.endswith("_values")
    }
    parsed = tf.io.parse_example(raw, {k: tf.io.VarLenFeature(v) for k, v in of_values.items()})
    transformed = transform(
        **{
            f"{name}_{part}": getattr(sparse, part)
            for name, sparse in parsed.items()
            for part in ("indices", "values", "dense_shape")
        }
    )
    features = {name: transformed[name][:, 0].numpy() for name in (*DENSE, *CATEGORIES)}
    classifier = taxi_classifier(model_dir=tmp_path, warm_start_from=FOLDER)
    answers = list(
        classifier.predict(lambda: tf.data.Dataset.from_tensor_slices(features).batch(50))
    )
    assert set(answers[0]) == set(served)
    for name, value in served.items():
        ours = np.array([answer[name] for answer in answers])
        if value.dtype == tf.float32:
            np.testing.assert_allclose(ours, value, rtol=1e-4, atol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(ours, value, err_msg=name)
