"""A loop of steps on this host in which each op runs on one thread, for models whose ops are small.

TensorFlow's kernels share work among the threads of the process, some of them however little it is:
an optimizer's fused op hands over even 64 numbers. To wake the other threads then takes longer than
the step. A function that tf.data calls is told how many threads its ops may share their work among,
which no other call of a function is; so the loop is the function of a dataset. Ops that wait for
nothing of each other still run at the same time.
"""

from __future__ import annotations

import dataclasses
import weakref

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import GraphCopier
from tfx_tpu_trainer.estimator._engine.loops.direct_draws import copy_with_direct_draws
from tfx_tpu_trainer.estimator._engine.loops.pace import LoopEndHook
from tfx_tpu_trainer.estimator._engine.loops.step_loop import HostLoop, steps_in_function
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate

v1 = tf.compat.v1

# Errors name it. It must not be taken for the input's get_next.
_NAME = "steps_on_one_thread"

_CALLS = 1 << 62


@dataclasses.dataclass(frozen=True)
class OneThreadLoop(HostLoop):
    """A loop of the template's own steps, each op of which runs on one thread.

    Attributes:
        start: What makes the loop ready in a session. It must run once: random ops would draw the
            same numbers again.
    """

    start: tf.Operation
    _ready: weakref.WeakSet[v1.Session] = dataclasses.field(
        default_factory=weakref.WeakSet, compare=False
    )

    def prepare(self, session: v1.Session) -> None:
        """Makes the loop ready in a session, once."""
        if session not in self._ready:
            session.run(self.start)
            self._ready.add(session)


class LoopReadyHook(LoopEndHook):
    """Makes a loop ready in each session, for calls that fetch it."""

    def __init__(self, loop: HostLoop) -> None:
        self._loop = loop

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Makes it ready."""
        del coord
        self._loop.prepare(session)


def build_one_thread_loop(template: ModelTemplate) -> OneThreadLoop:
    """Makes a loop of the template's own steps that runs each op on one thread."""
    copier = GraphCopier(template.graph)
    dtype = template.loss_dtype

    def step(number: tf.Tensor) -> tf.Tensor:
        del number
        made = [template.train_op, template.loss]
        train_op, loss = copy_with_direct_draws(copier, made, name="step")
        with tf.control_dependencies([train_op]):
            return tf.identity(loss)

    with v1.device("/device:CPU:0"):
        count = v1.placeholder_with_default(tf.constant(1), shape=(), name="steps_ahead")
        # No variable of the model's, nor of any collection: each call writes it first.
        steps = tf.raw_ops.VarHandleOp(
            dtype=tf.int32, shape=(), shared_name=template.graph.unique_name("steps_in_call", False)
        )

        def all_steps(call: tf.Tensor) -> tf.Tensor:
            del call
            made = tf.raw_ops.ReadVariableOp(resource=steps, dtype=tf.int32)
            made.set_shape(())
            # Not in a function of its own: in a session no function of a dataset may call one.
            return steps_in_function(step, made, loss_dtype=dtype, stop_if_not_finite=True)

        function = tf.function(all_steps, autograph=False).get_concrete_function(
            tf.TensorSpec((), tf.int64)
        )
        element = {"output_types": [dtype], "output_shapes": [tf.TensorShape(())]}
        calls = tf.raw_ops.MapDataset(
            input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(_CALLS)),
            other_arguments=function.captured_inputs,
            f=function,
            **element,
        )
        iterator = tf.raw_ops.IteratorV2(
            shared_name=template.graph.unique_name(_NAME, False), container="", **element
        )
        start = tf.raw_ops.MakeIterator(dataset=_one_thread_each(calls, dtype), iterator=iterator)
        write = tf.raw_ops.AssignVariableOp(resource=steps, value=count)
        with tf.control_dependencies([write]):
            (loss,) = tf.raw_ops.IteratorGetNext(iterator=iterator, name=_NAME, **element)
    with tf.control_dependencies([loss]):
        return OneThreadLoop(count, loss, v1.train.get_global_step().read_value(), start)


def _one_thread_each(calls: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    options = tf.data.Options()
    options.threading.max_intra_op_parallelism = 1
    # No call may be made before it is asked for.
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    options.experimental_optimization.apply_default_optimizations = False
    dataset = tf.data.experimental.from_variant(calls, tf.TensorSpec((), dtype))
    return tf.data.experimental.to_variant(dataset.with_options(options))
