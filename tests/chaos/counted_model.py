"""A pipeline's model that counts how often it sees each row, and reports its steps."""

import importlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tests.chaos.data import ROW
from tests.chaos.writes import report
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import LoopEndHook
from tfx_tpu_trainer.estimator.tpu import CrossShardOptimizer

v1 = tf.compat.v1

COUNTS = "rows_seen"
"""The variable that counts, in the checkpoint: float32 of shape [rows]."""


class _StepsReported(LoopEndHook):
    """Reports each step that hooks can see."""

    def begin(self) -> None:
        self._step = v1.train.get_global_step()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        del run_values
        # Not fetched with the steps: it would be read before they are counted, or after.
        report("step", int(run_context.session.run(self._step)))


def model_fn(features: Mapping[str, Any], labels: Any, mode: str, params: Mapping[str, Any]) -> Any:
    """The model of params['pipeline'], with the counts in addition.

    A gradient counts the rows, which several cores add up by themselves; it is exact if the rows of a batch are a power
    of two.
    """
    features = dict(features)
    rows = tf.reshape(features.pop(ROW), [-1])
    model = importlib.import_module(f"pipelines.{params['pipeline']}.model")
    spec = model.model_fn(features, labels, mode, params)
    if mode != "train":
        return spec
    counts = v1.get_variable(COUNTS, [params["rows"]], initializer=v1.zeros_initializer())
    counting: Any = v1.train.GradientDescentOptimizer(float(params["rows_per_step"]))
    if params.get("use_tpu"):
        counting = CrossShardOptimizer(counting)
    count = counting.minimize(-tf.reduce_mean(tf.gather(counts, rows)), var_list=[counts])
    return spec._replace(
        train_op=tf.group(spec.train_op, count),
        training_hooks=(*(spec.training_hooks or ()), _StepsReported()),
    )
