"""What a preflight takes of a TPUEstimator: its batch axes, embeddings and host call."""

from __future__ import annotations

import tensorflow as tf

from tests.estimator.tpu.embedding import embedded
from tests.preflight.lowered import CHECK_ONLY
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.tpu import experimental
from tfx_tpu_trainer.preflight import preflight

v1 = tf.compat.v1

ROWS, COLUMNS = 64, 32


def _report(estimator, input_fn, steps=("train",), batch_size=ROWS):
    report = preflight(
        estimator,
        input_fn,
        tpu="v5e:2x4",
        batch_size=batch_size,
        steps=steps,
        options=CHECK_ONLY,
    )
    assert report.ok, report.summary()
    return report


def test_rows_stand_along_the_batch_axis(tmp_path):
    shapes = []

    def model_fn(features, labels, mode, params):
        shapes.append((features.shape.as_list(), labels.shape.as_list(), params["batch_size"]))
        kernel = v1.get_variable("kernel", [COLUMNS, 1])
        error = tf.matmul(features, kernel, transpose_a=True)[:, 0] - labels
        loss = tf.reduce_mean(tf.square(error))
        optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn(params):
        rows = params["batch_size"]
        batch = tf.zeros([COLUMNS, rows]), tf.zeros([rows])
        return tf.data.Dataset.from_tensors(batch).repeat()

    estimator = tpu.TPUEstimator(
        model_fn,
        config=tpu.RunConfig(model_dir=str(tmp_path)),
        train_batch_size=ROWS,
        batch_axis=[1, 0],
    )
    (train,) = _report(estimator, input_fn).steps
    assert shapes == [([COLUMNS, ROWS // 8], [ROWS // 8], ROWS // 8)]
    assert train.collective_bytes == 4 * COLUMNS


def test_the_tables_of_embeddings_stand_beside_the_program(tmp_path):
    spec = experimental.EmbeddingConfigSpec(embedded.columns(), experimental.AdagradParameters(0.1))
    estimator = embedded.estimator(tpu, tmp_path, spec, embedded.model_fn_for(tpu), cores=8)
    report = _report(estimator, embedded.input_fn, ["train", "predict"], batch_size=embedded.BATCH)
    train, predict = report.steps
    # The output's weights: two embeddings side by side. No table is a variable of the program.
    assert train.parameter_count == predict.parameter_count == 2 * embedded.DIMENSION
    # Beside them the global step, and a number by which the engine taps the gradients.
    assert train.variable_bytes == 4 * 2 * embedded.DIMENSION + 8 + 4
    received = {each.op_name for each in train.largest if each.op_name.startswith("embedded ")}
    assert received == {"embedded 'tag'", "embedded 'word'"}
    # Adagrad keeps a number for each weight of a table.
    tables = 4 * (embedded.WORDS + embedded.TAGS) * embedded.DIMENSION
    messages = {
        step: finding.message
        for finding in report.findings
        for step in report.findings[finding]
        if finding.kind == "embedding"
    }
    assert f"optimizer slots take {2 * tables} bytes: {2 * tables // 8} " in messages["train"]
    assert f"take {tables} bytes" in messages["predict"]


def test_a_host_call_with_summaries(tmp_path):
    def host_call(loss, step):
        raise AssertionError("its body runs on the host, where nothing runs")

    def model_fn(features, labels, mode, params):
        kernel = v1.get_variable("kernel", [COLUMNS, 1])
        loss = tf.reduce_mean(tf.square(tf.matmul(features, kernel)[:, 0] - labels))
        optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        step = v1.train.get_global_step()
        return tpu.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss, step),
            host_call=(host_call, [tf.reshape(loss, [1]), tf.reshape(step, [1])]),
        )

    def input_fn(params):
        row = tf.zeros([COLUMNS]), tf.zeros([])
        return tf.data.Dataset.from_tensors(row).repeat().batch(params["batch_size"], True)

    config = tpu.RunConfig(model_dir=str(tmp_path))
    estimator = tpu.TPUEstimator(model_fn, config=config, train_batch_size=ROWS)
    report = _report(estimator, input_fn)
    (finding,) = [each for each in report.findings if each.kind == "host_op"]
    assert finding.message.startswith("host_call runs on the host: 2 tensors per core")
    assert not any(tmp_path.iterdir())
