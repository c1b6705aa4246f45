"""Tests for skew: an exported model answers raw rows as the estimator answers their transformed ones."""

from __future__ import annotations

import dataclasses

import apache_beam as beam
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tfx_bsl.public import tfxio

from tests.components.inputs.conftest import (
    LABEL,
    RAW_SPEC,
    instances,
    random_rows,
    raw_metadata,
    serialized,
)
from tfx_tpu_trainer.components.inputs import MISSING_INTEGER, TransformedInput, TransformServing
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.serving import load_serving

v1 = tf.compat.v1

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize(
        "transform_graph", [pytest.param("tf1", marks=pytest.mark.sweep), "tf2"], indirect=True
    ),
]

ROWS = 250
MISSING = {tf.string: b"", tf.float32: np.nan, tf.int64: MISSING_INTEGER}


def _model_fn(features, labels, mode, params):
    del params
    tags = tf.one_hot(tf.sparse.to_dense(features["tags_xf"], default_value=-1), 4)
    inputs = [tf.reduce_sum(tags, axis=1)]
    inputs += [tf.one_hot(features[f"{name}_xf"][:, 0], 4) for name in ("company", "payment")]
    inputs += [tf.cast(features[f"{name}_xf"], tf.float32) / 5 for name in ("miles", "fare")]
    inputs += [tf.cast(features[f"{name}_xf"], tf.float32) / 9 for name in ("stops", "hour")]
    inputs = tf.concat([tf.reshape(each, [-1, each.shape[-1]]) for each in inputs], axis=1)
    with v1.variable_scope("model"):
        kernel = v1.get_variable("kernel", [16, 1])
        bias = v1.get_variable("bias", [1])
    logits = tf.matmul(inputs, kernel) + bias
    if mode == "infer":
        return tpu.TPUEstimatorSpec(mode, predictions={"probability": tf.sigmoid(logits)})
    targets = tf.cast(tf.reshape(labels, [-1, 1]), tf.float32)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits))
    step = v1.train.get_or_create_global_step()
    train_op = v1.train.AdamOptimizer(0.1).minimize(loss, global_step=step)
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def _open(files, options, schema):
    reader = tfxio.TFExampleRecord(file_pattern=files, schema=schema, telemetry_descriptors=["t"])
    return reader.TensorFlowDataset(options)


def _write_transformed(rows, transform_graph, folder):
    """Runs Transform in Beam and writes its output, like the Transform component."""
    coder = tft.coders.ExampleProtoCoder(
        tft.TFTransformOutput(transform_graph).transformed_metadata.schema
    )
    context = tft_beam.Context(
        temp_dir=str(folder / "tmp"), force_tf_compat_v1="transform_tf1" in transform_graph
    )
    with beam.Pipeline() as pipeline, context:
        raw = pipeline | beam.Create(instances(rows))
        transform_fn = pipeline | tft_beam.ReadTransformFn(transform_graph)
        transformed, _ = ((raw, raw_metadata()), transform_fn) | tft_beam.TransformDataset()
        encoded = transformed | beam.Map(coder.encode)
        encoded | beam.io.WriteToTFRecord(str(folder / "rows"), num_shards=1)
    return str(folder / "rows*")


def _rows():
    """Random rows; the miles of no two are the same, since Beam keeps no order."""
    rows = random_rows(ROWS)
    for row, place in zip(rows, np.random.RandomState(3).permutation(ROWS)):
        row["miles"] = [float(np.float32(0.01 * (place + 1)))]
    return rows


@dataclasses.dataclass(frozen=True)
class _Both:
    """The rows in the order of their miles, what the estimator predicts, and the exported model."""

    rows: list
    expected: np.ndarray
    signatures: dict


@pytest.fixture(scope="module")
def both(transform_graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("skew")
    rows = _rows()
    split = TransformedInput(
        transform_graph_path=transform_graph,
        file_patterns=[_write_transformed(rows, transform_graph, folder)],
        dataset_factory=_open,
        label_key=LABEL,
    )
    estimator = tpu.TPUEstimator(
        _model_fn,
        model_dir=str(folder / "model"),
        config=tpu.RunConfig(tf_random_seed=5),
        use_tpu=False,
        train_batch_size=50,
        predict_batch_size=50,
        export_to_tpu=False,
    )
    estimator.train(split.train_fn(), max_steps=20)
    probability = np.array([row["probability"][0] for row in estimator.predict(split.eval_fn())])
    miles = np.concatenate([x["miles_xf"][:, 0] for x, _ in split.eval_fn()({"batch_size": 50})])
    assert len(set(miles)) == ROWS
    exported = estimator.export_saved_model(
        str(folder / "versions"),
        TransformServing(transform_graph_path=transform_graph, label_key=LABEL),
    )
    return _Both(
        rows=sorted(rows, key=lambda row: row["miles"]),
        expected=probability[np.argsort(miles)],
        signatures=load_serving(exported.decode()).signatures,
    )


def test_the_rows_miss_values_and_have_unseen_words(both):
    for name in ("tags", "stops", "payment", "hour"):
        assert sum(not row[name] for row in both.rows) > ROWS / 20, name
    for name, word in {"company": b"never seen", "payment": b"crypto", "tags": b"z"}.items():
        assert sum(word in row[name] for row in both.rows) > ROWS / 20, name
    assert len(np.unique(both.expected.round(6))) > ROWS / 2


def test_serialized_rows_without_a_label(both):
    examples = [serialized(row, without=["tips"]) for row in both.rows]
    found = both.signatures["serving_default"](examples=tf.constant(examples))
    np.testing.assert_allclose(found["probability"][:, 0], both.expected, rtol=0, atol=1e-6)


def test_named_raw_tensors(both):
    predict_raw = both.signatures["predict_raw"]
    inputs = {
        name: _as_tensor(both.rows, name, spec.shape.rank)
        for name, spec in predict_raw.structured_input_signature[1].items()
    }
    assert set(inputs) == set(RAW_SPEC) - {"tips", "unused"}
    found = predict_raw(**inputs)
    np.testing.assert_allclose(found["probability"][:, 0], both.expected, rtol=0, atol=1e-6)


def _as_tensor(rows, name, rank):
    dtype = RAW_SPEC[name].dtype
    width = max(1, *(len(row[name]) for row in rows))
    filled = [row[name] + [MISSING[dtype]] * (width - len(row[name])) for row in rows]
    return tf.constant([each[0] for each in filled] if rank == 1 else filled, dtype)
