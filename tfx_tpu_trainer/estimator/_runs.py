"""Runs the trainings, evaluations, predictions and exports of an Estimator."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfx_tpu_trainer._support.progress import EVALUATE, PREDICT, TRACE, TRAIN, followed, unfollowed
from tfx_tpu_trainer.estimator._calls import call_graph, check_listeners, has_terminal
from tfx_tpu_trainer.estimator._engine import prediction
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints
from tfx_tpu_trainer.estimator._engine.evaluating import evaluation
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation import (
    EvalResult,
    SayRowsRead,
    write_evaluation_events,
)
from tfx_tpu_trainer.estimator._engine.loops.progress_hook import Reporting
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import whole_steps
from tfx_tpu_trainer.estimator._engine.reporting.summaries import events_of
from tfx_tpu_trainer.estimator._engine.training import training
from tfx_tpu_trainer.estimator._mode_keys import ModeKeys
from tfx_tpu_trainer.estimator._spec_checks import check_hooks
from tfx_tpu_trainer.estimator._task_environment import TaskType
from tfx_tpu_trainer.estimator._warm_start import warm_start
from tfx_tpu_trainer.estimator.export._meta_graph import MetaGraph
from tfx_tpu_trainer.estimator.export._saved_model import (
    build_meta_graphs,
    check_receiver_fns,
    export_meta_graphs,
    export_saved_model,
    find_checkpoint,
)

if TYPE_CHECKING:
    from tfx_tpu_trainer.estimator._estimator import Estimator

v1 = tf.compat.v1
_logger = tf.get_logger()

_SESSION_HOOKS = "Hooks must be a SessionRunHook"


def train(
    estimator: Estimator,
    input_fn: Callable[..., Any],
    hooks: Any,
    steps: int | None,
    max_steps: int | None,
    saving_listeners: Any,
) -> None:
    """Trains from the latest checkpoint on, unless `max_steps` are made already."""
    config, calls = estimator._config, estimator._calls
    if config.task_type in (TaskType.EVALUATOR, TaskType.PS):
        raise ValueError(
            f"Train has been called wrong configuration: this task is {config.task_type} "
            "in TF_CONFIG. Please use train_and_evaluate, which starts the part of each task."
        )
    calls.check_train_steps(steps, max_steps)
    steps, max_steps = whole_steps(steps), whole_steps(max_steps)
    if max_steps is not None and checkpoints.global_step_of(estimator.model_dir) >= max_steps:
        _logger.info("Skipping training since max_steps has already saved.")
        return
    all_hooks = check_hooks(hooks, message=_SESSION_HOOKS)
    listeners = check_listeners(saving_listeners)
    reports = calls.training_reports()
    with (
        events_of(estimator.model_dir),
        followed(reports.mode(config), may_draw=has_terminal(config)) as progress,
        call_graph(config),
    ):
        with progress.phase(TRACE):
            plan, own_hooks = calls.plan_training(input_fn, steps=steps, max_steps=max_steps)
        # Values of a warm start would be overwritten by a checkpoint's, so none is read then.
        if not estimator.latest_checkpoint():
            if unnamed := checkpoints.unnamed_checkpoints(estimator.model_dir):
                _logger.warning(
                    "Training starts from scratch in %s.%s", estimator.model_dir, unnamed
                )
            _warm_start(estimator)
        with progress.phase(TRAIN):
            progress.place(plan.ran_on)
            training.train(
                plan,
                settings=estimator._config_of_runs,
                master=calls.session_master(ModeKeys.TRAIN),
                hooks=[*own_hooks, *all_hooks],
                saving_listeners=listeners,
                reporting=Reporting(
                    progress=progress,
                    steps=steps,
                    max_steps=max_steps,
                    rows_per_step=reports.rows_per_step,
                    every_steps=reports.every_steps,
                ),
            )


class OpenEvaluation:
    """Evaluates one checkpoint after another: one graph serves all where no evaluation can change the next."""

    def __init__(
        self,
        estimator: Estimator,
        input_fn: Callable[..., Any],
        *,
        steps: int | None = None,
        hooks: Sequence[v1.train.SessionRunHook] | None = None,
        keeps_session: bool = False,
    ) -> None:
        """Takes the arguments of `Estimator.evaluate`.

        Args:
            estimator: The estimator whose checkpoints are evaluated.
            input_fn: Returns the evaluation data.
            steps: Batches to evaluate. Defaults to `None`: until the data ends.
            hooks: Hooks of each evaluation. Defaults to `None`.
            keeps_session: Whether evaluations also share a session where they can. Defaults to `False`.
        """
        estimator._calls.check_eval_steps(steps)
        self._estimator, self._input_fn, self._steps = estimator, input_fn, whole_steps(steps)
        self._hooks = list(check_hooks(hooks, message=_SESSION_HOOKS))
        if steps is None:
            self._hooks.append(SayRowsRead())
        self._keeps_session = keeps_session
        self._graph: tf.Graph | None = None

    def trace(self) -> v1.train.Scaffold:
        """Traces the evaluation, which finds mistakes before there is anything to evaluate.

        Returns:
            The model's scaffold.
        """
        with call_graph(self._estimator._config) as graph:
            self._trace(graph)
        return self._prepared.scaffold

    def evaluate(
        self,
        checkpoint_path: Any = None,
        *,
        name: str | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> EvalResult:
        """Evaluates a checkpoint, given values or, where there are neither, first values.

        Args:
            checkpoint_path: The checkpoint. Defaults to the latest.
            name: Name of the evaluation, for its events. Defaults to `None`.
            values: Name of a variable -> its value, in place of a checkpoint. Defaults to `None`.

        Returns:
            The result.
        """
        estimator, config = self._estimator, self._estimator._config
        if values is None:
            checkpoint_path = _checkpoint_or_warning(estimator, checkpoint_path, "evaluate")
        with contextlib.ExitStack() as stack:
            stack.enter_context(events_of(estimator.model_dir))
            progress = stack.enter_context(followed(config.progress, may_draw=has_terminal(config)))
            has_values = bool(checkpoint_path) or values is not None
            if self._graph is not None and has_values and self._prepared.is_reusable:
                stack.enter_context(self._graph.as_default())
            else:
                self.close()
                graph = stack.enter_context(call_graph(config))
                with progress.phase(TRACE):
                    self._trace(graph, warm_starts=not has_values)
            with progress.phase(EVALUATE):
                progress.place(self._ran_on)
                result = self._prepared.run(checkpoint_path, values=values, progress=progress)
            write_evaluation_events(result, output_dir=estimator.eval_dir(name))
        return result

    def close(self) -> None:
        """Closes the session that evaluations share."""
        if self._graph is not None:
            self._prepared.close()

    def _trace(self, graph: tf.Graph, *, warm_starts: bool = False) -> None:
        estimator, calls = self._estimator, self._estimator._calls
        plan, own_hooks = calls.place(self._input_fn, ModeKeys.EVAL).plan_evaluation(
            steps=self._steps
        )
        if warm_starts:
            _warm_start(estimator)
        self._ran_on = plan.ran_on
        self._prepared = evaluation.PreparedEvaluation(
            plan,
            settings=estimator._config_of_runs,
            master=calls.session_master(ModeKeys.EVAL),
            hooks=[*own_hooks, *self._hooks],
            steps=self._steps,
        )
        if self._keeps_session:
            self._prepared.keep_session()
        self._graph = graph


def predict(
    estimator: Estimator,
    input_fn: Callable[..., Any],
    predict_keys: Sequence[str] | str | None,
    hooks: Any,
    checkpoint_path: Any,
    yield_single_examples: bool,
) -> Iterator[Any]:
    """Yields predictions; nothing runs before the first is taken."""
    config, calls = estimator._config, estimator._calls
    all_hooks = check_hooks(hooks, message=_SESSION_HOOKS)
    checkpoint_path = _checkpoint_or_warning(estimator, checkpoint_path, "predict")
    with call_graph(config):
        place = calls.place(input_fn, ModeKeys.PREDICT)
        plan, own_hooks = place.plan_prediction(predict_keys)
        if not checkpoint_path:
            _warm_start(estimator)
    batches = prediction.predict_batches(
        plan,
        settings=estimator._config_of_runs,
        master=calls.session_master(ModeKeys.PREDICT),
        hooks=[*own_hooks, *all_hooks],
        checkpoint_path=checkpoint_path,
    )
    progress = unfollowed(config.progress, may_draw=has_terminal(config))
    # The graph's context has ended above: a suspended generator inside it would leave its graph as
    # the default one of the caller's own code.
    with contextlib.closing(batches), progress.phase(PREDICT):
        counted = prediction.told(batches, progress)
        yield from prediction.single_rows(counted) if yield_single_examples else counted


def build_export(
    estimator: Estimator, serving_input_receiver_fn: Callable[[], Any]
) -> tuple[MetaGraph, ...]:
    """Builds the graphs of an export."""
    calls = estimator._calls
    return tuple(
        build_meta_graphs(
            calls.call_model_for_export,
            {ModeKeys.PREDICT: serving_input_receiver_fn},
            random_seed=estimator._config.tf_random_seed,
            **calls.export_options(),
        )
    )


def export_graphs(
    estimator: Estimator,
    export_dir_base: str,
    meta_graphs: Sequence[MetaGraph],
    checkpoint_path: str | None,
) -> bytes:
    """Exports graphs that were built before."""
    return export_meta_graphs(
        meta_graphs,
        export_dir_base=export_dir_base,
        checkpoint_path=_checkpoint_to_export(estimator, checkpoint_path),
        session_config=estimator._config.session_config,
    )


def export(
    estimator: Estimator,
    export_dir_base: str,
    input_receiver_fns: Mapping[str, Callable[[], Any]],
    checkpoint_path: str | None,
    **options: Any,
) -> bytes:
    """Builds and exports the graphs of the modes that have a receiver function."""
    check_receiver_fns(input_receiver_fns)
    config, calls = estimator._config, estimator._calls
    return export_saved_model(
        export_dir_base=export_dir_base,
        call_model=calls.call_model_for_export,
        input_receiver_fns=input_receiver_fns,
        checkpoint_path=_checkpoint_to_export(estimator, checkpoint_path),
        random_seed=config.tf_random_seed,
        session_config=config.session_config,
        **calls.export_options(),
        **options,
    )


def _checkpoint_to_export(estimator: Estimator, checkpoint_path: str | None) -> str:
    return find_checkpoint(
        checkpoint_path or estimator.latest_checkpoint(),
        model_dir=estimator.model_dir,
        warm_start=estimator._warm_start_settings,
    )


def _checkpoint_or_warning(estimator: Estimator, given: Any, doing: str) -> Any:
    """Returns the checkpoint to read; logs, in the original's line, where there is none.

    Variables are initialized then, and unless a warm start is meant this is worth a warning.
    """
    # A path as TensorFlow's savers take it; anything else is refused where it is opened.
    path = os.fsdecode(given) if isinstance(given, (bytes, os.PathLike)) else given
    path = path or estimator.latest_checkpoint()
    if path:
        return path
    _logger.info(
        "Could not find trained model in model_dir: %s, running initialization to %s.",
        estimator.model_dir,
        doing,
    )
    if estimator._warm_start_settings is None:
        _logger.warning(
            "%s runs on variables that were never trained: model_dir has no latest checkpoint.%s",
            doing,
            checkpoints.unnamed_checkpoints(estimator.model_dir),
        )
    return path


def _warm_start(estimator: Estimator) -> None:
    if estimator._warm_start_settings is not None:
        _logger.info("Warm-starting with WarmStartSettings: %s", estimator._warm_start_settings)
        warm_start(estimator._warm_start_settings)
