"""Writes gradients and weights for TensorBoard: `RunConfig(gradient_norms=True)`, `RunConfig(histograms=True)`."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.graph_nodes import VariableChanges, upstream
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate

v1 = tf.compat.v1
_logger = tf.get_logger()

NORM = "gradient_norm"
"""Tag of the norm of all gradients; a variable's is `gradient_norm/<variable>`."""

_APPLIES = ("ResourceApply", "ResourceSparseApply")
# The gradient's name in these ops; `delta` is that of plain gradient descent.
_GRADIENTS = ("grad", "delta")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """The summaries that a training writes in addition to the model's own."""

    # The norm of all gradients, and of each variable's.
    gradient_norms: bool = False
    # Histograms of gradients and weights.
    histograms: bool = False

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return self.gradient_norms or self.histograms


def find_gradients(template: ModelTemplate, *, replicas: int = 1) -> dict[str, tf.Tensor]:
    """Finds the gradients by which the train_op of a template changes each trainable variable."""
    # They are the inputs of TensorFlow's optimizer ops: clipped, and summed over replicas. An optimizer made of
    # assignments has none of these ops, nor has Adam for the rows of an embedding: the gradient of the loss is then
    # added to the graph.
    steps = list(upstream([template.train_op]))
    changes = VariableChanges(template.graph.as_graph_def().library)
    applied: dict[str, tf.Tensor] = {}
    changed: set[str] = set()
    for op in steps:
        handles = [tensor.name for tensor in op.inputs if tensor.dtype == tf.resource]
        if not handles or not changes.made_by(op.node_def):
            continue
        changed.update(handles)
        gradient = _given_gradient(op)
        if gradient is not None:
            applied[handles[0]] = gradient
    gradients, others = {}, []
    for variable in template.graph.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES):
        handle = getattr(variable, "handle", None)
        if handle is None or handle.name not in changed:
            continue
        if handle.name in applied:
            gradients[variable.op.name] = applied[handle.name]
        else:
            others.append(variable)
    gradients.update(_of_loss(template, others, replicas))
    return gradients


def _given_gradient(op: tf.Operation) -> tf.Tensor | None:
    if not op.type.startswith(_APPLIES):
        return None
    for argument, tensor in zip(op.op_def.input_arg, op.inputs):
        if argument.name in _GRADIENTS:
            return tensor
    return None


def _of_loss(
    template: ModelTemplate, variables: Collection[tf.Variable], replicas: int
) -> Iterator[tuple[str, tf.Tensor]]:
    if not variables:
        return
    with v1.name_scope("gradients_for_summaries"), tf_private.replicas(replicas):
        for variable, gradient in zip(variables, v1.gradients(template.loss, list(variables))):
            if gradient is None:
                continue
            gradient = tf.convert_to_tensor(gradient)
            if replicas > 1:
                gradient = v1.tpu.cross_replica_sum(gradient) / replicas
            yield variable.op.name, gradient


def summary_of_gradients(gradients: Mapping[str, tf.Tensor], asked: Asked) -> tf.Tensor:
    """Adds the summary of gradients to the graph under construction."""
    parts = []
    if asked.gradient_norms:
        squares = {name: _sum_of_squares(values) for name, values in gradients.items()}
        parts.append(_scalar(NORM, tf.sqrt(tf.add_n(list(squares.values())))))
        parts += [_scalar(f"{NORM}/{name}", tf.sqrt(each)) for name, each in squares.items()]
    if asked.histograms:
        parts += [_histogram(f"gradients/{name}", values) for name, values in gradients.items()]
    return tf.raw_ops.MergeSummary(inputs=parts)


def add_histograms_of_weights(template: ModelTemplate, *, after: Any) -> None:
    """Adds histograms of the trainable variables to the summaries of the default graph."""
    with tf.control_dependencies([after]):
        histograms = [
            _histogram(f"weights/{variable.op.name}", variable.read_value())
            for variable in template.graph.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES)
            if hasattr(variable, "read_value")
        ]
    if histograms:
        v1.add_to_collection(
            v1.GraphKeys.SUMMARIES, tf.raw_ops.MergeSummary(inputs=histograms, name="weights")
        )


def add_to_summaries(template: ModelTemplate, asked: Asked) -> None:
    """Adds gradients and weights to the summaries of the default graph, if each step is a call."""
    gradients = find_gradients(template)
    if gradients:
        v1.add_to_collection(v1.GraphKeys.SUMMARIES, summary_of_gradients(gradients, asked))
    else:
        log_no_gradients()
    if asked.histograms:
        add_histograms_of_weights(template, after=template.train_op)


def log_no_gradients() -> None:
    """Warns that there are no gradients to write."""
    _logger.warning(
        "No gradients are written for TensorBoard: the train_op of model_fn changes no trainable variable."
    )


def log_not_written(where: str) -> None:
    """Warns that gradients and weights can't be read."""
    _logger.warning(
        "RunConfig(gradient_norms=..., histograms=...) writes nothing: gradients and weights "
        "can't be read from %s. Train on the host or on emulated cores to see them.",
        where,
    )


class FirstStepOfLoop:
    """The summary of the gradients of a loop's first step, computed when a hook requests it."""

    def __init__(self, gradients: Mapping[str, tf.Tensor], asked: Asked) -> None:
        self._names = tuple(gradients)
        self._asked = asked
        # The gradients, which the loop copies.
        self.tensors = tuple(gradients.values())
        # Local variable that requests the summary of the next loop.
        self.is_due = _local("gradients_are_due", False, tf.bool)
        # Holds the summary, since a loop in a graph returns only its loss.
        self._summary = _local("summary_of_gradients", "", tf.string)

    def summary(
        self, number: tf.Tensor, copies: Sequence[tf.Tensor], *, is_due: tf.Tensor, kept: tf.Tensor
    ) -> tf.Tensor:
        """Returns the summary of a due first step, else the kept one, in the loop under construction."""
        return tf.cond(
            tf.logical_and(is_due, tf.equal(number, 0)),
            lambda: summary_of_gradients(dict(zip(self._names, copies)), self._asked),
            lambda: tf.identity(kept),
        )

    def keep(self, number: tf.Tensor, copies: Sequence[tf.Tensor]) -> tf.Tensor:
        """Writes the summary of a due first step to a variable, in the loop under construction."""

        def write() -> tf.Tensor:
            summary = summary_of_gradients(dict(zip(self._names, copies)), self._asked)
            with tf.control_dependencies([self._summary.assign(summary, read_value=False)]):
                return tf.constant(True)

        due = tf.logical_and(self.is_due.read_value(), tf.equal(number, 0))
        return tf.cond(due, write, lambda: tf.constant(False))

    def kept_after(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns the summary that a loop has kept, once its loss exists."""
        with tf.control_dependencies([loss]):
            return self._summary.read_value()


class GradientHook(v1.train.SessionRunHook):
    """Requests the summary of the gradients of loops' first steps, and writes it."""

    def __init__(
        self, summary: tf.Tensor, is_due: tf.Variable, *, every_n_steps: int, output_dir: str
    ) -> None:
        self._summary = summary
        self._is_due = is_due
        self._output_dir = output_dir
        self._timer = v1.train.SecondOrStepTimer(every_steps=every_n_steps)

    def begin(self) -> None:
        """Opens the events, through the cache: two writers on a folder overwrite each other."""
        self._writer = v1.summary.FileWriterCache.get(self._output_dir)
        self._global_step = v1.train.get_global_step()
        self._ask: Callable[[bool], tf.Operation] = {
            due: self._is_due.assign(due, read_value=False) for due in (False, True)
        }.__getitem__

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        self._asks = False

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs | None:
        """Requests the next loop's summary if its first step is due."""
        session = run_context.session
        self._step = int(session.run(self._global_step)) + 1
        due = self._timer.should_trigger_for_step(self._step)
        if due != self._asks:
            session.run(self._ask(due))
            self._asks = due
        return v1.train.SessionRunArgs(self._summary) if due else None

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        if run_values.results is None:
            return
        # The value for all replicas is an array.
        summary = np.asarray(run_values.results, object).item()
        if summary:
            self._timer.update_last_triggered_step(self._step)
            self._writer.add_summary(summary, self._step)

    def end(self, session: v1.Session) -> None:
        self._writer.flush()


def _local(name: str, value: Any, dtype: tf.DType) -> tf.Variable:
    return v1.get_variable(
        name,
        initializer=tf.constant(value, dtype),
        trainable=False,
        collections=[v1.GraphKeys.LOCAL_VARIABLES],
    )


def _sum_of_squares(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.square(tf.cast(values, tf.float32)))


def _scalar(tag: str, value: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ScalarSummary(tags=tag, values=value)


def _histogram(tag: str, values: tf.Tensor) -> tf.Tensor:
    # TensorFlow's op fails on NaN, which is to end a training with its own error.
    values = tf.reshape(tf.cast(values, tf.float32), [-1])
    finite = tf.boolean_mask(values, tf.math.is_finite(values))
    return tf.raw_ops.HistogramSummary(tag=tag, values=finite)
