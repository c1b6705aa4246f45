"""A loop of steps that XLA compiles into one function, on stacked batches."""

import concurrent.futures
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._engine.graph_nodes import functions_of, nodes_called, upstream
from tfx_tpu_trainer.estimator._engine.graph_optimizer import decided_on_cpu
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate

v1 = tf.compat.v1

# More batches in a call of the compiled function would gain nothing. Two stacks exist at a time: one is drawn while
# steps run on the other.
_MOST_BATCHES = 16
_MOST_BYTES = 32 << 20

_GET_NEXT = "IteratorGetNext"

# Ops that behave differently once XLA compiles them: other random numbers, checks that never fail.
_OTHER_IN_XLA = (
    "Assert",
    "CheckNumerics",
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "Print",
    "Random",
    "TruncatedNormal",
)


class CannotCompileError(ValueError):
    """Raised for a model whose steps can't be compiled into one function, with the reason."""


@dataclasses.dataclass(frozen=True)
class CompiledLoop:
    """A compiled loop of the template's own steps, used like a `TemplateLoop`."""

    # Placeholder of the number of steps, an int32 scalar.
    count: tf.Tensor
    # The loss of the last step; fetching it runs the loop.
    loss: tf.Tensor
    # The number of steps that the loop made.
    made: tf.Tensor
    # The global step after the loop.
    global_step: tf.Tensor
    # Fetching it compiles the function and makes no step.
    compiled: tf.Tensor

    def compile(self, session: v1.Session, *, within: float | None = None) -> None:
        compiler = concurrent.futures.ThreadPoolExecutor(1, "compile_steps")
        # On its own thread: the compiler would keep one of the session's, which steps need.
        own_thread = v1.RunOptions(inter_op_thread_pool=-1)
        compiling = compiler.submit(session.run, self.compiled, options=own_thread)
        # Nothing can end a compilation: when the time is over, it continues during the training.
        compiler.shutdown(wait=False)
        try:
            compiling.result(within)
        except concurrent.futures.TimeoutError as error:
            raise CannotCompileError(f"it has not done so within {within:g} s") from error
        # Any OpError: on a GPU, CUDA's files may be missing as well.
        except tf.errors.OpError as error:
            raise CannotCompileError(_line_about_op(error.message)) from error

    def run(self, session: v1.Session, steps: int) -> tuple[np.ndarray, int]:
        """Runs some steps; returns the last loss and the global step."""
        loss, made, step = session.run(
            [self.loss, self.made, self.global_step], feed_dict={self.count: steps}
        )
        if not made:
            raise tf.errors.OutOfRangeError(None, None, "End of the input.")
        return loss, int(step)


# How steps are compiled. The problem: XLA needs static shapes, can't read an iterator, and compiles
# again for each shape. The idea: a function of stacks of `size` batches, and of how many of them to
# use, which runs a step on each; around it, a loop of ordinary ops that draws the next stack while
# XLA's function runs. 40 steps with stacks of 16 are
#   draw 16 | step 16, draw 16 | step 16, draw 8 | step 8, draw 0
# The invariants: as many batches are drawn as steps are run, so the loop and the template's
# own train_op can take turns (only a NaN, which ends the training, loses a stack); the end of the
# input is a value, an optional without content, not an error that would lose batches drawn before;
# and the function is compiled before the first batch is drawn.
def build_compiled_loop(template: ModelTemplate) -> CompiledLoop:
    """Makes a loop of the template's own steps whose model is compiled by XLA."""
    batch = _batch_tensors(template)
    copier = GraphCopier(template.graph)
    size = _batches_in_a_stack(batch)
    shapes = [tensor.shape for tensor in batch]

    def make_steps(count: tf.Tensor, *stacks: tf.Tensor) -> tf.Tensor:
        def one_step(number: tf.Tensor, loss: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # A stack always has the shape of `size` batches, and `count` is a value, so XLA compiles once.
            fed = {t.name: tf.gather(stack, number) for t, stack in zip(batch, stacks)}
            fetches = [Fetch(0, template.train_op), Fetch(0, template.loss)]
            train_op, loss = copier.copy(fetches, replaced=[fed], name="step")
            with tf.control_dependencies([train_op]):
                return number + 1, tf.identity(loss)

        return tf.while_loop(
            lambda number, loss: tf.logical_and(number < count, _is_number(loss)),
            one_step,
            (tf.constant(0), tf.zeros((), template.loss_dtype)),
        )[1]

    compiled = tf.function(make_steps, jit_compile=True, autograph=False)
    draw = _Draw(batch, size)

    def all_steps(count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        def goes_on(made: tf.Tensor, loss: tf.Tensor, drawn: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
            with decided_on_cpu():
                return tf.logical_and(drawn > 0, _is_number(loss))

        def one_stack(
            made: tf.Tensor, loss: tf.Tensor, drawn: tf.Tensor, *stacks: tf.Tensor
        ) -> list[tf.Tensor]:
            # Neither of the two waits for the other, so they run at the same time.
            following = draw(count - made - drawn)
            loss = compiled(drawn, *stacks)
            return [made + drawn, loss, *following]

        start = [tf.constant(0), tf.zeros((), template.loss_dtype), *draw(count)]
        return tf.while_loop(goes_on, one_stack, start, parallel_iterations=1)[:2]

    count = v1.placeholder(tf.int32, shape=(), name="compiled_steps_ahead")
    made, loss = tf.function(all_steps, autograph=False)(count)

    # XLA rejects a model when it first compiles it. Compiling before a batch is drawn loses none, and the plain loop
    # can still run.
    def no_steps() -> tf.Tensor:
        stacks = [tf.zeros([size, *shape], t.dtype) for t, shape in zip(batch, shapes)]
        return compiled(tf.constant(0), *stacks)

    no_loss = tf.function(no_steps, autograph=False)()
    with tf.control_dependencies([loss]):
        global_step = v1.train.get_global_step().read_value()
    return CompiledLoop(count, loss, made, global_step, no_loss)


class _Draw:
    """Draws batches from the iterator and stacks them, until the input ends."""

    def __init__(self, batch: Sequence[tf.Tensor], size: int) -> None:
        self._batch = batch
        self._size = size

    def __call__(self, count: tf.Tensor) -> list[tf.Tensor]:
        """Returns the number of batches drawn, `count` or a stack's size at most, and the stacks."""
        count = tf.minimum(count, self._size)

        def nothing() -> list[tf.Tensor]:
            return [tf.constant(0), *(each.stack() for each in self._lists())]

        return tf.cond(count > 0, lambda: self._draw(count), nothing)

    def _draw(self, count: tf.Tensor) -> list[tf.Tensor]:
        """Draws one batch or more."""

        def goes_on(number: tf.Tensor, optional: tf.Tensor, *lists: Any) -> tf.Tensor:
            return tf.logical_and(number < count - 1, _has_value(optional))

        def keep_and_draw(number: tf.Tensor, optional: tf.Tensor, *lists: Any) -> list[Any]:
            kept = self._kept(number, optional, lists)
            return [number + 1, self._next(), *kept]

        # The last batch is kept after the loop, which would draw one more.
        start = [tf.constant(0), self._next(), *self._lists()]
        number, optional, *lists = tf.while_loop(
            goes_on, keep_and_draw, start, parallel_iterations=1
        )
        has_value = _has_value(optional)
        lists = tf.cond(has_value, lambda: self._kept(number, optional, lists), lambda: lists)
        return [number + tf.cast(has_value, tf.int32), *(each.stack() for each in lists)]

    def _lists(self) -> list[tf.TensorArray]:
        return [
            tf.TensorArray(tensor.dtype, size=self._size, element_shape=tensor.shape)
            for tensor in self._batch
        ]

    def _kept(self, number: tf.Tensor, optional: tf.Tensor, lists: Sequence[Any]) -> list[Any]:
        return [each.write(number, value) for each, value in zip(lists, self._values(optional))]

    def _next(self) -> tf.Tensor:
        # At the end of the input, the iterator's own get_next would fail the call, and batches
        # drawn before would be lost.
        op = self._batch[0].op
        return tf.raw_ops.IteratorGetNextAsOptional(
            iterator=tf_private.capture(v1.get_default_graph(), op.inputs[0]),
            output_types=[tensor.dtype for tensor in op.outputs],
            output_shapes=[tensor.shape for tensor in op.outputs],
        )

    def _values(self, optional: tf.Tensor) -> list[tf.Tensor]:
        op = self._batch[0].op
        values = tf.raw_ops.OptionalGetValue(
            optional=optional,
            output_types=[tensor.dtype for tensor in op.outputs],
            output_shapes=[tensor.shape for tensor in op.outputs],
        )
        return [values[tensor.value_index] for tensor in self._batch]


def _batch_tensors(template: ModelTemplate) -> list[tf.Tensor]:
    """Returns the tensors of the input that a step reads."""
    batch: dict[str, tf.Tensor] = {}
    for op_type, name, drawn in _needed(template):
        if op_type.startswith(_OTHER_IN_XLA):
            raise CannotCompileError(f"{name} ({op_type}) behaves differently when XLA compiles it")
        batch.update({tensor.name: tensor for tensor in drawn})
    tensors = list(batch.values())
    if len({tensor.op for tensor in tensors}) != 1:
        raise CannotCompileError("its input is not one tf.data.Dataset")
    for tensor in tensors:
        if tensor.dtype in (tf.string, tf.variant):
            raise CannotCompileError(f"it reads {tensor.name}, of dtype {tensor.dtype.name}")
        if not tensor.shape.is_fully_defined():
            raise CannotCompileError(
                f"the shape {tensor.shape} of {tensor.name} is not static: batch the dataset with "
                "drop_remainder=True"
            )
    return tensors


def _needed(template: ModelTemplate) -> Iterator[tuple[str, str, list[tf.Tensor]]]:
    """Yields the type and name of each op that a step needs, and the input tensors that it reads."""
    drawn_ops = [op for op in template.graph.get_operations() if op.type == _GET_NEXT]
    given = {tensor.name for op in drawn_ops for tensor in op.outputs}
    ops = list(upstream([template.train_op, template.loss], given=given))
    for op in ops:
        yield op.type, op.name, [tensor for tensor in op.inputs if tensor.op.type == _GET_NEXT]
    functions = functions_of(template.graph.as_graph_def().library)
    for node in nodes_called((op.node_def for op in ops), functions):
        yield node.op, node.name, []


def _batches_in_a_stack(batch: Sequence[tf.Tensor]) -> int:
    size = sum(math.prod(tensor.shape) * tensor.dtype.size for tensor in batch)
    return max(1, min(_MOST_BATCHES, _MOST_BYTES // max(size, 1)))


def _has_value(optional: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.OptionalHasValue(optional=optional)


def _is_number(loss: tf.Tensor) -> tf.Tensor:
    return tf.logical_not(tf.math.is_nan(loss))


def _line_about_op(message: str) -> str:
    """Returns the first line of XLA's message that names an op, or else its first line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return next((line for line in lines if "{{node" in line or ": " in line), lines[0])
