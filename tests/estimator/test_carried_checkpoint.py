"""The checkpoint of the original's that the tfx wheel carries: Chicago taxi, a wide and deep model.

`tfx/components/testdata/trainer/previous/Format-Serving` is the model folder of a
DNNLinearCombinedClassifier of `tf.estimator`: dense columns for the deep half of 100, 70, 48 and 34
units, categorical ones for the linear half, trained for 1,000 steps. Its eval events hold what the
original found on 20,000 rows, which are the 5,091 of the eval split nearly four times.
"""

import logging
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests import tfx_testdata
from tests.estimator import moving_model
from tests.estimator.moving_model import BATCH, FORMS, MODES, OPTIMIZERS, SIZES, moved, trained
from tests.sweeps import mostly_swept
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


v1 = tf.compat.v1

ROUNDING = 3e-6
TWO_HOSTS = (16, 8, 2, 0, 16)


def _assert_equal(apart):
    assert apart.pop("seen") == 0
    assert apart["losses"] < 1e-6
    assert max(apart.values()) < ROUNDING, apart


@mostly_swept(
    ("sizes", "mode"),
    [
        ((4, 0, 2), "PER_HOST_V2"),
        ((0, 8, 2), "PER_HOST_V1"),
        *((sizes, mode) for sizes in (SIZES, (2, 16, 0)) for mode in MODES),
        *((TWO_HOSTS, mode) for mode in MODES[:3]),
    ],
    kept=[((4, 0, 2), "PER_HOST_V2")],
)
def test_it_reads_the_same_rows_whatever_its_cores(tmp_path, sizes, mode):
    _assert_equal(moved(tmp_path, sizes=sizes, mode=mode))


@pytest.mark.sweep
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("form", FORMS)
def test_each_optimizer_goes_on_in_each_form(tmp_path, optimizer, form):
    _assert_equal(moved(tmp_path, form=form, optimizer=optimizer))


@mostly_swept(
    "options",
    [
        {"read": moving_model.features_alone, "mode": "PER_HOST_V2"},
        {"read": moving_model.across, "across": True, "batch_axis": [0, 1, 0]},
    ],
    kept=[{"read": moving_model.features_alone, "mode": "PER_HOST_V2"}],
)
def test_a_batch_of_another_structure_is_put_together_too(tmp_path, options):
    _assert_equal(moved(tmp_path, sizes=(16, 4, 0), **options))


@pytest.mark.sweep
def test_replicas_of_several_cores_come_and_go_too(tmp_path):
    two_hosts = {"tpu_config": {"num_cores_per_replica": 8}, "mode": "PER_HOST_V2"}
    trained(tmp_path / "moved", 2, 5, **two_hosts)
    trained(tmp_path / "moved", 4, 10, mode="PER_HOST_V1")
    expected = trained(tmp_path / "stayed", 2, 10, **two_hosts)
    _assert_equal(moving_model.difference(trained(tmp_path / "moved", 4, 10), expected))


def _lines(caplog, folder, sizes, **options):
    caplog.set_level(logging.INFO, "tensorflow")
    for step, cores in enumerate(sizes, 1):
        caplog.clear()
        trained(folder, cores, step, **options)
    records = [each for each in caplog.records if "This training had" in each.getMessage()]
    return [(record.levelname, record.getMessage()) for record in records]


_LAYERS = {
    "batch norm": lambda x: v1.layers.batch_normalization(x, training=True, name="deep/norm"),
    "fused batch norm": lambda x: tf.keras.layers.BatchNormalization(name="deep")(
        x[:, None, None], training=True
    )[:, 0, 0],
    "dropout": lambda x: v1.layers.dropout(x, 0.3, training=True, name="deep/drop"),
    "keras dropout": lambda x: tf.keras.layers.Dropout(0.3, name="drop")(x, training=True),
    "layer norm": lambda x: tf.keras.layers.LayerNormalization()(x),
    "batch norm over cores": lambda x: (
        x / tf.sqrt(v1.tpu.cross_replica_sum(tf.nn.moments(x, [0])[1]) + 1.0)
    ),
}
_MOVED = "This training had 4 replicas of 4 rows and continues with 1 of 16 rows"


@mostly_swept(
    ("layer", "named"),
    [
        ("batch norm", "deep/norm (Mean) now normalizes over 16 rows of a replica instead of 4"),
        ("fused batch norm", "deep (FusedBatchNormV3) now normalizes over 16 rows"),
        ("dropout", "deep/drop (RandomUniform) draws other numbers"),
        ("keras dropout", "drop (RandomUniform) draws other numbers"),
        ("layer norm", ""),
        ("batch norm over cores", ""),
    ],
    kept=[("dropout", "deep/drop (RandomUniform) draws other numbers")],
)
def test_what_can_not_be_equal_is_named_in_one_line(tmp_path, caplog, layer, named):
    ((level, line),) = _lines(caplog, tmp_path, (4, 0), layer=_LAYERS[layer])
    assert line.startswith(_MOVED)
    assert level == ("WARNING" if named else "INFO")
    assert named in line


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("sizes", "lines"), [((4, 4), 0), ((1, 0), 0), ((4, 0, 0), 0), ((2, 4), 1)]
)
def test_the_line_comes_where_cores_have_changed(tmp_path, caplog, sizes, lines):
    assert len(_lines(caplog, tmp_path, sizes, layer=_LAYERS["dropout"])) == lines


@pytest.mark.sweep
def test_a_step_of_other_rows_is_another_training(tmp_path, caplog, monkeypatch):
    trained(tmp_path, 8, 2, mode="PER_HOST_V2")
    monkeypatch.setattr(moving_model, "BATCH", BATCH // 2)
    caplog.set_level(logging.WARNING, "tensorflow")
    trained(tmp_path, 8, 4, mode="PER_HOST_V2")
    assert "belongs to another input" in caplog.text
