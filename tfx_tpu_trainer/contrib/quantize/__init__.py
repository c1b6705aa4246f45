"""What `tf.contrib.quantize` found patterns in graphs with; it rewrites no graph here."""

from tfx_tpu_trainer.contrib.quantize import graph_matcher

__all__ = ["graph_matcher"]
