"""What is said of a long evaluation, and how one that does not end is ended, in every place."""

from __future__ import annotations

import time

import pytest
import tensorflow as tf

from tests.estimator import counting_model, stalled_training
from tests.estimator._engine.log_lines import log_lines
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator._engine.evaluating.rows_read import RefuseMoreRows, SayRowsRead


class TooManyError(Exception):
    """More rows than there can be."""


def _endless(params):
    rows = tf.data.Dataset.from_generator(
        lambda: iter(int, 1), output_signature=tf.TensorSpec((), tf.int64)
    )
    return counting_model.with_batches(rows, params)


def _slow(params):
    def late(batch):
        wait = tf.numpy_function(lambda row: time.sleep(0.02) or row, [batch["id"]], tf.int64)
        return {"id": tf.ensure_shape(wait, batch["id"].shape)}

    rows = tf.data.Dataset.range(80).map(lambda row: row % counting_model.ROWS)
    return counting_model.with_batches(rows, params).map(late)


@mostly_swept("place", ["host", "cores", "strategy"], kept=["host", "cores"])
def test_an_evaluation_of_more_rows_than_there_can_be_ends(tmp_path, place):
    estimator = stalled_training.make(tmp_path, place)
    hook = RefuseMoreRows(50, TooManyError, every_secs=0.05)
    with pytest.raises(TooManyError) as raised:
        estimator.evaluate(_endless, hooks=[hook])
    assert raised.value.args[0] > 50


def test_an_evaluation_within_the_limit_does_not_feel_it(tmp_path):
    estimator = stalled_training.make(tmp_path, "host")
    hook = RefuseMoreRows(80, TooManyError, every_secs=0.01)
    result = estimator.evaluate_result(_slow, hooks=[hook])
    assert result.num_examples == 80
    # The same hook may see several evaluations.
    assert estimator.evaluate_result(_slow, hooks=[hook]).num_examples == 80


def test_what_an_evaluation_has_read_is_said_from_time_to_time(tmp_path, caplog):
    class EachCall(tf.compat.v1.train.SessionRunHook):
        """Lets every batch be a call."""

        def before_run(self, run_context):
            """May look at the batch."""

    estimator = stalled_training.make(tmp_path, "host")
    with log_lines(caplog) as logged:
        estimator.evaluate(_slow, hooks=[SayRowsRead(0.1, 0.2), EachCall()])
    said = [line for line in logged if line.startswith("Evaluation has read")]
    assert said
    batches = [int(line.split()[3]) for line in said]
    assert batches == sorted(set(batches)) and 0 < batches[-1] <= 20
    assert said[0].startswith(
        f"Evaluation has read {batches[0]} batches ({4 * batches[0]} rows) in "
    )
    assert "evaluate(steps=...)" in said[0]
