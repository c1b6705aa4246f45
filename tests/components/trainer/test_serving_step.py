"""Tests what the trainer does with an exported model before it can be pushed."""

from __future__ import annotations

import glob
import logging
import os
import re

import pytest
import tensorflow as tf

from tests import tfx_testdata
from tests.components.trainer import small_model
from tests.components.trainer.execution import Execution
from tfx_tpu_trainer.serving import (
    ServingCheckError,
    describe_saved_model,
    read_serving_check,
    read_warmup,
)

ANSWERS = "serve: answers as the estimator predicts"


def _raw_rows(count):
    """Returns the raw eval rows in the tfx wheel, next to the transformed ones."""
    paths = sorted(glob.glob(os.path.join(tfx_testdata.RAW_EXAMPLES, "Split-eval", "*.gz")))
    data = tf.data.TFRecordDataset(paths, compression_type="GZIP").take(count)
    return [record.numpy() for record in data]


def _warmup_rows(execution):
    requests = [log.predict_log.request for log in read_warmup(execution.serving_dir)]
    return [(r.model_spec.signature_name, list(r.inputs["examples"].string_val)) for r in requests]


def _module(tmp_path, body):
    path = tmp_path / "edited_model.py"
    path.write_text(
        f"import tensorflow as tf\nfrom {small_model.__name__} import model_fn as good, params\n{body}"
    )
    return {"module": None, "module_file": str(path)}


# The answers of this one can't be foreseen.
RANDOM_MODEL = """
def model_fn(features, labels, mode, params):
    spec = good(features, labels, mode, params)
    if mode != 'infer':
        return spec
    noise = tf.random.uniform([], 1.0, 2.0)
    return spec._replace(predictions={k: v * noise for k, v in spec.predictions.items()})
"""


@pytest.mark.e2e
def test_raw_examples_warm_the_model_up_and_check_it(tmp_path):
    execution = Execution.of_trainer(
        tmp_path,
        steps=3,
        serving_check="error",
        serving_model_name="taxi",
        warmup_batch_sizes="[1,8]",
    )
    execution.add_raw_examples()
    execution.run()
    report = read_serving_check(execution.model.uri)
    outcomes = {check.name: check.outcome for check in report.checks}
    assert report.passed and set(outcomes.values()) == {"passed"}, report.summary()
    assert "serve, tpu: compiles" in outcomes
    (answers,) = [check.detail for check in report.checks if check.name == ANSWERS]
    # Both ways in, the same 32 rows.
    assert "predict_raw['probabilities']" in answers and "serving_default['logits']" in answers
    assert ": 32 rows, largest difference" in answers
    # The TPU's metagraph has no predict_raw, so a server that loads it must not get a request for it.
    assert _warmup_rows(execution) == [
        ("serving_default", _raw_rows(1)),
        ("serving_default", _raw_rows(8)),
    ]
    with open(os.path.join(execution.model.uri, "serving_config", "model.config")) as file:
        assert 'name: "taxi"' in file.read()


@pytest.mark.matrix
@pytest.mark.e2e
def test_a_model_that_answers_otherwise_fails_the_training(tmp_path):
    execution = Execution.of_trainer(
        tmp_path, steps=2, serving_check="error", export_to_tpu=0, **_module(tmp_path, RANDOM_MODEL)
    )
    with pytest.raises(ServingCheckError, match=r"predict.*differs by .*serving_check='warn'"):
        execution.run()
    assert execution.files() == []
    assert glob.glob(str(tmp_path / "model_run" / "model.ckpt*"))


# Besides, its answers are strings, which no TPU handles.
RANDOM_STRINGS = f"""{RANDOM_MODEL}
random_model_fn = model_fn
def model_fn(features, labels, mode, params):
    spec = random_model_fn(features, labels, mode, params)
    if mode != 'infer': return spec
    texts = tf.as_string(spec.predictions['logits'])
    return spec._replace(predictions={{**spec.predictions, 'texts': texts}})
"""
NAMES_THE_LINE = (
    r"AsString 'AsString', which handles strings \(.*edited_model\.py:\d+: texts = .*outside_"
)


@pytest.mark.e2e
def test_strings_on_a_tpu_that_was_asked_for_are_refused(tmp_path):
    execution = Execution.of_trainer(
        tmp_path, steps=2, export_to_tpu=1, **_module(tmp_path, RANDOM_STRINGS)
    )
    with pytest.raises(ValueError, match=NAMES_THE_LINE):
        execution.run()
    assert execution.files() == []


@pytest.mark.e2e
def test_warn_lets_it_pass_for_cpu_hosts_where_nobody_has_asked_for_a_tpu(tmp_path, caplog):
    execution = Execution.of_trainer(
        tmp_path, steps=2, serving_check="warn", **_module(tmp_path, RANDOM_STRINGS)
    )
    with caplog.at_level(logging.WARNING):
        execution.run()
    (check,) = read_serving_check(execution.model.uri).failures
    assert check.name == ANSWERS
    assert "serving_check='warn': the exported model fails its check" in caplog.text
    (meta_graph,) = describe_saved_model(execution.serving_dir)
    assert meta_graph.tags == ("serve",)
    assert not os.path.exists(
        os.path.join(execution.model.uri, "serving_config", "batching_parameters_tpu.txt")
    )
    (told,) = [each.message for each in caplog.records if "CPU hosts only" in each.message]
    assert re.search(NAMES_THE_LINE, told)
