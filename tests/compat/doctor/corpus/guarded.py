"""A program for several versions: it has the edits already."""
try:
    import tensorflow.compat.v1 as tf
except ImportError:
    import tensorflow as tf
try:
    from tensorflow.contrib import tpu  #: note tf.contrib.tpu
except ImportError:
    from tensorflow.compat.v1 import tpu

assert tf.train.AdamOptimizer
assert tpu.CrossShardOptimizer
