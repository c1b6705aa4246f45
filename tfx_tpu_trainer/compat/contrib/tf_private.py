"""TensorFlow names without a public alias that contrib's parts need.

| name | why | if it goes away |
|---|---|---|
| `tensorflow.python.util.nest` | it is `tf.contrib.framework.nest`: `tf.nest` lacks `map_structure_up_to`, `flatten_up_to` and others | rewrite them with `tf.nest` |
| `data_flow_ops.StagingArea` | it is `tf.contrib.staging.StagingArea` | write it on `tf.raw_ops.Stage` and `Unstage` |
| `training.evaluation`'s hook, step and `_evaluate_once` | they are `tf.contrib.training`'s `StopAfterNEvalsHook`, \
`get_or_create_eval_step` and `evaluate_once` | write them on `MonitoredSession` |
"""

from tensorflow.python.ops.data_flow_ops import StagingArea
from tensorflow.python.training.evaluation import _evaluate_once as evaluate_once
from tensorflow.python.training.evaluation import (
    _get_or_create_eval_step as get_or_create_eval_step,
)
from tensorflow.python.training.evaluation import _StopAfterNEvalsHook as StopAfterNEvalsHook
from tensorflow.python.util import nest

__all__ = [
    "StagingArea",
    "StopAfterNEvalsHook",
    "evaluate_once",
    "get_or_create_eval_step",
    "nest",
]
