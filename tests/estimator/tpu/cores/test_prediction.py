from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator._engine.templates import batches_of, make_template, settings_in
from tfx_tpu_trainer.estimator._engine.prediction import predict_batches
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.tpu.cores.layout import CoreLayout, InputMode, row_slices
from tfx_tpu_trainer.estimator.tpu.cores.prediction import (
    check_predictions,
    plan_prediction_on_cores,
)
from tfx_tpu_trainer.estimator.tpu.cores.short_batches import FiniteFeed

v1 = tf.compat.v1


@pytest.mark.parametrize("cores", [1, 2, 8])
@pytest.mark.parametrize("rows", [0, 1, 8, 13])
@pytest.mark.behaviour(222)
def test_each_batch_gives_its_rows_and_no_padding(tmp_path, cores, rows):
    with fresh_graph():
        inputs = batches_of(np.arange(rows), 8)
        slices = row_slices(InputMode.PER_HOST_V1, CoreLayout(cores, one_host=True))
        feed = FiniteFeed([inputs], slices, batch_axes=None, batch_size=8, padded=True)
        is_padding = v1.placeholder(tf.bool, [8 // cores])
        predictions = {"doubled": feed.features * 2, "padding": tf.identity(is_padding)}
        template = make_template("infer", predictions=predictions)
        plan = plan_prediction_on_cores(
            template,
            predictions,
            feed,
            is_padding,
            cores=cores,
            broadcast=False,
            for_cores=lambda copier: copier,
        )
    batches = list(
        predict_batches(
            plan, settings=settings_in(tmp_path), hooks=inputs.hooks, checkpoint_path=None
        )
    )
    assert [len(batch["doubled"]) for batch in batches] == [8] * (rows // 8) + [rows % 8] * (
        rows % 8 > 0
    )
    doubled = [value for batch in batches for value in batch["doubled"]]
    assert doubled == [2 * row for row in range(rows)]
    assert not any(batch["padding"].any() for batch in batches)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: tf.zeros([4]), TypeError, "predictions must be dict of Tensors"),
        (lambda: {"y": tf.zeros([])}, ValueError, r"key \(y\) .* but is a scalar"),
        (lambda: {"y": v1.placeholder(tf.float32, [None])}, ValueError, "has dynamic shape"),
        (
            lambda: {"a": tf.zeros([4]), "y": tf.zeros([4, 1 << 26])},
            ValueError,
            r"1073741840 bytes, which is too large .*'y': \(4, 67108864\)",
        ),
    ],
)
@pytest.mark.behaviour(231, 232, 233)
def test_predictions_that_cannot_come_from_cores(make, error, says):
    with fresh_graph(), pytest.raises(error, match=says):
        check_predictions(make())
