"""Runs predictions in a session."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.progress import Batches, Progress
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import GraphCopier
from tfx_tpu_trainer.estimator._engine.feeding.input_pipeline import can_be_read_ahead
from tfx_tpu_trainer.estimator._engine.loops.direct_draws import copy_with_direct_draws
from tfx_tpu_trainer.estimator._engine.loops.pace import allows_loops
from tfx_tpu_trainer.estimator._engine.predicting.prediction_loop import (
    PredictionLoop,
    allows_prediction_loop,
    build_prediction_loop,
    columns_of,
    run_prediction_loop,
)
from tfx_tpu_trainer.estimator._engine.sessions.closing import closed_aside
from tfx_tpu_trainer.estimator._engine.sessions.opening import (
    SessionCreatorFn,
    SessionSettings,
    open_restored_session,
)
from tfx_tpu_trainer.estimator._engine.sessions.patient_creator import hosts_of
from tfx_tpu_trainer.estimator._engine.sessions.patient_session import PatientSession
from tfx_tpu_trainer.estimator._engine.sessions.run_errors import run_errors_explained
from tfx_tpu_trainer.estimator._engine.sessions.session_configs import Optimizing
from tfx_tpu_trainer.estimator._engine.sessions.stall_watch import StallWatch
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate

v1 = tf.compat.v1

_ENDED = object()


@dataclasses.dataclass(frozen=True)
class PredictionPlan:
    """A prediction, placed and ready to run.

    Attributes:
        template: The model.
        fetches: The predictions of one batch.
        rows: Rows of the batch; none mean that the input has ended. `None` where the end of the
            input ends the session by itself.
        session_creator: Makes the session's creator. Defaults to `ChiefSessionCreator`.
    """

    template: ModelTemplate
    fetches: Any
    rows: tf.Tensor | None = None
    session_creator: SessionCreatorFn = v1.train.ChiefSessionCreator

    @property
    def is_on_host(self) -> bool:
        """Whether the template's own nodes run, and no function of cores or of a strategy."""
        return self.rows is None and self.session_creator is v1.train.ChiefSessionCreator


def predict_batches(
    plan: PredictionPlan,
    *,
    settings: SessionSettings,
    hooks: Sequence[v1.train.SessionRunHook],
    checkpoint_path: str | None,
    master: str = "",
) -> Generator[Any, None, None]:
    """Yields the predictions of each batch until the input ends.

    Closing the generator closes the session. The template's graph is the default one while the
    generator runs, for hooks, and not between batches, so generators may be interleaved with other
    work. Where nobody could tell but by the clock, several batches run in one session call.
    """
    batches = _batches_of_session(
        plan, settings=settings, hooks=hooks, checkpoint_path=checkpoint_path, master=master
    )
    graph = plan.template.graph
    try:
        while True:
            with graph.as_default():
                batch = next(batches, _ENDED)
            if batch is _ENDED:
                return
            yield batch
    finally:
        with graph.as_default():
            batches.close()


def _batches_of_session(
    plan: PredictionPlan,
    *,
    settings: SessionSettings,
    hooks: Sequence[v1.train.SessionRunHook],
    checkpoint_path: str | None,
    master: str,
) -> Generator[Any, None, None]:
    """Yields the predictions of each batch; the template's graph must be the default one."""
    all_hooks = [*hooks, *plan.template.hooks]
    loop = None
    if not master and allows_loops(all_hooks):
        loop = _make_loop(plan)
    by_itself = loop is None and plan.is_on_host
    session = open_restored_session(
        settings=settings,
        master=master,
        scaffold=plan.template.make_scaffold(),
        checkpoint_path=checkpoint_path,
        hooks=all_hooks,
        optimizing=Optimizing.CONFIGURED if by_itself else Optimizing.NOTHING,
        session_creator=plan.session_creator,
    )
    # In a session made anew the input begins again, and rows would be yielded twice.
    watch = StallWatch(
        "Prediction",
        unit="batch",
        timeout_secs=settings.stall_timeout_secs,
        hosts=hosts_of(settings, master),
    )
    calls = PatientSession(session, watch, retries=0)
    explained = run_errors_explained(plan.template)
    aside = closed_aside(session, calls, master=master)
    if loop is not None:
        with watch, aside, explained:
            yield from run_prediction_loop(loop, calls)
        return
    fetches = [plan.fetches] if plan.rows is None else [plan.fetches, plan.rows]
    with watch, aside, explained:
        while not calls.should_stop():
            predictions, *rows = calls.run(fetches)
            if rows and not rows[0]:
                return
            yield predictions


def told(batches: Iterable[Any], progress: Progress) -> Iterator[Any]:
    """Yields what it is given, and tells a `Progress` of it when that is due."""
    done, is_shown = 0, False
    for batch in batches:
        done += 1
        if progress.is_due():
            is_shown = done > 1
            progress.counted(done)
        yield batch
    if is_shown:
        progress.say(f"predict: {Batches(done=done)}")


def _make_loop(plan: PredictionPlan) -> PredictionLoop | None:
    """Returns a loop of the template's batches; `None` where there can be none."""
    template = plan.template
    if not plan.is_on_host or not allows_prediction_loop(plan.fetches):
        return None
    if not can_be_read_ahead(template.graph):
        return None
    copier = GraphCopier(template.graph)
    predictions = columns_of(plan.fetches)

    def make_batch() -> tuple[list[tf.Tensor], tf.Tensor]:
        return copy_with_direct_draws(copier, predictions, name="batch"), tf.constant(True)

    return build_prediction_loop(plan.fetches, make_batch)
