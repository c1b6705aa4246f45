"""Configures, opens and closes sessions.

TensorFlow optimizes a session's graph (Grappler) only if it places all of it. That takes time for each new set of
fetches, up to a tenth of the time to a model's first step. Functions are always optimized (see `graph_optimizer`).
"""

import contextlib
import enum
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoint_errors import damage_explained
from tfx_tpu_trainer.estimator._engine.checkpointing.savers import fitted_scaffold
from tfx_tpu_trainer.estimator._engine.graph_optimizer import keep_dependencies_only
from tfx_tpu_trainer.estimator._engine.reporting.log_hooks import ThroughputHook
from tfx_tpu_trainer.estimator._engine.sessions.reconnecting import (
    ReconnectingCreator,
    ReconnectingSession,
    WorkerCreator,
)
from tfx_tpu_trainer.estimator._engine.sessions.run_errors import guarded
from tfx_tpu_trainer.estimator._engine.template import SessionSettings, folder_of

v1 = tf.compat.v1
_logger = tf.get_logger()

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


class Optimizing(enum.Enum):
    """How much of a session's graph is optimized, in addition to its functions."""

    NOTHING = enum.auto()
    """Only fetched nodes are placed, and they run unchanged: functions do most of the work."""

    DEPENDENCIES = enum.auto()
    """Simplifies only control dependencies, which are many in gradients: ops run, and memory is freed, sooner.

    It takes almost no time. Measured outside of loops, a CNN's steps were 1.2 times as fast, as with all of the
    optimizer; a small model's were faster than with all of it, whose fused ops are slower where there is little to do;
    and a step of BERT-base took 0.35 GB less."""

    CONFIGURED = enum.auto()
    """All passes of the optimizer that the configuration allows."""


def default_session_config() -> v1.ConfigProto:
    """Returns the default configuration: the original's, soft placement and one pass of the graph optimizer."""
    config = v1.ConfigProto(allow_soft_placement=True)
    rewrite = config.graph_options.rewrite_options
    rewrite.meta_optimizer_iterations = type(rewrite).ONE
    return config


def placed_by_need(session_config: v1.ConfigProto | None) -> v1.ConfigProto:
    """Returns a copy of a configuration under which nodes that are not fetched, such as TPU ops, need no kernel."""
    config = _copy_of(session_config)
    config.graph_options.place_pruned_graph = True
    return config


def optimizing_config(
    session_config: v1.ConfigProto | None, graph: tf.Graph, optimizing: Optimizing
) -> v1.ConfigProto:
    """Returns a copy of a configuration for a session on a graph."""
    if optimizing is Optimizing.NOTHING or not _can_be_placed(graph):
        return placed_by_need(session_config)
    config = _copy_of(session_config)
    if optimizing is Optimizing.DEPENDENCIES and not _has_options_of_optimizer(config):
        keep_dependencies_only(config)
    return config


def fold_no_constants(config: v1.ConfigProto) -> None:
    """Keeps a session from folding constants."""
    # TensorFlow folds initial values that depend only on constants, and keeps them for the session's life: Adam's zeros
    # take twice the model's memory. Steps were as fast without folding.
    if not config.graph_options.HasField("optimizer_options"):
        config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0


def _copy_of(session_config: v1.ConfigProto | None) -> v1.ConfigProto:
    config = v1.ConfigProto()
    config.CopyFrom(session_config or default_session_config())
    return config


def _has_options_of_optimizer(config: v1.ConfigProto) -> bool:
    options = config.graph_options
    by_default = default_session_config().graph_options.rewrite_options
    return options.HasField("rewrite_options") and options.rewrite_options != by_default


def _can_be_placed(graph: tf.Graph) -> bool:
    types = {op.type for op in graph.get_operations()}
    functions = {}
    # The type of a TensorFlow 1 call is its function's name.
    if not types.isdisjoint(_CALLS) or not all(map(tf_private.op_definition, types)):
        library = graph.as_graph_def().library.function
        functions = {function.signature.name: function.node_def for function in library}
    types.update(node.op for nodes in functions.values() for node in nodes)
    return all(map(tf_private.has_kernel, types - functions.keys()))


# Closing takes milliseconds, unless a thread of tf.data sleeps.
_PATIENCE_SECONDS = 0.1
# Closing may take this long if a task no longer answers but its process still exists.
_TASKS_PATIENCE_SECONDS = 10.0


@contextlib.contextmanager
def closed_in_thread(
    session: v1.train.MonitoredSession, calls: ReconnectingSession, *, master: str
) -> Iterator[None]:
    """Closes a session after the block in a separate thread, and waits for that only briefly."""
    # The thread with which tf.data tunes a dataset can miss the end of its iterator, and sleep on for up to a minute
    # (see `feeding.dataset_rewrites`), after the session's last row. A session of several tasks is closed as usual
    # after its last step. After an error, the close is given ten seconds: otherwise it would wait for a task that is
    # gone, and hide the error.
    try:
        with session:
            try:
                yield
            except GeneratorExit:
                raise
            except BaseException as error:
                _close_in_thread(calls.latest, master, error)
                raise
            _close_in_thread(calls.latest, master)
    finally:
        # A lost session is closed already. At the interpreter's end it would be closed once more, when starting a
        # thread waits forever.
        if calls.latest is not None:
            calls.latest.__dict__.pop("close", None)


def _close_in_thread(
    session: v1.Session | None, master: str, error: BaseException | None = None
) -> None:
    """Makes a session's `close` run in a thread, and return after a few seconds at most."""
    if session is None or (master and error is None):
        return
    seconds = _TASKS_PATIENCE_SECONDS if master else _PATIENCE_SECONDS

    def close() -> None:
        # Restores its own method, since the thread may hold the last reference to the session.
        del session.close
        closing = threading.Thread(target=session.close, name="session-close", daemon=bool(master))
        closing.start()
        closing.join(seconds)
        if master and closing.is_alive():
            _logger.warning(
                "The session has not closed within %g s: a host that it needs may be gone. Continuing without it, to "
                "its error (%s: %s).",
                seconds,
                type(error).__name__,
                error,
            )

    # On this session only: every MonitoredSession, however wrapped, ends by calling it.
    session.close = close


SessionCreatorFn = Callable[..., v1.train.SessionCreator]
"""Makes a session creator; called like `ChiefSessionCreator`, with keyword arguments."""


class KeptSession(v1.train.SessionCreator):
    """A local session that stays open for one checkpoint after another; a `SessionCreatorFn`."""

    def __init__(self) -> None:
        self._session: v1.Session | None = None

    def __call__(self, **options: Any) -> v1.train.SessionCreator:
        """Takes the scaffold and the checkpoint of the next run."""
        self._options = options
        return self

    def create_session(self) -> v1.Session:
        """Opens the session, or restores the checkpoint in it and initializes what is local."""
        path = self._options["checkpoint_filename_with_path"]
        if self._session is not None and path:
            scaffold = self._options["scaffold"]
            scaffold.saver.restore(self._session, path)
            self._session.run(scaffold.local_init_op, scaffold.local_init_feed_dict)
            return self._session
        self.close()
        self._session = v1.train.ChiefSessionCreator(**self._options).create_session()
        # On this session alone: a MonitoredSession, however wrapped, ends by calling it.
        self._session.close = lambda: None
        return self._session

    def close(self) -> None:
        if self._session is not None:
            del self._session.close
            self._session.close()
            self._session = None


def open_training_session(
    *,
    settings: SessionSettings,
    master: str,
    scaffold: v1.train.Scaffold,
    hooks: Sequence[v1.train.SessionRunHook],
    chief_hooks: Sequence[v1.train.SessionRunHook],
    summary_steps: int | None,
    optimizing: Optimizing,
    session_creator: SessionCreatorFn = v1.train.ChiefSessionCreator,
) -> v1.train.MonitoredSession:
    """Opens a session for training, as `MonitoredTrainingSession` does, which takes no session creator."""
    config = optimizing_config(settings.session_config, v1.get_default_graph(), optimizing)
    fold_no_constants(config)
    hooks, chief_hooks = guarded(hooks), guarded(chief_hooks)
    if not settings.is_chief and session_creator is v1.train.ChiefSessionCreator:
        waiting = ReconnectingCreator(
            WorkerCreator(
                scaffold=scaffold,
                master=master,
                config=config,
                max_wait_secs=settings.session_creation_timeout_secs,
            ),
            settings=settings,
            master=master,
            for_chief=True,
        )
        return v1.train.MonitoredSession(session_creator=waiting, hooks=list(hooks))
    placed = session_creator(
        scaffold=scaffold, checkpoint_dir=folder_of(settings), master=master, config=config
    )
    creator = ReconnectingCreator(
        placed, settings=settings, master=master, folder=folder_of(settings)
    )
    if not settings.is_chief:
        return v1.train.MonitoredSession(session_creator=creator, hooks=_in_scope(hooks, placed))
    all_hooks = list(chief_hooks)
    if settings.log_step_count_steps:
        all_hooks.append(
            ThroughputHook(
                every_n_steps=settings.log_step_count_steps, output_dir=folder_of(settings)
            )
        )
    if summary_steps:
        all_hooks.append(
            v1.train.SummarySaverHook(
                save_steps=summary_steps, output_dir=folder_of(settings), scaffold=scaffold
            )
        )
    return v1.train.MonitoredSession(
        session_creator=creator, hooks=_in_scope([*all_hooks, *hooks], placed)
    )


def open_restored_session(
    *,
    settings: SessionSettings,
    master: str,
    scaffold: v1.train.Scaffold,
    checkpoint_path: str | None,
    hooks: list[v1.train.SessionRunHook],
    optimizing: Optimizing,
    session_creator: SessionCreatorFn = v1.train.ChiefSessionCreator,
) -> v1.train.MonitoredSession:
    """Opens a session for evaluation or prediction."""
    scaffold = fitted_scaffold(scaffold, checkpoint_path)
    with damage_explained(checkpoint_path):
        creator = session_creator(
            scaffold=scaffold,
            checkpoint_filename_with_path=checkpoint_path,
            master=master,
            config=optimizing_config(settings.session_config, v1.get_default_graph(), optimizing),
        )
        return v1.train.MonitoredSession(
            session_creator=ReconnectingCreator(creator, settings=settings, master=master),
            hooks=_in_scope(guarded(hooks), creator),
        )


def _in_scope(
    hooks: Sequence[v1.train.SessionRunHook], creator: v1.train.SessionCreator
) -> list[v1.train.SessionRunHook]:
    """Returns hooks that are called in the scope of the session's creator, if it has one."""
    in_scope = getattr(creator, "in_scope", None)
    return list(hooks) if in_scope is None else in_scope(hooks)
