"""The original: `tf.compat.v1.estimator.tpu.TPUEstimator` of TensorFlow 2.15.1, on the host."""

from __future__ import annotations

import tensorflow as tf

from benchmarks.estimator_runner import EstimatorRunner
from benchmarks.plan import Request


def make(request: Request) -> EstimatorRunner:
    tpu = tf.compat.v1.estimator.tpu
    return EstimatorRunner(tpu, request, save_summary_steps=request.plan.summary_steps)
