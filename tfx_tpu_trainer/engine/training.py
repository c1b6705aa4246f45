"""Runs training in a session."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfx_tpu_trainer.engine import tf_private
from tfx_tpu_trainer.engine.nan_hook import StopAtNanHook
from tfx_tpu_trainer.engine.sessions import SessionSettings, placed_by_need
from tfx_tpu_trainer.engine.template import ModelTemplate

v1 = tf.compat.v1
_logger = tf.get_logger()


def train(
    template: ModelTemplate,
    *,
    settings: SessionSettings,
    hooks: Sequence[v1.train.SessionRunHook],
    saving_listeners: Sequence[v1.train.CheckpointSaverListener] = (),
) -> float | None:
    """Runs a placed template's train_op until a hook or the end of the input stops it.

    Must be called with the template's graph as the default one.

    Args:
        template: A template of mode `"train"`, already placed.
        settings: Settings of the run.
        hooks: The caller's hooks, the placement's and the input's; the model's own are in the
            template.
        saving_listeners: Listeners told of every checkpoint.

    Returns:
        The loss of the last step, or `None` if the input gave no batch.

    Raises:
        ValueError: If there are listeners and no checkpoint is ever written.
        NanLossError: If the loss became NaN.
    """
    loss, global_step = template.loss, v1.train.get_global_step()
    _summarize_loss(loss)
    worker_hooks = [*hooks, StopAtNanHook(loss, model_dir=settings.model_dir)]
    if settings.log_step_count_steps:
        worker_hooks.append(
            v1.train.LoggingTensorHook(
                {"loss": loss, "step": global_step}, every_n_iter=settings.log_step_count_steps
            )
        )
    worker_hooks.extend(template.hooks)
    scaffold = template.make_scaffold()
    _provide_saver(scaffold, settings)
    own_hooks = [*worker_hooks, *template.chief_hooks]
    saver_hooks = _saver_hooks(own_hooks, scaffold, settings, saving_listeners)
    session = v1.train.MonitoredTrainingSession(
        master=settings.master,
        is_chief=settings.is_chief,
        checkpoint_dir=settings.model_dir,
        scaffold=scaffold,
        hooks=worker_hooks,
        chief_only_hooks=[
            *(hook for hook in saver_hooks if hook not in worker_hooks),
            *(hook for hook in template.chief_hooks if hook not in saver_hooks),
        ],
        save_checkpoint_secs=0,
        save_summaries_steps=settings.save_summary_steps,
        config=placed_by_need(settings.session_config),
        max_wait_secs=settings.session_creation_timeout_secs,
        log_step_count_steps=None,
        save_graph_def=settings.checkpoint_save_graph_def,
    )
    last_loss = None
    with session:
        while not session.should_stop():
            last_loss = session.run([template.train_op, loss])[1]
    if last_loss is None:
        _logger.warning("Training made no steps: the input is empty.")
        return None
    _logger.info("Loss for final step: %s.", last_loss)
    return float(last_loss)


def _summarize_loss(loss: tf.Tensor) -> None:
    summaries = v1.get_collection(v1.GraphKeys.SUMMARIES)
    if not any(summary.op.name == "loss" for summary in summaries):
        v1.summary.scalar("loss", loss)
    v1.add_to_collection(v1.GraphKeys.LOSSES, loss)


def _provide_saver(scaffold: v1.train.Scaffold, settings: SessionSettings) -> None:
    """Adds the default saver, unless the model brought one.

    Relative paths let a model folder be moved; the build is deferred until every variable is
    there.
    """
    if scaffold.saver is not None or v1.get_collection(v1.GraphKeys.SAVERS):
        return
    saver = v1.train.Saver(
        sharded=True,
        max_to_keep=settings.keep_checkpoint_max,
        keep_checkpoint_every_n_hours=settings.keep_checkpoint_every_n_hours,
        defer_build=True,
        save_relative_paths=True,
    )
    v1.add_to_collection(v1.GraphKeys.SAVERS, saver)


def _saver_hooks(
    hooks: Sequence[v1.train.SessionRunHook],
    scaffold: v1.train.Scaffold,
    settings: SessionSettings,
    listeners: Sequence[v1.train.CheckpointSaverListener],
) -> list[v1.train.CheckpointSaverHook]:
    """Gives the hooks that save: the model's own, or else one made from the settings."""
    own = [hook for hook in hooks if isinstance(hook, v1.train.CheckpointSaverHook)]
    if own:
        tf_private.add_checkpoint_listeners(own[0], listeners)
        return own
    if settings.save_checkpoints_secs or settings.save_checkpoints_steps:
        return [
            v1.train.CheckpointSaverHook(
                settings.model_dir,
                save_secs=settings.save_checkpoints_secs,
                save_steps=settings.save_checkpoints_steps,
                scaffold=scaffold,
                listeners=list(listeners),
                save_graph_def=settings.checkpoint_save_graph_def,
            )
        ]
    if listeners:
        raise ValueError(
            "There should be a CheckpointSaverHook to use saving_listeners, and checkpoints are "
            "switched off: set one of RunConfig.save_checkpoints_steps or "
            "RunConfig.save_checkpoints_secs."
        )
    return []
