"""Replaces `tf.contrib.tfprof`, without the profiler, which is in `tf.compat.v1.profiler`."""

from tfx_tpu_trainer.compat.contrib.tfprof import model_analyzer

__all__ = ["model_analyzer"]
