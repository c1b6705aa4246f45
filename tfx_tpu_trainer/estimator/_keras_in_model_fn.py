"""Makes Keras optimizers that a model_fn calls train in its graph, as v1 optimizers do.

Today's Keras optimizers (Keras 2's from 2.11 on, Keras 3's) assign to variables one after the other and return their
count of steps, which as a train_op would change nothing in a graph. While a model_fn runs, their updates are traced in
a `tf.function`, as Keras itself would, and the traced nodes are copied into the graph; the caller gets an op that runs
all of them.
"""

import contextlib
import contextvars
import copy
import functools
import inspect
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator.keras._tf_private import (
    eager_mode,
    eagerly,
    updates_of,
    variables_of,
)
from tfx_tpu_trainer.estimator.keras._trace import StandIns, Trace, keep_alive, unused_name

v1 = tf.compat.v1

_READ: Final = "ReadVariableOp"
_HANDLES: Final = (tf.resource, tf.variant)
# `apply` is Keras 3's.
_APPLYING: Final = ("apply_gradients", "apply")

# The classes are wrapped once for the process, by the first model_fn that runs, and unwrapped by the
# last, since two threads may call a model_fn each. `_call` has the call of the current thread.
_lock = threading.Lock()
_users = 0
_originals: list[tuple[type, str, Callable[..., Any]]] = []


class _Call:
    """The Keras optimizers of one call of a model_fn."""

    def __init__(self, graph: tf.Graph) -> None:
        self.graph = graph
        self.made_here: weakref.WeakSet[Any] = weakref.WeakSet()
        self.names: dict[str, int] = {}
        self.stand_ins = StandIns()
        self.applied: tf.Operation | None = None
        self._before: list[tuple[Any, dict[str, Any]]] = []

    def unused_name(self, optimizer: Any) -> str:
        """Returns a name that is the same in each call; Keras 3's own names count per process."""
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(optimizer).__name__).lower()
        count = self.names[name] = self.names.get(name, -1) + 1
        return f"{name}_{count}" if count else name

    def remember(self, optimizer: Any) -> None:
        """Records the state of an optimizer from outside model_fn, before it makes variables here."""
        if optimizer in self.made_here or any(optimizer is each for each, _ in self._before):
            return
        self._before.append((optimizer, _state(optimizer)))
        # A LossScaleOptimizer has another one inside, and builds it.
        for inner in vars(optimizer).values():
            if isinstance(inner, tuple(todays_bases())):
                self.remember(inner)

    def restore(self) -> None:
        """Restores optimizers from outside, so the next call can use them."""
        for optimizer, state in self._before:
            vars(optimizer).clear()
            vars(optimizer).update(state)


_call: contextvars.ContextVar[_Call | None] = contextvars.ContextVar("call", default=None)


@contextlib.contextmanager
def keras_optimizers_train() -> Iterator[None]:
    """Makes Keras optimizers of every kind train in the default graph."""
    # Their `apply_gradients`, Keras 3's `apply` and `minimize` return an op that changes the variables; overrides of
    # them in subclasses are traced too. An optimizer from outside has variables in the graph only inside this context.
    # Calls in other threads, in a `tf.function` or with eager execution stay unchanged.
    call = _Call(v1.get_default_graph())
    token = _call.set(call)
    _wrap()
    try:
        yield
    finally:
        _unwrap()
        _call.reset(token)
        call.restore()


def is_of_this_call(optimizer: Any) -> None:
    """Marks an optimizer as made for the running model_fn, so it keeps its variables, which are saved."""
    call = _call.get()
    if call is not None:
        call.made_here.add(optimizer)


def todays_bases() -> list[Any]:
    """Returns the bases of today's Keras optimizers, from the imported versions of Keras."""
    return [*_bases("tf_keras"), *_bases("keras")]


def _bases(package: str) -> list[Any]:
    optimizers = getattr(sys.modules.get(package), "optimizers", None)
    return [] if optimizers is None else [optimizers.Optimizer]


def legacy_bases() -> list[Any]:
    """Returns the base of Keras 2's legacy optimizers, if Keras 2 is imported."""
    keras2 = sys.modules.get("tf_keras")
    return [] if keras2 is None else [keras2.optimizers.legacy.Optimizer]


def _wrap() -> None:
    global _users
    with _lock:
        _users += 1
        if _users > 1:
            return
        for base in todays_bases():
            for cls in _with_subclasses(base):
                for name in _APPLYING:
                    _replace(cls, name, _traced)
                _replace(cls, "minimize", _returning_what_is_applied)
                _replace(cls, "__init__", _noted)
        for base in legacy_bases():
            for cls in _with_subclasses(base):
                _replace(cls, "apply_gradients", _remembered)
                _replace(cls, "__init__", _noted)


def _unwrap() -> None:
    global _users
    with _lock:
        _users -= 1
        if not _users:
            while _originals:
                cls, name, method = _originals.pop()
                setattr(cls, name, method)


def _with_subclasses(base: type) -> set[type]:
    # Keras's optimizers inherit some methods from bases of Keras, which are wrapped as well.
    found = {each for each in base.__mro__ if each.__module__.startswith(("keras.", "tf_keras."))}
    subclasses: list[type] = base.__subclasses__()
    for subclass in subclasses:
        found |= {subclass, *_with_subclasses(subclass)}
    return found


def _replace(cls: type, name: str, wrapped: Callable[[Callable[..., Any]], Any]) -> None:
    method = vars(cls).get(name)
    if method is not None:
        _originals.append((cls, name, method))
        setattr(cls, name, functools.wraps(method)(wrapped(method)))


def _noted(init: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(init)
    parameter = signature.parameters.get("name")
    may_be_nameless = parameter is not None and parameter.default is None

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        call = _call.get()
        if call is None:
            return init(self, *args, **kwargs)
        if may_be_nameless and isinstance(self, tuple(_bases("keras"))):
            given = signature.bind(self, *args, **kwargs)
            if given.arguments.get("name") is None:
                kwargs["name"] = call.unused_name(self)
        call.made_here.add(self)
        with v1.variable_creator_scope(_from_first_values):
            return init(self, *args, **kwargs)

    return noted


def _remembered(apply: Callable[..., Any]) -> Callable[..., Any]:
    def apply_gradients(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _call.get()
        if call is not None and not tf.executing_eagerly():
            call.remember(self)
        return apply(self, *args, **kwargs)

    return apply_gradients


def _traced(apply: Callable[..., Any]) -> Callable[..., Any]:
    def in_graph(self: Any, pairs: Any, *args: Any, **kwargs: Any) -> Any:
        call = _call.get()
        if call is None or tf.executing_eagerly():
            return apply(self, pairs, *args, **kwargs)
        call.remember(self)
        # Inside of a tf.function that model_fn makes, Keras's own way works, traced with the rest.
        if v1.get_default_graph() is not call.graph:
            return apply(self, pairs, *args, **kwargs)
        pairs = list(pairs)
        _build(self, _variables_of(pairs, *args, **kwargs))
        call.applied = _applied(call, self, lambda: apply(self, pairs, *args, **kwargs))
        return call.applied

    return in_graph


def _returning_what_is_applied(minimize: Callable[..., Any]) -> Callable[..., Any]:
    def in_graph(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _call.get()
        if call is None or tf.executing_eagerly():
            return minimize(self, *args, **kwargs)
        # `minimize` calls `apply_gradients`, which is wrapped too and leaves its op here.
        call.applied = None
        returned = minimize(self, *args, **kwargs)
        # Keras's own returns nothing, which can't become a train_op.
        return call.applied if returned is None else returned

    return in_graph


def _variables_of(pairs: list[Any], variables: Any = None, **kwargs: Any) -> list[Any]:
    """Returns the trained variables from the arguments of `apply_gradients` or Keras 3's `apply`."""
    if pairs and isinstance(pairs[0], tuple):
        return [variable for _, variable in pairs]
    return list(kwargs.get("trainable_variables", variables) or ())


def _build(optimizer: Any, variables: list[Any]) -> None:
    """Makes an optimizer's variables in the graph; a trace would make eager ones."""
    if not variables or getattr(optimizer, "built", False):
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(v1.variable_creator_scope(_from_first_values))
        if not hasattr(optimizer, "built"):
            # Keras 3 has its own scope for each variable.
            stack.enter_context(tf.name_scope(getattr(optimizer, "name", None) or "optimizer"))
        optimizer.build(variables)


def _applied(call: _Call, optimizer: Any, apply: Callable[[], Any]) -> tf.Operation:
    # `apply_gradients` in a v1 graph would add assignments that nothing runs, and return a counter.
    # In a tf.function TensorFlow orders the assignments and notes that they must run. So it is
    # traced in one, and the trace's nodes are copied into the model's graph behind one op:
    #
    #     train_op = adam.apply_gradients([(g, w)])  # m, v, w and iterations change when this runs
    #
    # What the trace captures (g, and handles of m, v, w) are tensors of this same graph, put back
    # in the place of the function's placeholders; an optimizer from outside has eager variables
    # instead, each of which gets a stand-in. Invariant: no assignment runs before all gradients are
    # there.
    def effects() -> None:
        apply()

    # In a function that is traced inside a v1 graph, `tensor == 1` compares objects; in one that
    # is traced eagerly it compares numbers, as Keras's code expects.
    with eager_mode():
        concrete = tf.function(effects, autograph=False).get_concrete_function()
    keep_alive(call.graph, concrete)
    graph = concrete.graph
    traced = Trace(
        graph=graph,
        results=None,
        inputs={},
        captured={p.name: each for p, each in zip(concrete.inputs, concrete.captured_inputs)},
        updates=[op for op in updates_of(graph) if op.type != _READ],
        variables=variables_of(graph),
    )
    name = getattr(optimizer, "name", None) or type(optimizer).__name__
    # A weight decay reads no gradient and could run first. But the gradients are those of the
    # variables before it, so nothing is changed until all of them are there.
    given = [each for each in concrete.captured_inputs if _is_value_of(each, call.graph)]
    with tf.control_dependencies(given):
        given_all = tf.constant(0, name=f"{name}/given")
    updates = traced.copy(
        traced.updates,
        stand_in=lambda captured: _of_this_graph(call, captured, traced, name),
        name=f"{name}/apply",
        after=given_all,
    )
    return tf.group(*updates, name=f"{name}/update")


def _is_value_of(captured: Any, graph: tf.Graph) -> bool:
    return getattr(captured, "graph", None) is graph and captured.dtype not in _HANDLES


def _from_first_values(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
    """Makes a variable whose initial value does not wait for that of another variable."""
    # A learning rate starts at a schedule's value for step 0, an average at its variable's value; in a graph, all
    # variables are initialized at once.
    first = kwargs.get("initial_value")
    if isinstance(first, tf.Variable):
        kwargs["initial_value"] = first.initial_value
    elif isinstance(first, tf.Tensor) and not tf.executing_eagerly():
        variables = {each.handle.op: each for each in v1.global_variables()}
        # `pending` grows while it is walked: all ops from which the initial value is computed. If one reads a variable,
        # it gets that variable's initial value instead.
        pending = [first.op]
        for op in pending:
            for tensor in op.inputs:
                variable = (
                    variables.get(tensor.op.inputs[0].op) if tensor.op.type == _READ else None
                )
                if variable is not None:
                    tf_private.replace_consumers_input(op, tensor, variable.initial_value)
                elif tensor.op not in pending:
                    pending.append(tensor.op)
    return next_creator(**kwargs)


def _of_this_graph(call: _Call, captured: Any, traced: Trace, name: str) -> tf.Tensor:
    """Returns the graph's tensor for a captured one, which may be the handle of an outside variable."""
    if getattr(captured, "graph", None) is call.graph:
        return captured
    if not call.stand_ins.has(captured):
        for variable in traced.variables:
            if variable.handle is captured:
                taken = {each.op.name for each in v1.global_variables()}
                made = unused_name(f"{name}/{variable.name}", taken)
                call.stand_ins.add(made, variable, first_value=_first_value(variable))
    return call.stand_ins.tensor_for(captured, traced)


def _first_value(variable: Any) -> Any:
    if hasattr(variable.handle, "numpy"):
        return eagerly(variable.numpy)
    # Made in another graph, like all variables if eager execution is off.
    return tf.get_static_value(variable.initial_value)


def _state(optimizer: Any) -> dict[str, Any]:
    # Copied, since building an optimizer fills its lists and dicts in place.
    return {
        name: copy.copy(value) if isinstance(value, (dict, list)) else value
        for name, value in vars(optimizer).items()
    }
