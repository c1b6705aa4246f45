"""Traces Keras code once and copies it into the default graph, with variables in place of eager ones."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream
from tfx_tpu_trainer.estimator.keras._keras_model import KerasModel, Named
from tfx_tpu_trainer.estimator.keras._tf_private import eagerly, updates_of, variables_of

v1 = tf.compat.v1

_READ: Final = "ReadVariableOp"
_HANDLES: Final = (tf.resource, tf.variant)
_FIND: Final = "LookupTableFindV2"
_LOCAL: Final = (v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES)


@dataclasses.dataclass(frozen=True)
class Trace:
    """Keras code as a graph, with its inputs, effects and variables."""

    graph: tf.Graph  # The graph of the traced function.
    results: Any  # The function's results, tensors of this graph.
    inputs: Mapping[str, tf.Tensor]  # The caller's tensors by placeholder.
    # Captured eager tensors by placeholder: handles of variables and tables, and constants.
    captured: Mapping[str, Any]
    updates: Sequence[tf.Operation]  # Ops with the function's effects, in any order.
    variables: Sequence[tf.Variable]  # The eager variables that it used.

    def handles_of(self, op: tf.Operation) -> list[Any]:
        """Returns the eager handles among an op's inputs."""
        return [
            self.captured[tensor.name]
            for tensor in op.inputs
            if tensor.name in self.captured and tensor.dtype in _HANDLES
        ]

    def copy(
        self,
        fetches: Sequence[tf.Tensor | tf.Operation],
        *,
        stand_in: Callable[[Any], tf.Tensor],
        name: str,
        after: tf.Tensor | None = None,
    ) -> list[Any]:
        """Copies the nodes of some results into the default graph."""
        # A FuncGraph can't be imported unchanged, since its placeholders represent eager tensors. An
        # input of a copied node is one of three:
        #   - a placeholder of an argument -> the caller's tensor (`inputs`);
        #   - a placeholder of a captured eager tensor -> its stand-in here (`captured`, e.g. the
        #     handle of `dense/kernel:0` -> the handle of the graph variable of that name);
        #   - any other tensor -> the copy of the node that makes it.
        # The first two are written as inputs named "given/...", which the input_map fills in.
        # Invariant: the order of the nodes is that of the trace, and control inputs are kept, so
        # reads and assignments of a variable keep their order. With `after`, every op that
        # uses a variable waits for that tensor.
        needed = set(upstream(fetches, given={*self.inputs, *self.captured}))
        # In the order of creation, which the engine's copies keep as well.
        nodes = [op for op in self.graph.get_operations() if op in needed]
        destination = v1.get_default_graph()
        known: dict[str, tf.Tensor] = {}

        def replaced(tensor: tf.Tensor) -> tf.Tensor | None:
            key = tensor.name
            if key not in known and key in self.inputs:
                known[key] = tf_private.capture(destination, self.inputs[key])
            elif key not in known and key in self.captured:
                known[key] = tf_private.capture(destination, stand_in(self.captured[key]))
            return known.get(key)

        input_map: dict[str, tf.Tensor] = {}
        definition = self.graph.as_graph_def()
        copied = v1.GraphDef(library=definition.library, versions=definition.versions)
        for op in nodes:
            node = copied.node.add()
            node.CopyFrom(op.node_def)
            # The trace may have pinned nodes to a device for eager tensors, and `_class` ties a
            # node to others by name, which this copy may leave out.
            node.device = ""
            node.attr.pop("_class", None)
            controls = [f"^{control.name}" for control in op.control_inputs if control in needed]
            del node.input[:]
            for tensor in op.inputs:
                given = replaced(tensor)
                key = f"given/{tensor.op.name}/{tensor.value_index}"
                if given is None:
                    # In a GraphDef the first output of a node has the node's name, without ":0".
                    node.input.append(tensor.name.removesuffix(":0"))
                else:
                    node.input.append(key)
                    input_map[f"{key}:0"] = given
            node.input.extend(controls)
            if after is not None and self.handles_of(op):
                node.input.append("^after")
                input_map["^after"] = after
        made = [fetch for fetch in fetches if _replacement(fetch, replaced) is None]
        copies = iter(
            tf.graph_util.import_graph_def(
                copied,
                input_map=input_map,
                return_elements=[fetch.name for fetch in made],
                name=name,
            )
            if made
            else ()
        )
        results = []
        for fetch in fetches:
            given = _replacement(fetch, replaced)
            result = next(copies) if given is None else tf.identity(given)
            if isinstance(result, tf.Tensor):
                result.set_shape(fetch.shape)
            results.append(result)
        return results


def trace(function: Callable[..., Any], *arguments: Any) -> Trace:
    """Traces a function as Keras's own training would, in a `tf.function`."""
    flat = tf.nest.flatten(arguments, expand_composites=True)
    given = [tensor for tensor in flat if tensor is not None]
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in given]
    seed = v1.get_default_graph().seed
    results: list[Any] = []

    def traced(*symbols: tf.Tensor) -> None:
        if seed is not None:
            tf.random.set_seed(seed)
        rest = iter(symbols)
        filled = [None if tensor is None else next(rest) for tensor in flat]
        packed = tf.nest.pack_sequence_as(arguments, filled, expand_composites=True)
        # Kept aside instead of returned: the results of a tf.function wait for all of its effects, so
        # fetching the loss would run the updates of Keras's metrics too.
        results[:] = [function(*packed)]

    function_of_graph = tf.function(traced, autograph=False)
    concrete = eagerly(lambda: function_of_graph.get_concrete_function(*specs))
    keep_alive(v1.get_default_graph(), concrete)
    graph, placeholders = concrete.graph, concrete.inputs
    captured = concrete.captured_inputs
    return Trace(
        graph=graph,
        results=results[0],
        inputs={p.name: tensor for p, tensor in zip(placeholders, given)},
        captured={p.name: each for p, each in zip(placeholders[len(given) :], captured)},
        # TensorFlow counts a read of a variable as an effect, to order it among assignments; the
        # copies have that order by their control inputs.
        updates=[op for op in updates_of(graph) if op.type != _READ],
        variables=variables_of(graph),
    )


def _replacement(
    fetch: tf.Tensor | tf.Operation, replaced: Callable[[tf.Tensor], tf.Tensor | None]
) -> tf.Tensor | None:
    return None if isinstance(fetch, tf.Operation) else replaced(fetch)


def keep_alive(graph: tf.Graph, traced: Any) -> None:
    """Keeps a traced function alive with the graph that has its copy."""
    # The op of a py_function holds a token; TensorFlow finds the Python function by it in a
    # registry of weak references, and only the traced graph keeps the function alive.
    graph.kept_keras_traces = [*getattr(graph, "kept_keras_traces", []), traced]


class StandIns:
    """Variables of the default graph in place of eager ones, which their handles identify."""

    def __init__(self) -> None:
        self._by_handle: dict[int, tf.Variable] = {}
        self._tables: dict[int, tf.Tensor] = {}
        self._eager: list[Any] = []

    def add(
        self,
        name: str,
        eager: Any,
        *,
        trainable: bool = False,
        first_value: np.ndarray | None = None,
        local: bool = False,
    ) -> tf.Variable:
        """Makes the stand-in of a variable."""
        made = v1.get_variable(
            name,
            shape=eager.shape,
            dtype=tf.as_dtype(eager.dtype),
            initializer=_initializer(first_value),
            trainable=trainable,
            use_resource=True,
            collections=list(_LOCAL) if local else None,
        )
        self.bind(eager, made)
        return made

    def bind(self, eager: Any, variable: tf.Variable) -> None:
        """Makes a graph variable, such as the global step, the stand-in of an eager one."""
        self._by_handle[id(eager.handle)] = variable
        # Kept alive, since another object may get its `id` otherwise.
        self._eager.append(eager.handle)

    def of(self, eager: Any) -> tf.Variable | None:
        """Returns the stand-in of a variable, or `None`."""
        return self._by_handle.get(id(eager.handle))

    def all(self) -> list[tf.Variable]:
        """Returns all stand-ins."""
        return list(self._by_handle.values())

    def has(self, handle: Any) -> bool:
        """Returns whether the variable of an eager handle has a stand-in."""
        return id(handle) in self._by_handle

    def tensor_for(self, captured: Any, trace: Trace) -> tf.Tensor:
        """Returns the default graph's tensor for a captured one."""
        if id(captured) in self._by_handle:
            return self._by_handle[id(captured)].handle
        if captured.dtype not in (tf.resource, tf.variant):
            return tf.constant(captured.numpy())
        for eager in trace.variables:
            if eager.handle is captured:
                # A Lambda layer or a loss function closes over it, so no layer tracks it.
                name = f"untracked/{graph_name(eager.name)}"
                return self.add(name, eager, first_value=eagerly(eager.numpy)).handle
        if id(captured) not in self._tables:
            self._tables[id(captured)] = copy_table(captured, trace)
            self._eager.append(captured)
        return self._tables[id(captured)]


def graph_name(name: str) -> str:
    """Returns a variable's name as a valid graph name, without `:0`."""
    allowed = re.sub(r"[^A-Za-z0-9_.\\/-]", "_", name.partition(":")[0])
    return allowed if re.match(r"[A-Za-z0-9.]", allowed) else f"v{allowed}"


def unused_name(name: str, taken: set[str]) -> str:
    """Returns an unused graph variable's name and marks it as taken."""
    chosen = graph_name(name)
    count = 0
    while chosen in taken:
        count += 1
        chosen = f"{graph_name(name)}_{count}"
    taken.add(chosen)
    return chosen


def _initializer(first_value: np.ndarray | None) -> Any:
    if first_value is None:
        return v1.zeros_initializer()
    first_value = np.asarray(first_value)
    # A number instead of an array of equal values: the graph has the constant, and a GraphDef must stay
    # below 2 GiB.
    if first_value.size and np.all(first_value == first_value.flat[0]):
        return v1.constant_initializer(first_value.flat[0])
    return v1.constant_initializer(first_value)


def copy_table(handle: Any, trace: Trace) -> tf.Tensor:
    """Makes a table of the default graph with the keys and values of an eager one."""
    finding = [op for op in trace.graph.get_operations() if op.type == _FIND]
    op = next((op for op in finding if any(h is handle for h in trace.handles_of(op))), None)
    if op is None:
        raise ValueError(
            f"The Keras model uses {handle!r}, which is neither a variable nor a lookup table. "
            "Only these can be moved into the graph of an estimator: do the rest in input_fn."
        )
    keys, values = eagerly(
        lambda: tf.raw_ops.LookupTableExportV2(
            table_handle=handle, Tkeys=op.get_attr("Tin"), Tvalues=op.get_attr("Tout")
        )
    )
    # The model's lookup has its own default for missing keys.
    default = tf.zeros((), values.dtype) if values.dtype != tf.string else tf.constant("")
    initializer = tf.lookup.KeyValueTensorInitializer(
        tf.constant(keys.numpy()), tf.constant(values.numpy())
    )
    return tf.lookup.StaticHashTable(initializer, default).resource_handle


class GraphModel:
    """Graph variables for all variables of a model, whether a mode needs them or not."""

    def __init__(self, model: KerasModel, *, with_values: bool = False) -> None:
        """Makes the variables."""
        self.eager: list[Named] = model.variables()
        self.stand_ins = StandIns()
        taken: set[str] = set()
        self.variables = [
            self.stand_ins.add(
                unused_name(each.name, taken),
                each.variable,
                trainable=each.trainable,
                first_value=eagerly(each.variable.numpy) if with_values else None,
            )
            for each in self.eager
        ]
