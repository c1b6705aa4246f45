"""Evaluates an Estimator's checkpoints, any number of them with one graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfx_tpu_trainer._support.progress import EVALUATE, TRACE, followed
from tfx_tpu_trainer.estimator._calls import (
    SESSION_HOOKS,
    call_graph,
    checkpoint_or_warning,
    has_terminal,
    start_warm,
)
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation import (
    EvalResult,
    PreparedEvaluation,
    SayRowsRead,
    write_evaluation_events,
)
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import whole_steps
from tfx_tpu_trainer.estimator._engine.reporting.summaries import events_of
from tfx_tpu_trainer.estimator._estimator_spec import check_hooks
from tfx_tpu_trainer.estimator._modes import ModeKeys

if TYPE_CHECKING:
    from tfx_tpu_trainer.estimator._estimator import Estimator

v1 = tf.compat.v1


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
        self._hooks = list(check_hooks(hooks, message=SESSION_HOOKS))
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
            checkpoint_path = checkpoint_or_warning(estimator, checkpoint_path, "evaluate")
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
            start_warm(estimator)
        self._ran_on = plan.ran_on
        self._prepared = PreparedEvaluation(
            plan,
            settings=estimator._config_of_runs,
            master=calls.session_master(ModeKeys.EVAL),
            hooks=[*own_hooks, *self._hooks],
            steps=self._steps,
        )
        if self._keeps_session:
            self._prepared.keep_session()
        self._graph = graph
