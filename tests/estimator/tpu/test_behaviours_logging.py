"""Logging and summaries: group U of behaviours.md."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator._engine.event_files import read_values
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1

pytestmark = pytest.mark.matrix


@mostly_swept(
    ("loop", "every", "steps"),
    [(1, 1, [1, 2, 3, 4, 5, 6]), (4, 1, [4, 6]), (4, 0, [])],
    kept=[(4, 1, [4, 6]), (4, 0, [])],
)
@pytest.mark.behaviour(389)
def test_the_loss_is_in_the_events_every_save_summary_steps(tmp_path, loop, every, steps):
    estimator = on_cores.linear(tmp_path, loop=loop, save_summary_steps=every)
    estimator.train(on_cores.train_input_fn, steps=6)
    shown = read_values(tmp_path).get("loss", {})
    losses, *_ = on_cores.descended(6)
    assert sorted(shown) == steps
    assert [shown[step] for step in steps] == pytest.approx(
        [losses[step - 1] for step in steps], rel=1e-4
    )


@pytest.mark.behaviour(398)
def test_v2_summaries_of_the_computation_are_those_of_the_first_core(tmp_path):
    folder = str(tmp_path / "summaries")

    def model_fn(features, labels, mode, params):
        step = v1.train.get_global_step().read_value()
        with tf.control_dependencies([step]):
            spec = linear_model.model_fn_for(tpu)(features, labels, mode, params)
        with tf.summary.create_file_writer(folder).as_default(step):
            tf.summary.scalar("x", tf.reduce_mean(features["x"]))
        written = v1.summary.all_v2_summary_ops()
        return spec._replace(train_op=tf.group(spec.train_op, *written))

    estimator = on_cores.make(tmp_path, model_fn, cores=2)
    estimator.train(on_cores.train_input_fn, steps=3)
    shown = read_values(folder)["x"]
    batches = linear_model.batches(on_cores.BATCH, epochs=2)[:3]
    expected = {step: x[: on_cores.BATCH // 2].mean() for step, (x, _) in enumerate(batches)}
    assert shown == pytest.approx(expected, rel=1e-4)
