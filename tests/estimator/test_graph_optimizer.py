"""How much of the graph TensorFlow's optimizer changes in training, evaluation and prediction."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator import ModeKeys, tpu
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import LoopEndHook

v1 = tf.compat.v1

BATCH = 4


class _SeesNodes(v1.train.SessionRunHook):
    """Keeps the names of the nodes that run."""

    def __init__(self):
        self.nodes = set()

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(None, options=v1.RunOptions(output_partition_graphs=True))

    def after_run(self, run_context, run_values):
        graphs = run_values.run_metadata.partition_graphs
        self.nodes |= {node.name for graph in graphs for node in graph.node}


class _SeesNodesAtLoopEnds(_SeesNodes, LoopEndHook):
    """The same, but leaves steps to loops."""


def _input_fn(params):
    rows = tf.data.Dataset.from_tensor_slices({"x": tf.ones([12, 6, 6, 1])})
    return rows.batch(params["batch_size"])


def _endless_input_fn(params):
    return _input_fn(params).repeat()


def _python_input_fn(params):
    def rows():
        for _ in range(2):
            yield {"x": tf.ones([BATCH, 6, 6, 1]).numpy()}

    signature = {"x": tf.TensorSpec([BATCH, 6, 6, 1], tf.float32)}
    return tf.data.Dataset.from_generator(rows, output_signature=signature)


def _model_fn(*, kernel_size, with_sum=False):
    """A model in which something waits for `waits`, and something is negated twice."""

    def model_fn(features, labels, mode, params):
        del labels, params
        x = features["x"]
        with tf.control_dependencies([tf.group(tf.square(x), name="waits")]):
            x = tf.negative(tf.negative(x, name="negated"))
        if kernel_size:
            kernel = v1.get_variable("kernel", [kernel_size, kernel_size, 1, 2])
            outputs = tf.nn.conv2d(x, kernel, strides=1, padding="SAME")
        else:
            outputs = x * v1.get_variable("factor", [])
        outputs = tf.square(outputs)
        if mode == ModeKeys.PREDICT:
            return tpu.TPUEstimatorSpec(mode, predictions={"y": outputs})
        loss = tf.reduce_mean(outputs)
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        if with_sum:
            optimizer = v1.tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def _estimator(folder, *, kernel_size=3, with_sum=False, **config):
    return tpu.TPUEstimator(
        _model_fn(kernel_size=kernel_size, with_sum=with_sum),
        config=tpu.RunConfig(model_dir=str(folder), **config),
        use_tpu=False,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
    )


ALL, SOME, NONE = {"waits", "negated"}, {"negated"}, set()


def _left_in_training(folder, hook, **options):
    _estimator(folder, **options).train(_endless_input_fn, steps=3, hooks=[hook])
    return hook.nodes & ALL


def test_steps_that_a_hook_sees_each_of_are_optimized(tmp_path):
    assert _left_in_training(tmp_path, _SeesNodes()) == NONE


def test_small_ones_that_a_hook_sees_each_of_lose_control_dependencies_only(tmp_path):
    assert _left_in_training(tmp_path, _SeesNodes(), kernel_size=0) == SOME


def test_single_steps_between_loops_lose_control_dependencies_only(tmp_path):
    assert _left_in_training(tmp_path, _SeesNodesAtLoopEnds()) == SOME


def test_single_steps_between_loops_of_small_ones_start_at_once(tmp_path):
    assert _left_in_training(tmp_path, _SeesNodesAtLoopEnds(), kernel_size=0) == ALL


@pytest.mark.parametrize("every", ["save_summary_steps", "save_checkpoints_steps"])
def test_small_ones_between_short_loops_lose_control_dependencies_too(tmp_path, every):
    options = {"kernel_size": 0, every: 2}
    assert _left_in_training(tmp_path, _SeesNodesAtLoopEnds(), **options) == SOME


def test_a_sum_over_cores_that_does_not_run_here_is_no_hindrance(tmp_path):
    assert _left_in_training(tmp_path, _SeesNodes(), with_sum=True) == ALL


def test_the_optimizers_options_in_a_session_config_hold(tmp_path):
    session_config = v1.ConfigProto()
    session_config.graph_options.rewrite_options.disable_meta_optimizer = True
    assert _left_in_training(tmp_path, _SeesNodes(), session_config=session_config) == ALL


def test_batches_that_a_hook_sees_each_of_are_optimized(tmp_path):
    estimator = _estimator(tmp_path).train(_endless_input_fn, steps=1)
    hook = _SeesNodes()
    estimator.evaluate(_input_fn, hooks=[hook])
    assert hook.nodes & ALL == NONE


@pytest.mark.parametrize("seen", ["by a hook", "by the input's Python code"])
def test_batches_predicted_one_by_one_are_optimized(tmp_path, seen):
    estimator = _estimator(tmp_path).train(_endless_input_fn, steps=1)
    by_hook = seen == "by a hook"
    hook = _SeesNodes() if by_hook else _SeesNodesAtLoopEnds()
    rows = list(estimator.predict(_input_fn if by_hook else _python_input_fn, hooks=[hook]))
    assert len(rows) == (12 if by_hook else 2 * BATCH)
    assert hook.nodes & ALL == NONE
