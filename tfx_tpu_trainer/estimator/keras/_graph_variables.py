"""The graph variables and lookup tables that stand for the eager ones of a Keras model."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator.keras._eagerly import eagerly
from tfx_tpu_trainer.estimator.keras._keras_model import KerasModel, Named
from tfx_tpu_trainer.estimator.keras._trace import Trace

v1 = tf.compat.v1

_LOCAL: Final = (v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES)


class StandIns:
    """Variables of the default graph, each in the place of an eager one.

    Two variables are the same if they have the same handle: Keras wraps its variables.
    """

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
        # An id is of one object for as long as that lives.
        self._eager.append(eager.handle)

    def of(self, eager: Any) -> tf.Variable | None:
        """Returns the stand-in of a variable; `None` where it has none."""
        return self._by_handle.get(id(eager.handle))

    def all(self) -> list[tf.Variable]:
        """Returns all graph variables that stand for others."""
        return list(self._by_handle.values())

    def has(self, handle: Any) -> bool:
        """Tells whether the variable of an eager handle has a stand-in."""
        return id(handle) in self._by_handle

    def tensor_for(self, captured: Any, trace: Trace) -> tf.Tensor:
        """Returns the default graph's tensor for what a trace captured."""
        if id(captured) in self._by_handle:
            return self._by_handle[id(captured)].handle
        if captured.dtype not in (tf.resource, tf.variant):
            return tf.constant(captured.numpy())
        for eager in trace.variables:
            if eager.handle is captured:
                # Of no layer: a Lambda layer or a loss has it from around itself.
                name = f"untracked/{graph_name(eager.name)}"
                return self.add(name, eager, first_value=eagerly(eager.numpy)).handle
        if id(captured) not in self._tables:
            self._tables[id(captured)] = copy_table(captured, trace)
            self._eager.append(captured)
        return self._tables[id(captured)]


def graph_name(name: str) -> str:
    """Returns a variable's name as one of a graph: without `:0` and what graphs don't allow."""
    allowed = re.sub(r"[^A-Za-z0-9_.\\/-]", "_", name.partition(":")[0])
    return allowed if re.match(r"[A-Za-z0-9.]", allowed) else f"v{allowed}"


def unused_name(name: str, taken: set[str]) -> str:
    """Returns a graph variable's name that is not taken, and takes it."""
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
    if first_value.size and np.all(first_value == first_value.flat[0]):
        return v1.constant_initializer(first_value.flat[0])
    return v1.constant_initializer(first_value)


_FIND: Final = "LookupTableFindV2"


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
    # What is not there is looked up with a default value of the model's own.
    default = tf.zeros((), values.dtype) if values.dtype != tf.string else tf.constant("")
    initializer = tf.lookup.KeyValueTensorInitializer(
        tf.constant(keys.numpy()), tf.constant(values.numpy())
    )
    return tf.lookup.StaticHashTable(initializer, default).resource_handle


class GraphModel:
    """Graph variables for all variables of a model, whether a mode needs them or not.

    Attributes:
        eager: The model's variables.
        stand_ins: The variables that stand for them.
        variables: The same, in the order of `eager`.
    """

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
