"""How a session is opened: settings that training, evaluation and prediction share."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tfx_tpu_trainer.engine.checkpoints import check_fits_graph

v1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """What the engine must know of a run, taken from a RunConfig by the layer above.

    Attributes:
        model_dir: Folder of checkpoints and events.
        master: Address of the session's master; `""` is this process.
        evaluation_master: The same for evaluation.
        is_chief: Whether this process initializes variables and saves.
        session_config: Configuration of every session.
        save_summary_steps: Steps between summaries; 0 or `None` switches them off.
        save_checkpoints_steps: Steps between checkpoints, or `None`.
        save_checkpoints_secs: Seconds between checkpoints, or `None`. With both `None` no
            checkpoint is written at all.
        keep_checkpoint_max: Checkpoints kept; 0 or `None` keeps all.
        keep_checkpoint_every_n_hours: Hours after which one is kept for good.
        log_step_count_steps: Steps between log lines of loss and step; `None` for none.
        session_creation_timeout_secs: Seconds a worker waits for the chief.
        checkpoint_save_graph_def: Whether graph.pbtxt and .meta files are written.
    """

    model_dir: str
    master: str = ""
    evaluation_master: str = ""
    is_chief: bool = True
    session_config: v1.ConfigProto | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: int | None = 600
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float | None = 10000
    log_step_count_steps: int | None = 100
    session_creation_timeout_secs: int | None = 7200
    checkpoint_save_graph_def: bool = True


def default_session_config() -> v1.ConfigProto:
    """Gives the session configuration of a run that brings none.

    Soft placement, so that a model_fn may name a device that is not here, and a single pass of
    the graph optimizer, as in the original.
    """
    config = v1.ConfigProto(allow_soft_placement=True)
    rewrite = config.graph_options.rewrite_options
    rewrite.meta_optimizer_iterations = type(rewrite).ONE
    return config


def placed_by_need(session_config: v1.ConfigProto | None) -> v1.ConfigProto:
    """Gives a copy of a configuration under which only what is fetched needs a kernel.

    A template may hold nodes that are there for TPUs only, `CrossReplicaSum` among them.

    Args:
        session_config: The configuration of the run; `None` is the default one.
    """
    config = v1.ConfigProto()
    config.CopyFrom(session_config or default_session_config())
    config.graph_options.place_pruned_graph = True
    return config


def open_restored_session(
    *,
    settings: SessionSettings,
    master: str,
    scaffold: v1.train.Scaffold,
    checkpoint_path: str | None,
    hooks: list[v1.train.SessionRunHook],
) -> v1.train.MonitoredSession:
    """Opens a session for evaluation or prediction.

    Args:
        settings: Settings of the run.
        master: Address of the session's master.
        scaffold: The model's scaffold.
        checkpoint_path: Checkpoint to restore; `None` initializes the variables.
        hooks: Hooks of the session.

    Returns:
        A session to be used as a context manager.

    Raises:
        tf.errors.InvalidArgumentError: If the checkpoint does not fit the graph.
    """
    if checkpoint_path and scaffold.saver is None:
        check_fits_graph(checkpoint_path)
    return v1.train.MonitoredSession(
        session_creator=v1.train.ChiefSessionCreator(
            scaffold=scaffold,
            checkpoint_filename_with_path=checkpoint_path,
            master=master,
            config=placed_by_need(settings.session_config),
        ),
        hooks=hooks,
    )
