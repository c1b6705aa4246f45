"""A model that has diverged is neither published nor exported."""

from __future__ import annotations

import math
import os
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.components.trainer.execution import Execution
from tfx_tpu_trainer.components.evaluation import EvalMetrics
from tfx_tpu_trainer.components.trainer.artifacts import ModelDivergedError, check_finite

v1 = tf.compat.v1


@pytest.fixture
def checkpoint(tmp_path):
    """Writes variables as a checkpoint."""

    def write(**values):
        with tf.Graph().as_default(), v1.Session() as session:
            for name, value in values.items():
                v1.get_variable(name, initializer=value)
            session.run(v1.global_variables_initializer())
            return v1.train.Saver().save(session, str(tmp_path / "model.ckpt"), 7)

    return write


def _bfloat16(values):
    return np.array(values, tf.bfloat16.as_numpy_dtype)


def _metrics(checkpoint=None, **overall):
    return EvalMetrics({"loss": 0.5, **overall}, global_step=7, checkpoint=checkpoint)


def test_a_sound_model_passes(checkpoint):
    path = checkpoint(kernel=np.float32([1.5]), word=np.array(["a"]), step=np.int64(7))
    check_finite(_metrics(path, recall=math.nan))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_variables_that_are_not_finite_are_named_and_counted(checkpoint, value):
    values = np.ones([40, 50], np.float32)
    values[3, :4] = value
    path = checkpoint(good=np.float32(1), kernel=values, half=_bfloat16([value]))
    message = (
        "the model has diverged by step 7, and is not exported: half (1 of 1 values are NaN or "
        f"Inf), kernel (4 of 2,000 values are NaN or Inf) in {path}. Lower the learning rate"
    )
    with pytest.raises(ModelDivergedError) as caught:
        check_finite(_metrics(path))
    assert str(caught.value).startswith(message)


def test_of_many_variables_the_first_are_named(checkpoint):
    path = checkpoint(**{f"v{i}": np.float32(math.nan) for i in range(8)})
    with pytest.raises(ModelDivergedError, match=r"v4 \(1 of 1 .*\) and 3 more variables in"):
        check_finite(_metrics(path))


@pytest.mark.parametrize(
    ("overall", "said"),
    [({"loss": math.nan}, "loss is nan"), ({"perplexity": math.inf}, "perplexity is inf")],
)
@row(
    "eval_metrics",
    "a model whose loss is NaN or whose metric is infinite: not exported",
    "not exported: ",
)
def test_metrics_that_are_not_finite_are_told_without_a_checkpoint(overall, said, refused):
    with refused(ModelDivergedError) as raised:
        check_finite(_metrics(**overall))
    assert re.search(f"not exported: {said}. Lower", str(raised.value))


@pytest.mark.e2e
@row(
    "eval_metrics",
    "a model whose variables are NaN: not exported",
    "has diverged by step 1, and is not exported",
)
def test_nothing_of_it_is_exported(tmp_path, refused):
    # The one step has a finite loss, and leaves variables that are not.
    rate = '{"learning_rate": 1e39}'
    execution = Execution.of_trainer(tmp_path, steps=1, params=rate)
    with refused(ModelDivergedError):
        execution.run()
    assert os.listdir(execution.model.uri) == []
    assert os.listdir(execution.outputs["evaluation"][0].uri) == []
