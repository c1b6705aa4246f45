"""Mesh TensorFlow in an Estimator, as its own examples are: a network split over a mesh of two parts of this host.

Words: a folder, the number of cores.
"""

import sys

import mesh_tensorflow as mtf
import numpy as np
import tensorflow.compat.v1 as tf
from mesh_tensorflow import placement_mesh_impl

from tests.programs.drivers.calls import Calls

FOLDER = sys.argv[1]
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(32, 4)).astype(np.float32)
Y = X.sum(axis=1)


def model_fn(features, labels, mode, params):
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    batch, width = mtf.Dimension("batch", 8), mtf.Dimension("width", 4)
    x = mtf.import_tf_tensor(mesh, tf.reshape(features["x"], [8, 4]), mtf.Shape([batch, width]))
    hidden = mtf.layers.dense(x, mtf.Dimension("hidden", 6), activation=mtf.relu, name="hidden")
    found = mtf.layers.dense(hidden, mtf.Dimension("one", 1), name="found")
    loss = None
    if labels is not None:
        truth = mtf.import_tf_tensor(mesh, tf.reshape(labels, [8, 1]), found.shape)
        loss = mtf.reduce_mean(mtf.square(found - truth))
    updates = []
    if mode == tf.estimator.ModeKeys.TRAIN:
        gradients = mtf.gradients([loss], [v.outputs[0] for v in graph.trainable_variables])
        optimizer = mtf.optimize.AdafactorOptimizer(0.05)
        updates = optimizer.apply_grads(gradients, graph.trainable_variables)
    parts = placement_mesh_impl.PlacementMeshImpl(
        mtf.convert_to_shape("parts:2"), mtf.convert_to_layout_rules("batch:parts"), ["", ""]
    )
    lowering = mtf.Lowering(graph, {mesh: parts})
    restore = mtf.MtfRestoreHook(lowering)
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {"y": lowering.export_to_tf_tensor(found)}
        return tf.estimator.EstimatorSpec(mode, predictions, prediction_hooks=[restore])
    loss = lowering.export_to_tf_tensor(loss)
    if mode == tf.estimator.ModeKeys.EVAL:
        metrics = {
            "error": tf.metrics.mean_absolute_error(
                labels, lowering.export_to_tf_tensor(found)[:, 0]
            )
        }
        return tf.estimator.EstimatorSpec(
            mode, loss=loss, eval_metric_ops=metrics, evaluation_hooks=[restore]
        )
    lowered = [lowering.lowered_operation(update) for update in updates]
    train_op = tf.group([*lowered, tf.assign_add(tf.train.get_global_step(), 1)])
    saver = tf.train.Saver(tf.global_variables(), sharded=True, save_relative_paths=True)
    tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
    listener = mtf.MtfCheckpointSaverListener(lowering)
    save = tf.train.CheckpointSaverHook(FOLDER, save_steps=100, saver=saver, listeners=[listener])
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=train_op, training_chief_hooks=[restore, save]
    )


def rows():
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).repeat().batch(8, drop_remainder=True)


def rows_once():
    return tf.data.Dataset.from_tensor_slices({"x": X}).batch(8, drop_remainder=True)


calls = Calls(
    lambda: tf.estimator.Estimator(model_fn, FOLDER, tf.estimator.RunConfig(tf_random_seed=1))
)
calls.train_and_resume(rows)
calls.evaluate(rows, steps=4, names=["error"])
calls.predict(rows_once, rows=32)
calls.finish()
