"""Evaluation during training, of values that no checkpoint of the model folder has."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator import spec_checks
from tfx_tpu_trainer.estimator.estimator import Estimator

v1 = tf.compat.v1


class InMemoryEvaluatorHook(v1.train.SessionRunHook):
    """Evaluates before, during and after training; mirrors the original of that name.

    The values go through a temporary folder, so that `model_dir` has the checkpoints of its own
    schedule only. (The original hands them from session to session.)
    """

    def __init__(
        self,
        estimator: Estimator,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[v1.train.SessionRunHook] | None = None,
        name: str | None = None,
        every_n_iter: int = 100,
    ) -> None:
        """Takes what `Estimator.evaluate` takes.

        Args:
            estimator: The estimator that is trained.
            input_fn: Gives the evaluation data.
            steps: Batches to evaluate. Defaults to `None`: until the data ends.
            hooks: Hooks of the evaluation. Defaults to `None`.
            name: Name of the evaluation, for its events. Defaults to `None`.
            every_n_iter: Session calls of training between evaluations. Defaults to 100.

        Raises:
            ValueError: If every_n_iter is not positive, or there is more than one process.
            TypeError: If a hook is none.
        """
        if not every_n_iter or every_n_iter < 0:
            raise ValueError(f"invalid every_n_iter={every_n_iter}: it must be positive.")
        config = estimator.config
        if config.num_ps_replicas > 0 or config.num_worker_replicas > 1:
            raise ValueError(
                "InMemoryEvaluator supports only single machine (aka Local) setting; TF_CONFIG has "
                f"{config.num_worker_replicas} workers and {config.num_ps_replicas} ps."
            )
        self._estimator = estimator
        self._input_fn = input_fn
        self._steps = steps
        self._hooks = spec_checks.check_hooks(hooks)
        self._name = name
        self._every_n_iter = every_n_iter

    def begin(self) -> None:
        """Makes the saver, before the graph is finalized."""
        self._calls = 0
        self._saver = v1.train.Saver(max_to_keep=1)

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Evaluates the values that training starts from."""
        del coord
        self._evaluate(session)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Evaluates when it is due."""
        del run_values
        self._calls += 1
        if self._calls % self._every_n_iter == 0:
            self._evaluate(run_context.session)

    def end(self, session: v1.Session) -> None:
        """Evaluates the last values."""
        self._evaluate(session)

    def _evaluate(self, session: v1.Session) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = self._saver.save(session, os.path.join(folder, "values"), write_meta_graph=False)
            self._estimator.evaluate(
                self._input_fn,
                steps=self._steps,
                hooks=self._hooks,
                checkpoint_path=path,
                name=self._name,
            )
