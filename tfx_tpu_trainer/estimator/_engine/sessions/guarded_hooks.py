"""Names the hook that asks a session for what exists in replicas only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream

v1 = tf.compat.v1

# TensorFlow's words, which the original's users see.
_NOT_FETCHABLE = "has been marked as not fetchable."

# The collection of the ops from which the replicas' computation is made.
_INPUTS = "tfx_tpu_trainer/inputs_of_cores"


def keep_from_hooks(inputs: Iterable[tf.Tensor]) -> None:
    """Marks what depends on some tensors of the default graph as not to be fetched.

    TensorFlow marks everything that model_fn makes for a TPU so. What depends on variables and
    constants only has a value outside of replicas too, and stays as it is.
    """
    graph = v1.get_default_graph()
    on_replicas = {tensor.op for tensor in inputs}
    for op in on_replicas:
        graph.add_to_collection(_INPUTS, op)
    for op in graph.get_operations():
        before = (*(tensor.op for tensor in op.inputs), *op.control_inputs)
        if op in on_replicas or not on_replicas.isdisjoint(before):
            on_replicas.add(op)
            graph.prevent_fetching(op)


def guarded(hooks: Iterable[v1.train.SessionRunHook]) -> list[v1.train.SessionRunHook]:
    """Wraps hooks so that an error of fetching from the replicas says whose it is."""
    inputs = frozenset(v1.get_collection(_INPUTS))
    return [_GuardedHook(hook, inputs) if inputs else hook for hook in hooks]


class _GuardedHook(v1.train.SessionRunHook):
    def __init__(self, hook: v1.train.SessionRunHook, inputs: frozenset[tf.Operation]) -> None:
        self._hook = hook
        self._inputs = inputs
        self._known: set[str] = set()

    def begin(self) -> None:
        self._hook.begin()

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        with self._named():
            self._hook.after_create_session(session, coord)

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs | None:
        with self._named():
            arguments = self._hook.before_run(run_context)
        if arguments is not None:
            self._check(arguments.fetches, run_context.session.graph)
        return arguments

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        with self._named():
            self._hook.after_run(run_context, run_values)

    def end(self, session: v1.Session) -> None:
        with self._named():
            self._hook.end(session)

    def _check(self, fetches: Any, graph: tf.Graph) -> None:
        for fetch in _leaves(fetches):
            try:
                element = graph.as_graph_element(fetch)
            except (KeyError, TypeError, ValueError):
                continue  # The session knows better, or says what is wrong.
            op = getattr(element, "op", element)
            if op.name in self._known:
                continue
            if self._is_kept(op):
                raise ValueError(f"Operation {op.name} {_NOT_FETCHABLE} {self._rule()}")
            self._known.add(op.name)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            begin, found, _ = str(error).partition(_NOT_FETCHABLE)
            if not found:
                raise
            raise ValueError(f"{begin}{_NOT_FETCHABLE} {self._rule()}") from error

    def _is_kept(self, op: tf.Operation) -> bool:
        """Whether an op is made of the inputs, be it by the hook itself, when it begins."""
        return any(each in self._inputs for each in upstream([op]))

    def _rule(self) -> str:
        return (
            f"The hook {type(self._hook).__name__} fetches it, but it is part of the computation "
            "on TPU cores: a hook runs on the host and must not capture tensors of model_fn. Give "
            "the tensor to host_call or eval_metrics of a TPUEstimatorSpec, whose functions run "
            "on the host; variables, such as the global step, can be fetched."
        )


def _leaves(fetches: Any) -> Iterator[Any]:
    if isinstance(fetches, Mapping):
        fetches = list(fetches.values())
    if isinstance(fetches, Sequence) and not isinstance(fetches, (str, bytes)):
        for fetch in fetches:
            yield from _leaves(fetch)
    elif fetches is not None:
        yield fetches
