"""The pattern matcher of `tf.contrib.quantize`; it rewrites no graphs."""

from tfx_tpu_trainer.compat.contrib.quantize import graph_matcher

__all__ = ["graph_matcher"]
