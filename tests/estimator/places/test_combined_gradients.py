from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.places.combined_gradients import check_gradients_are_combined

v1 = tf.compat.v1


@pytest.mark.behaviour(191)
def test_gradients_must_be_combined_functions_count_too():
    with fresh_graph() as graph:
        x = tf.constant(1.0)
        with pytest.raises(ValueError, match="CrossShardOptimizer must be used"):
            check_gradients_are_combined(graph)
        tf.cond(x > 0, lambda: v1.tpu.cross_replica_sum(x), lambda: x)
        check_gradients_are_combined(graph)
