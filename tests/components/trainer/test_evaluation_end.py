"""Tests endless evaluation inputs of a module: rejected before the training, or as soon as they show."""

from __future__ import annotations

import json
import os

import pytest
import tensorflow as tf
import tensorflow_model_analysis as tfma

from tests import tfx_testdata
from tests.bad_input import row
from tests.components.trainer.execution import Execution, examples_of, records
from tests.estimator import counting_model, stalled_training
from tests.estimator._engine.log_lines import log_lines
from tfx_tpu_trainer.components.evaluation import read_eval_metrics
from tfx_tpu_trainer.components.trainer.legacy.training_spec import TrainingSpec
from tfx_tpu_trainer.components.trainer.rows import EndlessEvaluationError, RowLimit, count_records
from tfx_tpu_trainer.components.trainer.slicing import Slicing
from tfx_tpu_trainer.estimator import EvalSpec, TrainSpec

# The end of a module: {data} makes an input of batches from the transformed rows of one pass.
_MODULE = """
import tensorflow as tf
import tensorflow_transform as tft
from tests.components.trainer.small_model import model_fn, params

def input_fn(params, mode, fn_args):
    files = fn_args.train_files if mode == "train" else fn_args.eval_files
    spec = tft.TFTransformOutput(fn_args.transform_graph_path).transformed_feature_spec()
    paths = [path for pattern in files for path in tf.io.gfile.glob(pattern)]
    def parse(rows):
        features = tf.io.parse_example(rows, spec)
        return features, features["tips_xf"]
    rows = tf.data.TFRecordDataset(paths, compression_type="GZIP")
    batches = rows.batch(params["batch_size"], drop_remainder=mode == "train").map(parse)
    if mode == "train":
        return batches.repeat()
    return {data}
"""

# TensorFlow can't tell that it has no end.
_SECRETLY_ENDLESS = "tf.data.Dataset.range(2**40).flat_map(lambda _: batches)"


_ROWS = 300


@pytest.fixture(scope="module")
def few_rows(tmp_path_factory):
    """The first rows of both splits."""
    splits = {split: records(split, _ROWS) for split in ("train", "eval")}
    return examples_of(tmp_path_factory.mktemp("few_rows"), **splits)


def _execution(folder, data, rows, **properties):
    folder.mkdir(exist_ok=True)
    path = folder / "own_input.py"
    path.write_text(_MODULE.format(data=data))
    properties = {"module": None, "module_file": str(path), "label_key": None, **properties}
    execution = Execution.of_trainer(folder, steps=5, eval_batch_size=100, **properties)
    execution.inputs["examples"] = [rows]
    return execution


@row(
    "modules",
    "an eval input_fn that repeats forever, and no `eval_args.num_steps`",
    "eval_args.num_steps is None, and the input of the evaluation never ends (it repeats): give "
    "TpuTrainer(eval_args=tfx.proto.EvalArgs(num_steps=...)), or let the input end after one pass",
)
def test_an_input_that_repeats_for_ever_is_refused_before_the_training(tmp_path, few_rows, refused):
    execution = _execution(tmp_path, "batches.repeat()", few_rows)
    with refused(EndlessEvaluationError):
        execution.run()
    assert execution.files() == []
    assert os.listdir(execution.outputs["model_run"][0].uri) == []


@pytest.mark.e2e
@row(
    "modules",
    "an eval input_fn that yields without end, and no `eval_args.num_steps`",
    "the evaluation of split 'eval' has read",
    "rows, more than 10 times the",
    "in its files, and the input does not end: give "
    "TpuTrainer(eval_args=tfx.proto.EvalArgs(num_steps=...))",
)
def test_an_input_that_does_not_tell_ends_the_evaluation_and_the_next_attempt_need_not_train(
    tmp_path, few_rows, refused, caplog
):
    root = {"checkpoint_root": str(tmp_path / "checkpoints"), "export_to_tpu": 0}
    execution = _execution(tmp_path / "first", _SECRETLY_ENDLESS, few_rows, **root)
    with refused(EndlessEvaluationError) as raised:
        execution.run()
    assert f"10 times the {_ROWS} in its files" in str(raised.value)
    assert execution.files() == []
    root["eval_args"] = '{"num_steps": 2}'
    again = _execution(tmp_path / "again", _SECRETLY_ENDLESS, few_rows, **root)
    with log_lines(caplog) as logged:
        again.run()
    assert "Skipping training since max_steps has already saved." in logged
    metrics = read_eval_metrics(again.model.uri)
    assert (metrics.num_examples, metrics.global_step) == (200, 5)


@pytest.mark.e2e
def test_an_input_that_ends_may_read_its_split_several_times(tmp_path, few_rows):
    execution = _execution(tmp_path, "batches.repeat(3)", few_rows, export_to_tpu=0)
    execution.run()
    assert read_eval_metrics(execution.model.uri).num_examples == 3 * _ROWS


def test_slices_of_an_endless_input_are_refused_while_they_are_counted():
    def endless():
        rows = tf.data.Dataset.range(8).batch(4).map(lambda ids: {"id": ids})
        return tf.data.Dataset.range(2**40).flat_map(lambda _: rows)

    with pytest.raises(EndlessEvaluationError, match="split 'eval' has read 84 rows, more than 10"):
        Slicing.find(
            [tfma.SlicingSpec(feature_keys=["id"])],
            endless,
            max_slices=3,
            label_key=None,
            check_read=RowLimit("eval", 8).check,
        )


def test_the_evaluations_of_a_legacy_module_are_limited_too(tmp_path):
    def endless(params):
        rows = tf.data.Dataset.range(2**40).flat_map(lambda _: tf.data.Dataset.range(8))
        return counting_model.with_batches(rows, params)

    def spec(steps):
        return TrainingSpec(
            estimator=stalled_training.make(tmp_path, "host"),
            train_spec=TrainSpec(endless, max_steps=1),
            eval_spec=EvalSpec(endless, steps=steps),
            eval_input_receiver_fn=lambda: None,
        )

    limited = spec(None).with_row_limit(RowLimit("eval", 8))
    with pytest.raises(EndlessEvaluationError, match="split 'eval' has read"):
        limited.estimator.evaluate(endless, hooks=limited.eval_spec.hooks)
    # Who gives a number of batches may have as many as that.
    assert not spec(100).with_row_limit(RowLimit("eval", 8)).eval_spec.hooks


def test_files_that_hold_no_records_give_no_limit(tmp_path):
    assert count_records([tfx_testdata.files("eval")]) == tfx_testdata.ROWS["eval"]
    (tmp_path / "rows.parquet").write_bytes(b"PAR1" + json.dumps(list(range(50))).encode())
    assert count_records([f"{tmp_path}/*"]) is None
    assert count_records([f"{tmp_path}/none*"]) is None
