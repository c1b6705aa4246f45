from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.engine.event_files import read_values
from tfx_tpu_trainer.engine.evaluating.evaluation import EvalResult
from tfx_tpu_trainer.engine.evaluating.evaluation_events import write_evaluation_events

v1 = tf.compat.v1


def _result(metrics: dict, *, step: int = 40, checkpoint: str | None = None) -> EvalResult:
    return EvalResult(
        metrics={**metrics, "global_step": np.int64(step)},
        loss_by_rows=0.5,
        num_examples=10,
        global_step=step,
        checkpoint_path=checkpoint,
        seconds=1.0,
    )


def _written(folder, *results: EvalResult) -> dict:
    with tf.Graph().as_default():
        for result in results:
            write_evaluation_events(result, output_dir=str(folder))
    return read_values(folder)


@pytest.mark.parametrize(
    "value", [np.float32(0.25), np.float64(0.25), 0.25, np.int64(3), np.int32(3), 3]
)
def test_b215_numbers_are_scalars_at_the_checkpoints_step(tmp_path, value):
    assert _written(tmp_path, _result({"m": value})) == {"m": {40: value}}


def test_b215_arrays_are_tensors(tmp_path):
    array = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    np.testing.assert_array_equal(_written(tmp_path, _result({"m": array}))["m"][40], array)


def test_b215_serialized_summaries_are_split(tmp_path):
    parts = [v1.Summary.Value(tag="any", simple_value=value) for value in (1.0, 2.0)]
    values = _written(tmp_path, _result({"m": v1.Summary(value=parts).SerializeToString()}))
    assert values == {"m/0": {40: 1}, "m/1": {40: 2}}


def test_b215_what_cannot_be_shown_is_left_out(tmp_path):
    metrics = {"loss": np.float32(1), "nested": (np.float32(1), np.float32(2)), "none": None}
    assert _written(tmp_path, _result(metrics)) == {"loss": {40: 1}}


def test_b216_the_checkpoints_path_is_written_as_text(tmp_path):
    values = _written(tmp_path, _result({}, checkpoint="folder/model.ckpt-40"))
    assert values == {"checkpoint_path": {40: b"folder/model.ckpt-40"}}


def test_evaluations_of_one_folder_follow_each_other(tmp_path):
    results = [_result({"m": 1.0}, step=1), _result({"m": 2.0}, step=2)]
    assert _written(tmp_path, *results) == {"m": {1: 1, 2: 2}}
