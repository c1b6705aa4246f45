"""Evaluates in a training's session, and reads the metrics of evaluations from their events."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.file_systems import as_pattern
from tfx_tpu_trainer.estimator._argument_checks import holds
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import whole_steps
from tfx_tpu_trainer.estimator._estimator import Estimator, check_is_estimator
from tfx_tpu_trainer.estimator._evaluations import OpenEvaluation

v1 = tf.compat.v1
_logger = tf.get_logger()


class InMemoryEvaluatorHook(v1.train.SessionRunHook):
    """Evaluates before, during and after training; mirrors the original of that name.

    The variables' values are passed from session to session, so `model_dir` has only the checkpoints of its own
    schedule. A model with its own saver or `init_fn`, or with saved objects other than variables, can't be evaluated
    this way.

    Examples:
        >>> from tfx_tpu_trainer.estimator import BaselineRegressor, experimental, inputs
        >>> import numpy as np
        >>> rows = np.ones(4, np.float32)
        >>> input_fn = inputs.numpy_input_fn({"x": rows}, rows, num_epochs=None, shuffle=False)
        >>> estimator = BaselineRegressor(model_dir="runs/in-memory")
        >>> hook = experimental.InMemoryEvaluatorHook(estimator, input_fn, steps=1, every_n_iter=2)
        >>> estimator = estimator.train(input_fn, hooks=[hook], max_steps=4)
        >>> import os
        >>> os.path.isdir(estimator.eval_dir())
        True
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
        """Takes the arguments of `Estimator.evaluate`.

        Args:
            estimator: The estimator that is trained.
            input_fn: Returns the evaluation data.
            steps: Batches to evaluate. Defaults to `None`: until the data ends.
            hooks: Hooks of the evaluation. Defaults to `None`.
            name: Name of the evaluation, for its events. Defaults to `None`.
            every_n_iter: Session calls of training between evaluations. Defaults to 100.

        Raises:
            ValueError: If every_n_iter or steps is not positive, or the cluster has more than one task.
            TypeError: If an argument has the wrong type.
        """
        check_is_estimator(estimator)
        if every_n_iter is None or not holds("every_n_iter", every_n_iter, lambda n: n > 0):
            raise ValueError(f"invalid every_n_iter={every_n_iter}. It must be positive.")
        config = estimator.config
        if config.num_ps_replicas > 0 or config.num_worker_replicas > 1:
            raise ValueError(
                "InMemoryEvaluator supports only single machine (aka Local) setting. TF_CONFIG has "
                f"{config.num_worker_replicas} workers and {config.num_ps_replicas} ps."
            )
        self._evaluation = OpenEvaluation(estimator, input_fn, steps=steps, hooks=hooks)
        self._name = name
        self._every_n_iter = whole_steps(every_n_iter)

    def begin(self) -> None:
        """Checks, before a session is made, that the model can be evaluated without a checkpoint."""
        self._calls = 0
        _check_no_saveables()
        scaffold = self._evaluation.trace()
        for part in ("saver", "init_fn"):
            if getattr(scaffold, part) is not None:
                raise ValueError(
                    f"InMemoryEvaluator does not support custom {part}. The Scaffold that model_fn "
                    "makes for evaluation has one: leave it out there, or evaluate checkpoints, "
                    "with train_and_evaluate."
                )

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Evaluates the values that training starts from."""
        del coord
        # Checked again: hooks that began after this one may have added some.
        _check_no_saveables()
        self._variables = {variable.name: variable for variable in v1.global_variables()}
        self._evaluate(session)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Evaluates when it is due."""
        del run_values
        self._calls += 1
        if self._every_n_iter and self._calls % self._every_n_iter == 0:
            self._evaluate(run_context.session)

    def end(self, session: v1.Session) -> None:
        """Evaluates the last values."""
        self._evaluate(session)

    def _evaluate(self, session: v1.Session) -> None:
        self._evaluation.evaluate(name=self._name, values=session.run(self._variables))


def _check_no_saveables() -> None:
    saveables = v1.get_collection(v1.GraphKeys.SAVEABLE_OBJECTS)
    if saveables:
        raise ValueError(
            "InMemoryEvaluator does not support saveables other than global variables. The model "
            f"has {[saveable.name for saveable in saveables]}: evaluate checkpoints, with "
            "train_and_evaluate."
        )


def read_events(pattern: str) -> Iterator[tuple[int, dict[str, float]]]:
    """Reads the scalars of event files."""
    # Names of event files begin with the seconds since the epoch, so sorting by name sorts by time:
    # the later values of a step that was evaluated twice win.
    for path in sorted(tf.io.gfile.glob(pattern)):
        try:
            for event in v1.train.summary_iterator(path):
                values = {
                    value.tag: value.simple_value
                    for value in event.summary.value
                    if value.HasField("simple_value")
                }
                if values:
                    yield event.step, values
        except tf.errors.DataLossError as error:
            _logger.warning(
                "Skipping rest of the file due to encountering data corruption error; file path: "
                "%s; original error raised by `tf.train.summary_iterator`: %s",
                path,
                error,
            )


def read_eval_metrics(eval_dir: str) -> dict[int, dict[str, Any]]:
    """Reads the metrics of all evaluations; mirrors the original's helper of that name.

    Args:
        eval_dir: Folder of the evaluation's events, such as `estimator.eval_dir()`.

    Returns:
        Global step -> metrics by name, in the order of the steps.
    """
    metrics: dict[int, dict[str, Any]] = defaultdict(dict)
    for step, values in read_events(os.path.join(as_pattern(eval_dir), "*.tfevents.*")):
        metrics[step].update(values)
    return dict(sorted(metrics.items()))
