"""A session whose steps a `tf.distribute` strategy runs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import placed_by_need
from tfx_tpu_trainer.estimator._engine.sessions.run_errors import WrappedHook

v1 = tf.compat.v1


class StrategySteps(Protocol):
    """Runs the steps of a session."""

    strategy: tf.distribute.Strategy
    # Placeholders of the template's graph that no session can feed.
    inputs: Sequence[tf.Tensor]
    # Placeholders of a step's results.
    outputs: Sequence[tf.Tensor]
    # Handles of the variables that a step reads or writes.
    handles: Sequence[tf.Tensor]

    def start(self, values: Mapping[str, np.ndarray]) -> None:
        """Makes the variables from their initial values, by name of the handle."""

    def run(self, session: StrategySession) -> Mapping[tf.Tensor, np.ndarray]:
        """Runs the steps of one session call; returns the value of each output."""

    def value(self, handle: str) -> np.ndarray:
        """Returns the value of a variable by the name of its handle."""

    def stop(self) -> None:
        """Frees the variables and the input."""


@dataclasses.dataclass(frozen=True)
class _FetchNeeds:
    """The dependencies of fetches."""

    # For each fetch that depends on a step's input: the fetching hook or caller, and the name.
    inputs: tuple[tuple[str, str], ...]
    # Whether they need a step.
    makes_step: bool
    # Names of the variables' handles.
    handles: tuple[str, ...]


class StrategySession(v1.Session):
    """A session on this host that has the variables' names, and lets a strategy run the steps."""

    # Hooks, savers and the engine's own loops use it like any session: a fetch of a step's results
    # (the loss, the tensors of metrics, predictions) runs a step; a fetch of variables, such as a
    # saver's, brings the strategy's values here. Tensors inside a step can't be fetched.

    def __init__(
        self, steps: StrategySteps, variables: VariableAccess, config: v1.ConfigProto | None
    ) -> None:
        super().__init__(graph=variables.graph, config=placed_by_need(config))
        self._steps = steps
        self._access = variables
        self._started = False
        self._stale: set[str] = set()
        self._known_needs: dict[tuple[Any, ...], _FetchNeeds] = {}

    def start(self) -> None:
        """Passes the variables, which must be initialized, to the strategy."""
        self._steps.start(super().run(self._access.reads))
        self._started = True
        # If other processes have replicas, all start with the chief's values.
        self._mark_stale()

    def close(self) -> None:
        """Closes the session, and frees what the strategy holds."""
        super().close()
        if self._started:
            self._started = False
            self._steps.stop()

    def run(
        self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
    ) -> Any:
        """Runs fetches, after a step of the strategy if they need one."""
        if not self._started:
            return super().run(fetches, feed_dict, options, run_metadata)
        feed_dict = dict(feed_dict or {})
        needs = self._needs(fetches, feed_dict)
        if needs.inputs:
            # TensorFlow's error would name a placeholder that its user has not made.
            owner, node = needs.inputs[0]
            raise RuntimeError(
                f"{owner} fetches {node!r}, which depends on the batch of a step. Under a "
                "tf.distribute strategy, steps do not run in a session: hooks can fetch only the "
                "loss, the global step and tensors that depend only on variables. Remove the "
                "hook, or train without the strategy (use_tpu=False, or emulated TPU cores)."
            )
        if needs.makes_step:
            # Before the steps: those run before the input ends have changed the variables, too.
            self._mark_stale()
            feed_dict = {**self._steps.run(self), **feed_dict}
        self._bring(needs.handles)
        return super().run(fetches, feed_dict, options, run_metadata)

    def run_here(self, fetches: Any, feed_dict: Mapping[Any, Any]) -> Any:
        """Runs fetches in this session; the feeds include a template's inputs."""
        # Not all variables, since embedding tables are large.
        self._bring(self._needs(fetches, feed_dict).handles)
        return super().run(fetches, feed_dict)

    def read_here(self, handles: Sequence[str]) -> dict[str, np.ndarray]:
        """Returns name of a handle -> the variable's value in this session."""
        return super().run({name: self._access.reads[name] for name in handles})

    def _mark_stale(self) -> None:
        self._stale = {handle.name for handle in self._steps.handles}

    def _bring(self, handles: Sequence[str]) -> None:
        # Only variables that are read now: each step makes all stale, and few steps are read.
        wanted = [name for name in handles if name in self._stale]
        if wanted:
            writes = [self._access.writes[name] for name in wanted]
            values = {self._access.new_values[name]: self._steps.value(name) for name in wanted}
            super().run(writes, values)
            self._stale.difference_update(wanted)

    def _needs(self, fetches: Any, feed_dict: Mapping[Any, Any]) -> _FetchNeeds:
        leaves = [
            (owner, self.graph.as_graph_element(leaf, allow_tensor=True, allow_operation=True))
            for owner, leaf in _leaves(fetches, "session.run")
        ]
        fed = [self.graph.as_graph_element(key).name for key in feed_dict]
        key = (tuple((owner, leaf.name) for owner, leaf in leaves), tuple(fed))
        # Cached: the graph is final, and a training fetches the same few sets again and again.
        if key not in self._known_needs:
            self._known_needs[key] = self._find_needs(leaves, frozenset(fed))
        return self._known_needs[key]

    def _find_needs(self, leaves: Sequence[tuple[str, Any]], fed: frozenset[str]) -> _FetchNeeds:
        inputs = {tensor.op.name for tensor in self._steps.inputs if tensor.name not in fed}
        outputs = {tensor.op.name for tensor in self._steps.outputs}
        handles = {handle.op.name: handle.name for handle in self._steps.handles}
        refused: list[tuple[str, str]] = []
        seen_by_all: set[str] = set()
        for owner, leaf in leaves:
            seen = {op.name for op in upstream([leaf], given=fed)}
            if seen & inputs:
                refused.append((owner, leaf.name))
            seen_by_all |= seen
        return _FetchNeeds(
            inputs=tuple(refused),
            makes_step=bool(seen_by_all & outputs),
            handles=tuple(name for op, name in handles.items() if op in seen_by_all),
        )


class VariableAccess:
    """Ops that read and write variables of a graph through their handles.

    Attributes:
        graph: The graph.
        reads: Name of a handle -> the variable's value.
        writes: Name of a handle -> op that sets the variable to the new value.
        new_values: Name of a handle -> placeholder of the new value.
    """

    def __init__(self, handles: Sequence[tf.Tensor]) -> None:
        """Adds the ops to the default graph, which must not be finalized."""
        self.graph = v1.get_default_graph()
        self.reads: dict[str, tf.Tensor] = {}
        self.writes: dict[str, tf.Operation] = {}
        self.new_values: dict[str, tf.Tensor] = {}
        for handle in handles:
            dtype = tf.as_dtype(handle.op.get_attr("dtype"))
            shape = tf.TensorShape(handle.op.get_attr("shape"))
            new_value = v1.placeholder(dtype, shape)
            self.reads[handle.name] = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
            self.writes[handle.name] = tf.raw_ops.AssignVariableOp(resource=handle, value=new_value)
            self.new_values[handle.name] = new_value


class StrategySessionCreator(v1.train.SessionCreator):
    """Opens a `StrategySession`, which it restores or initializes like `ChiefSessionCreator`."""

    def __init__(
        self,
        steps: StrategySteps,
        variables: VariableAccess,
        *,
        scaffold: v1.train.Scaffold,
        config: v1.ConfigProto | None = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
    ) -> None:
        self._steps = steps
        self._variables = variables
        self._scaffold = scaffold
        self._config = config
        self._checkpoint_dir = checkpoint_dir
        self._checkpoint = checkpoint_filename_with_path

    def in_scope(self, hooks: Sequence[v1.train.SessionRunHook]) -> list[v1.train.SessionRunHook]:
        """Wraps hooks to run in the scope of the strategy, as in the original."""
        return [_HookInScope(hook, self._steps.strategy) for hook in hooks]

    def create_session(self) -> StrategySession:
        """Returns a session that is ready to run."""
        self._scaffold.finalize()
        session = StrategySession(self._steps, self._variables, self._config)
        restored = self._restore(session)
        if not restored:
            if self._scaffold.init_op is not None:
                session.run(self._scaffold.init_op, self._scaffold.init_feed_dict)
            if self._scaffold.init_fn is not None:
                self._scaffold.init_fn(session)
        if self._scaffold.local_init_op is not None:
            session.run(self._scaffold.local_init_op, self._scaffold.local_init_feed_dict)
        missing = session.run(self._scaffold.ready_op)
        if missing.size:
            raise RuntimeError(f"Variables are not initialized: {missing.tolist()}.")
        session.start()
        return session

    def _restore(self, session: StrategySession) -> bool:
        path, state = self._checkpoint, None
        if path is None and self._checkpoint_dir is not None:
            state = tf.train.get_checkpoint_state(self._checkpoint_dir)
            path = state.model_checkpoint_path if state else None
        if path is None:
            return False
        self._scaffold.saver.restore(session, path)
        if state is not None:
            # So that the saver continues to count the checkpoints that it keeps.
            self._scaffold.saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
        return True


class _HookInScope(WrappedHook):
    def __init__(self, hook: v1.train.SessionRunHook, strategy: tf.distribute.Strategy) -> None:
        super().__init__(hook)
        self._strategy = strategy

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        with v1.get_default_graph().device(_on_this_host), self._strategy.scope():
            yield


def _on_this_host(op: tf.Operation) -> str:
    """Drops the worker from an op's device in a strategy's scope, since the session has only this process."""
    device = tf.DeviceSpec.from_string(op.device)
    return device.replace(job=None, replica=None, task=None).to_string()


def _leaves(fetches: Any, owner: str) -> Iterator[tuple[str, Any]]:
    """Yields the owner of each fetch, and the fetch: a hooked session's fetches are keyed by hook."""
    if fetches is None:
        return
    if isinstance(fetches, Mapping):
        for key, value in fetches.items():
            hook = key.hook if isinstance(key, _HookInScope) else key
            is_hook = isinstance(hook, v1.train.SessionRunHook)
            yield from _leaves(value, type(hook).__name__ if is_hook else owner)
    elif isinstance(fetches, (list, tuple)) and not isinstance(fetches, v1.SparseTensorValue):
        for value in fetches:
            yield from _leaves(value, owner)
    elif isinstance(fetches, (tf.SparseTensor, tf.IndexedSlices, tf.RaggedTensor)):
        for value in tf.nest.flatten(fetches, expand_composites=True):
            yield owner, value
    else:
        yield owner, fetches
