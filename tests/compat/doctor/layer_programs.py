"""Programs for TensorFlow 1 that make variables, by name, and what variables TensorFlow 1.15 makes of them.

Run by TensorFlow 1.15, which needs Python 3.7, this writes `variables.json` next to it:

    uv venv --python 3.7 /tmp/tf115
    uv pip install --python /tmp/tf115/bin/python tensorflow==1.15.5 "numpy<1.19" "protobuf<3.21"
    PYTHONPATH=. /tmp/tf115/bin/python -m tests.compat.doctor.layer_programs
"""

import json
import pathlib

HEAD = "import tensorflow as tf\n"
CONTRIB = HEAD + "from tensorflow.contrib import layers, rnn, slim\n"
X = "x = tf.ones([2, 8, 8, 3])\nflat = tf.ones([2, 6])\nrow = tf.ones([2, 5, 3])\n"

PROGRAMS = {
    "dense": (
        HEAD,
        (
            "tf.layers.dense(flat, 3)\ntf.layers.dense(flat, 3, use_bias=False)\n"
            "tf.layers.dense(flat, 3, name='last')\n"
            "with tf.variable_scope('a'):\n    tf.layers.dense(flat, 3)\n    tf.layers.dense(flat, 2)\n"
            "with tf.variable_scope('a', reuse=True):\n    tf.layers.dense(flat, 3)\n"
            "with tf.variable_scope('b', reuse=tf.AUTO_REUSE):\n    tf.layers.dense(flat, 3, name='n')\n"
            "    tf.layers.dense(flat, 3, name='n')\n"
            "with tf.name_scope('ops'):\n    tf.layers.dense(flat, 3)\n"
        ),
    ),
    "layer_classes": (
        HEAD,
        (
            "one = tf.layers.Dense(3)\none(flat)\none(flat)\ntf.layers.Dense(3, name='two').apply(flat)\n"
            "with tf.variable_scope('s'):\n    tf.layers.Conv2D(2, 3)(x)\n    tf.layers.BatchNormalization()(x)\n"
        ),
    ),
    "convolutions": (
        HEAD,
        (
            "tf.layers.conv1d(row, 2, 3)\ntf.layers.conv2d(x, 2, 3)\ntf.layers.conv2d(x, 2, 3, name='c')\n"
            "tf.layers.conv3d(tf.ones([1, 4, 4, 4, 2]), 2, 3)\ntf.layers.conv2d_transpose(x, 2, 3)\n"
            "tf.layers.conv3d_transpose(tf.ones([1, 4, 4, 4, 2]), 2, 3)\n"
            "tf.layers.separable_conv1d(row, 2, 3)\ntf.layers.separable_conv2d(x, 2, 3)\n"
            "tf.layers.flatten(tf.layers.max_pooling2d(x, 2, 2))\n"
        ),
    ),
    "normalization": (
        HEAD,
        (
            "tf.layers.batch_normalization(x, training=True)\n"
            "tf.layers.batch_normalization(x, renorm=True, training=True)\n"
            "with tf.variable_scope('net'):\n"
            "    tf.layers.batch_normalization(flat, name='bn', scale=False, fused=False)\n"
        ),
    ),
    "cells": (
        CONTRIB,
        (
            "tf.nn.dynamic_rnn(rnn.BasicLSTMCell(4), row, dtype=tf.float32, scope='basic')\n"
            "tf.nn.dynamic_rnn(tf.contrib.rnn.LSTMCell(4, num_proj=2, use_peepholes=True), row, dtype=tf.float32)\n"
            "cells = rnn.MultiRNNCell([rnn.GRUCell(4), rnn.DropoutWrapper(rnn.GRUCell(4), 0.5)])\n"
            "tf.nn.dynamic_rnn(cells, row, dtype=tf.float32, scope='multi')\n"
            "tf.nn.bidirectional_dynamic_rnn(rnn.BasicRNNCell(4), rnn.BasicRNNCell(4), row, dtype=tf.float32)\n"
            "rnn.static_rnn(rnn.ResidualWrapper(rnn.BasicRNNCell(3)), tf.unstack(row, axis=1), dtype=tf.float32, "
            "scope='static')\n"
        ),
    ),
    "feature_columns": (
        HEAD,
        (
            "fc = tf.feature_column\nids = fc.categorical_column_with_identity('id', 7)\n"
            "other = fc.categorical_column_with_identity('other', 7)\n"
            "features = {'id': [[1], [2]], 'other': [[1], [2]], 'n': [[1.0], [2.0]]}\n"
            "columns = [fc.embedding_column(ids, 3), fc.numeric_column('n')]\n"
            "fc.input_layer(features, columns)\n"
            "fc.input_layer(features, fc.shared_embedding_columns([ids, other], 2))\n"
            "fc.linear_model(features, [ids, fc.numeric_column('n')])\n"
            "with tf.variable_scope('dnn'):\n    fc.input_layer(features, columns)\n"
        ),
    ),
    "optimizers": (
        HEAD,
        (
            "w = tf.get_variable('w', [3])\nloss = tf.reduce_sum(w * w)\n"
            "step = tf.train.get_or_create_global_step()\n"
            "for make in (tf.train.AdamOptimizer, tf.train.AdagradOptimizer, tf.train.FtrlOptimizer,\n"
            "             tf.train.RMSPropOptimizer, tf.train.AdadeltaOptimizer):\n"
            "    make(0.1).minimize(loss, step)\n"
            "tf.train.MomentumOptimizer(0.1, 0.9, name='M').minimize(loss)\n"
            "tf.train.ExponentialMovingAverage(0.9).apply([w])\n"
        ),
    ),
    "variables": (
        HEAD,
        (
            "with tf.variable_scope('s') as scope:\n    tf.get_variable('a', [2])\n    tf.Variable([1.0], name='v')\n"
            "    scope.reuse_variables()\n    tf.get_variable('a', [2])\n"
            "with tf.variable_scope('s', default_name='t'):\n    tf.Variable(1.0)\n"
            "with tf.variable_scope(None, default_name='u'):\n    tf.get_variable('a', [2], use_resource=False)\n"
            "with tf.variable_scope(None, default_name='u'):\n    tf.get_variable('a', [2])\n"
            "metric = tf.metrics.mean([1.0])\n"
        ),
    ),
    "contrib_layers": (
        CONTRIB,
        (
            "layers.fully_connected(flat, 3)\nlayers.fully_connected(flat, 3, normalizer_fn=layers.batch_norm)\n"
            "tf.contrib.layers.conv2d(x, 2, 3, scope='c')\nlayers.layer_norm(flat)\n"
            "with tf.variable_scope('encoder'):\n    layers.layer_norm(flat, scope='LN')\n"
            "    tf.contrib.layers.linear(flat, 2)\n    layers.batch_norm(x, scale=True, is_training=True)\n"
        ),
    ),
    "slim": (
        CONTRIB,
        (
            "with slim.arg_scope([slim.conv2d], weights_regularizer=slim.l2_regularizer(0.1)):\n"
            "    net = slim.conv2d(x, 2, [3, 3])\n    net = slim.repeat(net, 2, slim.conv2d, 4, [3, 3], scope='r')\n"
            "slim.fully_connected(slim.flatten(net), 3, scope='logits')\n"
        ),
    ),
}


RECORDING = pathlib.Path(__file__).with_name("variables.json")


def variables_of(text):
    """Runs a program in its own graph; returns name, shape and trainability of each variable."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        exec(compile(text, "program", "exec"), {})
        trained = {each.name for each in v1.trainable_variables()}
        return sorted(
            [each.name, each.shape.as_list(), each.name in trained]
            for each in (*v1.global_variables(), *v1.local_variables())
        )


def main():
    """Writes the recording."""
    recorded = {name: variables_of(head + X + body) for name, (head, body) in PROGRAMS.items()}
    # A line for each variable.
    programs = [
        f'"{name}": [\n' + ",\n".join(map(json.dumps, recorded[name])) + "\n]" for name in recorded
    ]
    RECORDING.write_text("{\n" + ",\n".join(programs) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
