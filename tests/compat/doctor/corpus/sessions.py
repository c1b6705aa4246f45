"""A session of the program's own, loops of Python 2, and an alias in place of an import."""
import numpy as np
import tensorflow as tf  #: fix import tensorflow as tf -> import tensorflow.compat.v1 as tf

flags = tf.flags

x = tf.placeholder(tf.float32, [None, 2])
kept = tf.nn.dropout(x, 0.999999)  # keep_prob, in TensorFlow 1
with tf.Session() as session:  #: fix tf.Session -> tf.disable_v2_behavior(), right after the imports
    for step in xrange(2):  #: fix xrange -> range
        value = session.run(kept, {x: np.ones([3, 2])})
    for key, number in {"a": 1}.iteritems():  #: fix iteritems -> items
        assert number == 1
assert value.sum() > 5, value
