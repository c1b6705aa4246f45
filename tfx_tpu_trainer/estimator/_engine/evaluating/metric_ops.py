"""Handles metrics as pairs of a value and an update op, and runs metric_fns in separate graphs and sessions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation_plan import check_metrics, local_zero
from tfx_tpu_trainer.estimator._engine.evaluating.session_state import (
    VARIABLES,
    is_harmless,
    starting_over,
)
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream
from tfx_tpu_trainer.estimator._engine.template import HostFunction

v1 = tf.compat.v1


def value_and_update(name: str, metric: Any) -> tuple[Any, Any]:
    """Returns the value and the update op of a metric."""
    if hasattr(metric, "update_state") and hasattr(metric, "result"):
        updates = list(getattr(metric, "updates", None) or ())
        if not updates:
            raise ValueError(
                f'Please call update_state(...) on the "{metric.name}" metric of key {name} before '
                "it is returned: it has no updates in this graph."
            )
        return metric.result(), updates[0] if len(updates) == 1 else tf.group(*updates)
    if isinstance(metric, tuple) and len(metric) == 2:
        return metric[0], metric[1]
    raise TypeError(
        f"Values of eval_metric_ops must be (metric_value, update_op) tuples, given: {metric!r} "
        f"for key: {name}. tf.compat.v1.metrics functions return this pair."
    )


def checked_pair(name: str, metric: Any) -> tuple[Any, Any]:
    """Returns a metric's value and update op, and rejects parts that a session can't run."""
    pair = value_and_update(name, metric)
    for part in tf.nest.flatten(pair):
        if not isinstance(part, (tf.Tensor, tf.Variable, tf.Operation)):
            raise TypeError(
                "Values of eval_metric_ops must be (metric_value, update_op) tuples of tensors and "
                f"ops, given: {part!r} for key: {name}."
            )
    return pair


def add_metric_variables(metric: Any) -> None:
    """Adds a Keras metric's variables to the collections that local initialization reads."""
    if not (hasattr(metric, "update_state") and hasattr(metric, "variables")):
        return
    for collection in (v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES):
        known = v1.get_collection_ref(collection)
        known.extend(v for v in metric.variables if not any(v is other for other in known))


def split(metrics: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Splits metrics into their values, by name, and their update ops."""
    for name in metrics:
        if not isinstance(name, str):
            raise TypeError(
                f"The name of a metric must be a string, given: {name!r} as a key of "
                f"eval_metric_ops, or of what metric_fn returns. Write {str(name)!r}."
            )
    values, updates = {}, []
    for name, metric in sorted(metrics.items()):
        add_metric_variables(metric)
        values[name], update = checked_pair(name, metric)
        updates.append(update)
    return values, updates


def local_count(name: str) -> Any:
    """Makes a metric's local variable, a count that begins at 0 with each evaluation."""
    return local_zero(name, tf.int64, [v1.GraphKeys.METRIC_VARIABLES])


def add_in_python(
    scope: str, add: Callable[..., np.int64], tensors: Sequence[Any]
) -> tuple[Any, Any]:
    """Makes the count of batches and the op that counts one, which passes its tensors to a Python function."""
    with v1.variable_scope(scope):
        # The evaluation's initialization resets it, on which the function starts over.
        batches = local_count("batches")
    added = starting_over(add, [batches.read_value(), *tensors], tf.int64)
    added.set_shape(())
    return batches, batches.assign(added, read_value=False)


State = list[np.ndarray]


class NotIsolatedError(Exception):
    """Raised for a metric_fn that can't be called in a separate graph."""


# How one graph measures many parts of the data. The problem: a metric_fn called once for each of
# 100 slices makes a graph of 100 times its ops, whose updates have few rows each, or none. The
# idea: it is called once, in a separate graph that is fed with NumPy arrays, and the state of each
# slice is read from its variables and written back:
#   start(state of slice 1), update(rows of slice 1), state()  ->  the new state of slice 1
# The invariant, checked op by op: the variables hold all state. So there are only local variables,
# no op with other state or that may act only once (a queue, a print, a random op), nothing from the
# model's graph, and no value computed from the rows of the last update.
class IsolatedMetrics:
    """The metrics of a metric_fn, updated with NumPy arrays, with a state for each part of the data."""

    def __init__(self, metric_fn: Callable[..., Mapping[str, Any]], tensors: Any) -> None:
        given = tf.nest.flatten(tensors)
        for tensor in given:
            if tensor.dtype in (tf.resource, tf.variant) or tensor.dtype.is_quantized:
                raise NotIsolatedError(f"{tensor.name} is a {tensor.dtype.name}")
        with tf.Graph().as_default() as graph:
            self._fed = [
                v1.placeholder(tensor.dtype, with_any_rows(tensor.shape)) for tensor in given
            ]
            # A metric_fn that reads the global step reads this one, which is checked below.
            v1.train.create_global_step()
            made = set(graph.get_operations())
            try:
                placeholders = tf.nest.pack_sequence_as(tensors, self._fed)
                result = HostFunction("eval_metrics", metric_fn, placeholders)()
                # Metric name -> its value, a structure of tensors; `values` returns their arrays.
                self.metrics, updates = split(check_metrics(result))
            except Exception as error:  # A user's function may fail in any way without its model.
                raise NotIsolatedError(f"{type(error).__name__}: {error}") from error
            self._outputs = tf.nest.flatten(self.metrics)
            for output in self._outputs:
                if not isinstance(output, tf.Tensor):
                    raise NotIsolatedError(f"a metric's value is {output!r}")
            self._variables = v1.local_variables()
            for variable in self._variables:
                if not variable.shape.is_fully_defined():
                    raise NotIsolatedError(f"{variable.name} has a shape of any size")
            rows = {tensor.op for tensor in self._fed}
            _check_apart(graph, made - rows)
            _check_state(graph, {variable.op for variable in self._variables}, made)
            initializers = [variable.initializer for variable in self._variables]
            if not rows.isdisjoint(upstream([*self._outputs, *initializers])):
                raise NotIsolatedError("a metric's value depends on the batch")
            self._update = tf.group(*tf.nest.flatten(updates))
            self._fill_tables = v1.tables_initializer()
            self._initialize = tf.group(*initializers)
            self._state = [v1.convert_to_tensor(variable) for variable in self._variables]
            self._loaded = [
                v1.placeholder(variable.dtype.base_dtype, variable.shape)
                for variable in self._variables
            ]
            self._load = tf.group(
                *(v1.assign(*pair) for pair in zip(self._variables, self._loaded))
            )
        self._graph = graph
        self._calls: _Calls | None = None

    @property
    def dtypes(self) -> list[tf.DType]:
        """Dtypes of the values, in the order of `values`."""
        return [output.dtype for output in self._outputs]

    @property
    def shapes(self) -> list[tf.TensorShape]:
        """Static shapes of the values."""
        return [output.shape for output in self._outputs]

    def start(self, state: State | None) -> None:
        """Sets a state; `None` is the initial one."""
        if state is None:
            self._session.initialize()
        else:
            self._session.load(*state)

    def update(self, rows: Sequence[np.ndarray]) -> None:
        """Updates the state with rows."""
        self._session.update(*rows)

    def state(self) -> State:
        return self._session.state()

    def values(self) -> list[np.ndarray]:
        """Returns the values of `metrics`, flattened."""
        return self._session.values()

    @property
    def _session(self) -> _Calls:
        # Opened for the first row, since some graphs are built but never run.
        if self._calls is None:
            self._calls = _Calls(
                self._graph,
                fill_tables=([self._fill_tables], []),
                initialize=([self._initialize], []),
                load=([self._load], self._loaded),
                update=([self._update], self._fed),
                state=(self._state, []),
                values=(self._outputs, []),
            )
            self._calls.fill_tables()
        return self._calls


class _Calls:
    """A session's calls, prepared once."""

    def __init__(self, graph: tf.Graph, **calls: tuple[list[Any], list[tf.Tensor]]) -> None:
        config = v1.ConfigProto(
            # Run ops in the caller's thread. An op of another session runs this one: the two would
            # share threads, all of which may be waiting here.
            inter_op_parallelism_threads=-1,
            device_count={"GPU": 0},
            allow_soft_placement=True,
        )
        # Rewriting a graph this small takes longer than it saves.
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        session = v1.Session(graph=graph, config=config)
        self._made = {
            name: session.make_callable(fetches, feed_list=fed)
            for name, (fetches, fed) in calls.items()
        }

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return self._made[name]


def with_any_rows(shape: tf.TensorShape) -> tf.TensorShape:
    """Returns a tensor's shape for any number of rows."""
    return tf.TensorShape([None, *shape[1:]]) if shape.rank else shape


def _check_apart(graph: tf.Graph, foreign: Collection[tf.Operation]) -> None:
    """Checks that a function's ops do not read others."""
    for op in graph.get_operations():
        if op not in foreign and any(source.op in foreign for source in op.inputs):
            raise NotIsolatedError(f"{op.name} reads the global step")


def _check_state(
    graph: tf.Graph, variables: Collection[tf.Operation], others: Collection[tf.Operation]
) -> None:
    """Checks that a function's ops keep state only in its local variables."""
    ops = [op for op in graph.get_operations() if op not in others]
    for op in ops:
        if op.type in VARIABLES and op not in variables:
            raise NotIsolatedError(f"{op.name} is not a local variable")
        if op.op_def.is_stateful:
            _check_known(op.type, op.name)
    for function in graph.as_graph_def().library.function:
        for node in function.node_def:
            definition = tf_private.op_definition(node.op)
            if definition is not None and definition.is_stateful:
                _check_known(node.op, node.name)


def _check_known(kind: str, name: str) -> None:
    if not is_harmless(kind):
        raise NotIsolatedError(f"{name} ({kind}) may have state, or act only once")
