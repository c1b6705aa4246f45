"""How sessions are configured, opened and closed.

TensorFlow optimizes a session's graph (Grappler) only where it places all of it. That takes time with each new kind of
call, up to a tenth of the time to a model's first step. Functions are optimized in any case (see `graph_optimizer`).
"""

import contextlib
import enum
import threading
from collections.abc import Callable, Iterator, Sequence

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
    """How much of a session's graph outside of functions is optimized."""

    NOTHING = enum.auto()
    """What is fetched is placed, and runs as it is: most of the work is done in functions."""

    DEPENDENCIES = enum.auto()
    """Only control dependencies are simplified, with which gradients are full: ops run, and memory is freed, sooner.

    It takes next to no time. Measured with steps outside of loops, it makes a CNN's 1.2 times as
    fast, as all of the optimizer does, and a small model's faster than all of it, whose fused ops
    are slower where there is little to do. A step of BERT-base takes 0.35 GB less."""

    CONFIGURED = enum.auto()
    """All of the optimizer, or what the configuration leaves of it."""


def default_session_config() -> v1.ConfigProto:
    """Returns the session configuration of a run that brings none.

    Soft placement, so that a model_fn may name a device that is not here, and a single pass of
    the graph optimizer, as in the original.
    """
    config = v1.ConfigProto(allow_soft_placement=True)
    rewrite = config.graph_options.rewrite_options
    rewrite.meta_optimizer_iterations = type(rewrite).ONE
    return config


def placed_by_need(session_config: v1.ConfigProto | None) -> v1.ConfigProto:
    """Returns a copy of a configuration under which only what is fetched needs a kernel.

    A template may hold nodes that are there for TPUs only, `CrossReplicaSum` among them.
    """
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
    """Keeps a session from computing results of constants when it opens, and from holding them.

    TensorFlow folds a session's initial values into constants where these hang on constants alone, and keeps them as
    long as the session lives: the zeros of Adam's slots take two more bytes for each of a model's. Steps were as fast
    without.
    """
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
    # A function that calls of TensorFlow 1 name is an op's type.
    if not types.isdisjoint(_CALLS) or not all(map(tf_private.op_definition, types)):
        library = graph.as_graph_def().library.function
        functions = {function.signature.name: function.node_def for function in library}
    types.update(node.op for nodes in functions.values() for node in nodes)
    return all(map(tf_private.has_kernel, types - functions.keys()))


# Closing takes milliseconds but where a thread of tf.data sleeps.
_PATIENCE_SECONDS = 0.1
# Closing takes so long where a task is stopped and not gone.
_TASKS_PATIENCE_SECONDS = 10.0


@contextlib.contextmanager
def closed_in_thread(
    session: v1.train.MonitoredSession, calls: ReconnectingSession, *, master: str
) -> Iterator[None]:
    """Leaves a session after the block, and lets it go on closing in a separate thread.

    The thread with which tf.data tunes a dataset can miss that its iterator ends, and sleep on for
    up to a minute (see `feeding.dataset_rewrites`). The session has read its last row by then.

    A session of several tasks that ends with its last step is closed as ever. One that ends with an error has ten
    seconds: after a call that failed because a task was gone, closing waits for it, and the error would never
    be seen.
    """
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
        # One that was lost is closed already. It would be closed once more as the interpreter ends,
        # when no thread starts and who starts one waits forever.
        if calls.latest is not None:
            calls.latest.__dict__.pop("close", None)


def _close_in_thread(
    session: v1.Session | None, master: str, error: BaseException | None = None
) -> None:
    """Has a session close in a thread, for which whoever closes it waits for some seconds only."""
    if session is None or (master and error is None):
        return
    seconds = _TASKS_PATIENCE_SECONDS if master else _PATIENCE_SECONDS

    def close() -> None:
        # Its own method again: the thread's last reference to the session may end it.
        del session.close
        closing = threading.Thread(target=session.close, name="session-close", daemon=bool(master))
        closing.start()
        closing.join(seconds)
        if master and closing.is_alive():
            _logger.warning(
                "The session has not closed within %g s: a host that it needs may be gone. Going on without, to its "
                "error (%s: %s).",
                seconds,
                type(error).__name__,
                error,
            )

    # Set on this session alone: a MonitoredSession, however wrapped, ends by calling it.
    session.close = close


SessionCreatorFn = Callable[..., v1.train.SessionCreator]
"""Makes a session's creator; called as `ChiefSessionCreator` is, with keyword arguments."""


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
    """Opens a session for training, as `MonitoredTrainingSession` does.

    That one can't be given a session creator.
    """
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
        scaffold=scaffold,
        checkpoint_dir=folder_of(settings),
        master=master,
        config=config,
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
    """Has hooks called where the session's steps are made, if its creator has such a place."""
    in_scope = getattr(creator, "in_scope", None)
    return list(hooks) if in_scope is None else in_scope(hooks)
