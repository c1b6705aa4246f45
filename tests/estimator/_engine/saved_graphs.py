"""Checkpoints of a few variables, for tests of what reads them."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


def save(folder: Any, *steps: int, with_global_step: bool = True) -> str:
    """Saves `layer/weights`, two numbers, and the global step, at each of some steps.

    Returns:
        The path of the last checkpoint.
    """
    with fresh_graph():
        global_step = v1.train.get_global_step()
        weights = v1.get_variable("layer/weights", initializer=np.float32([1, 2]))
        saver = v1.train.Saver([weights, global_step] if with_global_step else [weights])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for step in steps:
                session.run(global_step.assign(step))
                session.run(weights.assign([step, step]))
                path = saver.save(session, str(folder / "model.ckpt"), global_step=step)
    return path
