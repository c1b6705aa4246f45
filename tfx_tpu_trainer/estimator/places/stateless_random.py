"""Replaces random ops by stateless ones that draw by the global step.

An op with state (`RandomUniform`, ...) counts its draws in its kernel, which ends with the session and which XLA lacks.
TensorFlow's stateless ops draw the same numbers from a counter that they read, so a training that resumes draws
the next ones. XLA compiles them to the same integers, but makes fractions from other bits.
"""

import secrets
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import mark_seed
from tfx_tpu_trainer.estimator._engine.graph_nodes import functions_of, nodes_called, upstream
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate

v1 = tf.compat.v1
_logger = tf.get_logger()

# How much a kernel adds to its counter for each number, and its algorithm (Philox).
_COUNTS_PER_NUMBER = 256
_PHILOX = 1

_STATELESS = {
    "RandomStandardNormal": tf.raw_ops.StatelessRandomNormalV2,
    "RandomUniform": tf.raw_ops.StatelessRandomUniformV2,
    "TruncatedNormal": tf.raw_ops.StatelessTruncatedNormalV2,
}
_INTEGERS = "RandomUniformInt"


# How a draw becomes a function of the step. The problem: the kernel of `RandomUniform` counts its
# draws, and the count is lost with the session: after a restart, step 101 would draw the numbers of
# step 1. The kernel is Philox, a function of (key, counter) that adds 256 to its counter for each
# number drawn. So the n-th draw, counted from 0, can be repeated without the kernel:
#   key = seed, counter = (n * numbers in the shape * 256, op-level seed)
# With these, the stateless op of the same distribution returns the same numbers, bit by bit. n is
# the global step, so for a training that runs its steps in order nothing changes.
# The invariants: the shape is the same in each step; two ops differ by their op-level seeds; and
# each replica's copy gets its own seed (`mark_seed`), as copies of the stateful op do.
def draw_by_step(template: ModelTemplate, *, unseeded: bool = False) -> tf.Tensor | None:
    """Makes a training's random ops draw by the global step, in place; returns the step if it changed any."""
    # Ops in loops, conditionals and functions are not changed, nor are other types (sampled losses,
    # `tf.random.shuffle`, ...); a log line names those with a seed.
    nodes = [template.train_op, template.loss]
    for function in (template.host_call, template.table_update):
        nodes += [] if function is None else tf.nest.flatten(function.tensors)
    elements = [template.graph.as_graph_element(node) for node in nodes if node is not None]
    needed = set(upstream(elements))
    drawing = [op for op in template.graph.get_operations() if op in needed]
    seeded = [op for op in drawing if _is_seeded(op.node_def)]
    by_step = [
        op
        for op in (drawing if unseeded else seeded)
        if (op.type in _STATELESS or op.type == _INTEGERS)
        and not tf_private.is_in_v1_control_flow(op)
    ]
    drawn_again = [op.node_def for op in seeded if op not in by_step]
    _log_others([*drawn_again, *_in_functions(template, needed)])
    if not by_step:
        return None
    with tf.name_scope("stateless_random"):
        step = v1.train.get_global_step().read_value()
        for op in by_step:
            with v1.device(op.device), tf.control_dependencies(op.control_inputs):
                drawn = _drawn(op, tf.cast(step, tf.int64))
            (instead_of,) = op.outputs
            drawn.set_shape(instead_of.shape)
            for consumer in instead_of.consumers():
                tf_private.replace_consumers_input(consumer, instead_of, drawn)
    return step


def _drawn(op: tf.Operation, step: tf.Tensor) -> tf.Tensor:
    """Returns an op's draw in a step."""
    count = step * tf.reduce_prod(tf.cast(op.inputs[0], tf.int64)) * _COUNTS_PER_NUMBER
    if _is_seeded(op.node_def):
        # Like the kernel, treats a negative seed as the unsigned number of the same bits.
        seeds = [op.get_attr(name) for name in ("seed", "seed2")]
        seed, op_seed = (np.int64(value).astype(np.uint64) for value in seeds)
    else:
        # Drawn once, when the graph is made, so each run draws other numbers, as it does with
        # an unseeded op; the counter makes the steps differ.
        seed, op_seed = (np.uint64(secrets.randbits(64)) for _ in range(2))
    of_op = tf.constant(op_seed, tf.uint64)
    mark_seed(of_op.op)
    given = {
        "shape": op.inputs[0],
        "key": tf.constant([seed], tf.uint64),
        "counter": tf.stack([tf.cast(count, tf.uint64), of_op]),
        "alg": _PHILOX,
    }
    if op.type == _INTEGERS:
        return tf.raw_ops.StatelessRandomUniformIntV2(
            minval=op.inputs[1], maxval=op.inputs[2], **given
        )
    return _STATELESS[op.type](dtype=op.outputs[0].dtype, **given)


def _is_seeded(node: v1.NodeDef) -> bool:
    return "seed2" in node.attr and bool(node.attr["seed"].i or node.attr["seed2"].i)


def _in_functions(template: ModelTemplate, needed: Iterable[tf.Operation]) -> Iterator[v1.NodeDef]:
    """Yields the seeded random ops in the functions that some ops call."""
    functions = functions_of(template.graph.as_graph_def().library)
    yield from filter(_is_seeded, nodes_called((op.node_def for op in needed), functions))


def _log_others(nodes: Iterable[v1.NodeDef]) -> None:
    named = sorted({f"{node.name} ({node.op})" for node in nodes})
    if named:
        _logger.info(
            "After a restart, these random ops draw the same numbers again, since checkpoints "
            "can't hold the state of ops in functions or of types without a stateless "
            "counterpart: %s.",
            ", ".join(named),
        )
