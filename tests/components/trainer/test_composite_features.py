"""Tests ragged and sparse features in every part of a training: checks, input, slices, export, sample, warm-up."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.components.trainer import composite_rows
from tests.components.trainer.composite_rows import raw_row
from tests.components.trainer.test_serving_step import ANSWERS
from tfx_tpu_trainer.components.evaluation._eval_metrics import read_eval_metrics
from tfx_tpu_trainer.serving import (
    ServingCheckError,
    describe_saved_model,
    load_serving,
    read_serving_check,
    read_warmup,
)

ROWS = [raw_row(number) for number in range(composite_rows.ROWS["eval"])]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("composite")
    composite_rows.write(folder)
    return folder


@pytest.mark.matrix
@pytest.mark.e2e
def test_a_training_on_the_host_takes_them_everywhere(data, tmp_path, caplog):
    # A raw ragged one, so the rows are transformed as they are read, and a transformed one.
    specs = [{"feature_keys": ["a_words"]}, {"feature_keys": ["counts_xf"]}]
    execution = composite_rows.execution(
        data, tmp_path, steps=12, serving_check="error", slicing_specs=json.dumps(specs)
    )
    with caplog.at_level(logging.INFO):
        execution.run()
    # Two epochs and more.
    assert "Parsed the training input in" in caplog.text
    metrics = read_eval_metrics(execution.model.uri)
    for name, key, added in (("a_words", "a_words", b""), ("counts_xf", "counts", 1)):
        for value in (b"w0", b"w1") if name == "a_words" else (1, 2, 3):
            of_rows = [
                each["x"][0] for each in ROWS if value in [other + added for other in each[key]]
            ]
            shown = value.decode() if isinstance(value, bytes) else value
            found = metrics.of_slice(((name, shown),))
            np.testing.assert_allclose(found["mean_x"], np.mean(of_rows), rtol=1e-5)
    report = read_serving_check(execution.model.uri)
    assert [(check.name, check.outcome) for check in report.checks] == [(ANSWERS, "passed")]
    assert "serving_default['logits']: 13 rows" in report.checks[0].detail
    (warmup,) = read_warmup(execution.serving_dir)
    examples = warmup.predict_log.request.inputs["examples"].string_val
    assert tf.train.Example.FromString(examples[0]).features.feature["x"].float_list.value
    (meta_graph,) = describe_saved_model(execution.serving_dir)
    # A ragged raw feature is not a plain tensor.
    assert set(meta_graph.signatures) == {"serving_default", "transform_features"}
    (told,) = [each.getMessage() for each in caplog.records if "CPU hosts only" in each.message]
    for part in (
        "can't take the ragged features 'a_ids', 'counts_xf' and the sparse feature 'tag_ids'",
        "pad ragged ones (to_tensor(shape=[None, n]))",
        "make sparse ones dense (tft.sparse_tensor_to_dense_with_shape)",
        "export_to_tpu=False",
    ):
        assert part in told
    _check_transform_features(execution.serving_dir)


def _check_transform_features(path):
    """Checks the stock Evaluator's input: dense, padded with zeros."""
    record = composite_rows.raw_records("eval")[5]
    transformed = load_serving(path).signatures["transform_features"](tf.constant([record]))
    row = ROWS[5]
    assert transformed["counts_xf"].numpy().tolist() == [[each + 1 for each in row["counts"]]]
    assert transformed["a_ids"].shape[1] == len(row["a_words"])
    assert transformed["label"].numpy().tolist() == [row["label"]]


@row(
    "component",
    "`TpuTrainer(export_to_tpu=True)` of a model that no TPU can run",
    "Nothing was trained: the exported model would fail its check: serve, tpu: compiles: ",
    "can't take the ragged features 'a_ids', 'counts_xf' and the sparse feature 'tag_ids'",
    "pad ragged ones (to_tensor(shape=[None, n]))",
    "make sparse ones dense (tft.sparse_tensor_to_dense_with_shape)",
    "export_to_tpu=False; or let it pass with serving_check='warn'",
)
def test_a_graph_for_tpus_that_was_asked_for_is_refused_before_the_training(
    data, tmp_path, refused
):
    execution = composite_rows.execution(
        data, tmp_path, steps=12, export_to_tpu=1, serving_check="error"
    )
    with refused(ServingCheckError):
        execution.run()
    assert execution.files() == [] and not list((tmp_path / "model_run").glob("model.ckpt*"))


@row(
    "component",
    "`TpuTrainer(use_tpu=True)` of ragged features",
    "RaggedTensor inputs can't be passed to TPU cores: features['a_ids'], int64",
    "in Transform",
)
def test_cores_refuse_them_before_the_training(data, tmp_path, refused):
    execution = composite_rows.execution(
        data, tmp_path, steps=12, use_tpu=1, master="emulated", num_shards=2
    )
    with refused(ValueError):
        execution.run()
    assert not list((tmp_path / "model_run").glob("model.ckpt*"))
