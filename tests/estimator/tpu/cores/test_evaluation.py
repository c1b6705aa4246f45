from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator._engine.templates import batches_of, make_template, settings_in
from tests.op_determinism import deterministic_ops
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation import evaluate
from tfx_tpu_trainer.estimator._engine.template import HostFunction
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.tpu.cores.evaluation import plan_evaluation_on_cores
from tfx_tpu_trainer.estimator.tpu.cores.layout import CoreLayout, InputMode, row_slices
from tfx_tpu_trainer.estimator.tpu.cores.short_batches import FiniteFeed

v1 = tf.compat.v1


def _evaluate(folder, rows: int, *, cores: int, batch: int = 8, steps=None, metric_fn=None):
    values = np.arange(rows)
    with fresh_graph():
        inputs = batches_of(values, batch)
        slices = row_slices(InputMode.PER_HOST_V1, CoreLayout(cores, one_host=True))
        feed = FiniteFeed([inputs], slices, batch_axes=None, batch_size=batch)
        metrics = HostFunction(
            "eval_metrics",
            metric_fn or (lambda x: {"sum": v1.metrics.mean(x)}),
            [feed.features],
        )
        template = make_template("eval", loss=tf.reduce_mean(feed.features), eval_metrics=metrics)
        plan = plan_evaluation_on_cores(
            template,
            feed,
            cores=cores,
            broadcast=False,
            steps=steps,
            for_cores=lambda copier: copier,
        )
        return evaluate(
            plan, settings=settings_in(folder), hooks=inputs.hooks, checkpoint_path=None
        )


@pytest.mark.parametrize("cores", [1, 2, 8])
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 24])
def test_every_row_counts_once(tmp_path, cores, rows):
    result = _evaluate(tmp_path, rows, cores=cores)
    mean = np.mean(np.arange(rows))
    assert result.num_examples == rows
    assert result.metrics["loss"] == pytest.approx(mean, rel=1e-6)
    assert result.metrics["sum"] == pytest.approx(mean, rel=1e-6)
    assert result.loss_by_rows == pytest.approx(mean, rel=1e-6)


def test_it_evaluates_with_deterministic_ops(tmp_path):
    with deterministic_ops():
        assert _evaluate(tmp_path, 9, cores=2).num_examples == 9


@pytest.mark.behaviour(208)
def test_steps_limit_the_batches(tmp_path):
    assert _evaluate(tmp_path, 100, cores=2, steps=3).num_examples == 24


def test_no_batch_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="received no batch"):
        _evaluate(tmp_path, 0, cores=2)


def test_metrics_that_are_no_mapping_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"^eval_metric_ops must be a dict, given: "):
        _evaluate(tmp_path, 8, cores=2, metric_fn=lambda x: [x])
