"""`train_and_evaluate`: in one process, or as one task of a cluster that TF_CONFIG describes."""

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.waiting import named, said_while_waiting, without_answer
from tfx_tpu_trainer.estimator._argument_checks import leads_steps
from tfx_tpu_trainer.estimator._estimator import Estimator
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator._task_environment import TaskType
from tfx_tpu_trainer.estimator.places.choice import configured_strategy
from tfx_tpu_trainer.estimator.schedule._local import (
    CheckpointEvaluator,
    EvalSpec,
    EvaluateAfterSaving,
    EvaluationListener,
    TrainSpec,
    run_local,
)

v1 = tf.compat.v1
_logger = tf.get_logger()

_SECONDS_PER_WORKER = 5
_MOST_SECONDS = 60
_TRAINERS = (TaskType.CHIEF, TaskType.MASTER, TaskType.WORKER)


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[Mapping[str, Any] | None, list[bytes | None] | None] | None:
    """Trains, evaluates and exports; mirrors `tf.estimator.train_and_evaluate`.

    In one process, an evaluation follows each checkpoint. If TF_CONFIG describes a cluster, this process runs its own
    task: chief and workers train, a ps serves variables, and the evaluator evaluates checkpoints as they appear, until
    it reaches `max_steps`.

    Examples:
        >>> from tfx_tpu_trainer.estimator import (
        ...     EvalSpec, FinalExporter, LinearRegressor, TrainSpec, export, inputs, train_and_evaluate
        ... )
        >>> import numpy as np
        >>> import tensorflow as tf
        >>> rows = np.arange(8, dtype=np.float32)
        >>> train = inputs.numpy_input_fn({"x": rows}, 2 * rows, num_epochs=None, shuffle=True)
        >>> evaluate = inputs.numpy_input_fn({"x": rows}, 2 * rows, shuffle=False)
        >>> x = tf.feature_column.numeric_column("x")
        >>> receiver_fn = export.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([None])})
        >>> metrics, exports = train_and_evaluate(
        ...     LinearRegressor([x], model_dir="runs/line", optimizer="Adam"),
        ...     TrainSpec(train, max_steps=20),
        ...     EvalSpec(evaluate, steps=None, exporters=FinalExporter("final", receiver_fn)),
        ... )
        >>> print(metrics["global_step"], len(exports))
        20 1

    Args:
        estimator: The estimator.
        train_spec: How to train.
        eval_spec: How to evaluate, and what to export.

    Returns:
        The last metrics and the exporters' results; `None` in a cluster.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If TF_CONFIG is invalid.
    """
    return run_schedule(estimator, train_spec, eval_spec)


def run_schedule(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_spec: EvalSpec,
    *,
    listener: EvaluationListener | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Mapping[str, Any] | None, list[bytes | None] | None] | None:
    """Runs `train_and_evaluate` with a listener.

    Args:
        estimator: The estimator.
        train_spec: How to train.
        eval_spec: How to evaluate, and what to export.
        listener: May stop the schedule before or after an evaluation. Defaults to `None`.
        sleep: Waits for some seconds. Defaults to `time.sleep`.

    Returns:
        The result of `train_and_evaluate`.
    """
    for name, value, kind in (
        ("eval_spec", eval_spec, EvalSpec),
        ("estimator", estimator, Estimator),
        ("train_spec", train_spec, TrainSpec),
    ):
        if not isinstance(value, kind):
            raise TypeError(
                f"`{name}` must have type `tf.estimator.{kind.__name__}`. Got: {type(value)}"
            )
    config = estimator.config
    _logger.info("Not using Distribute Coordinator.")
    if not config.cluster_spec and config.task_type != TaskType.EVALUATOR:
        _logger.info("Running training and evaluation locally (non-distributed).")
        return run_local(estimator, train_spec, eval_spec, listener=listener)
    task = _check_task(config)
    if task == TaskType.EVALUATOR:
        _evaluate_until_the_end(estimator, train_spec, eval_spec, listener, sleep)
    elif task == TaskType.PS:
        server = start_server(config)
        assert server is not None
        with said_while_waiting(
            lambda: _absent_trainers(config),
            change="This parameter server runs until it is stopped from outside.",
        ):
            server.join()
    else:
        _train(estimator, train_spec, eval_spec, sleep)
    return None


def start_server(config: RunConfig) -> tf.distribute.Server | None:
    """Starts this process's server in the cluster.

    Args:
        config: The configuration of the run.

    Returns:
        The server; `None` for a cluster of this process alone, which needs none.

    Raises:
        RuntimeError: If the configuration has no master's address, or another process uses the port.
    """
    cluster = config.cluster_spec
    if not config.master:
        tasks = [task for job in cluster.jobs for task in cluster.job_tasks(job)]
        if len(tasks) == 1 and config.task_type in _TRAINERS:
            _logger.info(
                "Skip starting Tensorflow server as there is only one node in the cluster."
            )
            return None
        raise RuntimeError(
            "Could not start server; be sure to specify master in RunConfig or set the TF_CONFIG "
            "environment variable."
        )
    _logger.info("Start Tensorflow server.")
    session_config = v1.ConfigProto()
    if config.session_config is not None:
        session_config.gpu_options.CopyFrom(config.session_config.gpu_options)
    try:
        return tf.distribute.Server(
            cluster,
            job_name=config.task_type,
            task_index=config.task_id,
            config=session_config,
            protocol=config.protocol,
            start=True,
        )
    except tf.errors.OpError as error:
        address = cluster.task_address(config.task_type, config.task_id)
        raise RuntimeError(
            f"The server of {config.task_type}:{config.task_id} can't listen at {address!r}, its "
            f"address in TF_CONFIG ({error.message}). If another process uses the port, stop it, "
            "or give this task another port in the TF_CONFIG of every task."
        ) from None


def _absent_trainers(config: RunConfig) -> str | None:
    """Names the training tasks that do not answer; `None` if all do."""
    cluster = config.cluster_spec
    absent = without_answer(
        {
            f"{job} {task}": cluster.task_address(job, task)
            for job in cluster.jobs
            if job in _TRAINERS
            for task in cluster.task_indices(job)
        }
    )
    return f"hosts of the cluster that do not answer: {named(absent)}" if absent else None


def _check_task(config: RunConfig) -> str:
    supported = [*_TRAINERS, TaskType.PS, TaskType.EVALUATOR]
    if not config.task_type:
        raise ValueError(
            "`estimator.config` must have task_type set. This usually means TF_CONFIG environment "
            "is not set correctly."
        )
    if config.task_type == "local":
        raise ValueError(
            "`task.type` in TF_CONFIG cannot be `local`. Leaving `cluster` and `task` out of "
            "TF_CONFIG trains and evaluates in this process."
        )
    if config.task_type not in supported:
        raise ValueError(
            f"Task type {config.task_type} is not supported. Supported task types are {supported}: "
            "give one of them in TF_CONFIG."
        )
    if config.task_type == TaskType.EVALUATOR and config.task_id > 0:
        raise ValueError(
            "For distributed training, there can only be one `evaluator` task (with task id 0). "
            f"Given task id {config.task_id} in TF_CONFIG; leave this task out."
        )
    return config.task_type


def _train(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec, sleep: Callable[[float], None]
) -> None:
    """Trains as chief, master or worker; a master evaluates too."""
    config = estimator.config
    # Started before any delay, since the other tasks wait for this server.
    server = None if _has_connected_tasks(config) else start_server(config)
    listeners: tuple[v1.train.CheckpointSaverListener, ...] = ()
    if config.is_chief:
        listeners = train_spec.saving_listeners
    # "master" is the chief of old clusters, which have no evaluator, so it evaluates between steps.
    if config.task_type == TaskType.MASTER:
        evaluator = CheckpointEvaluator(estimator, eval_spec, max_steps=train_spec.max_steps)
        evaluations = EvaluateAfterSaving(evaluator, throttle_secs=eval_spec.throttle_secs)
        listeners = (*listeners, evaluations)
    delay = worker_delay(config)
    if delay > 0:
        _logger.info("Waiting %d secs before starting training.", delay)
        with said_while_waiting(
            "the workers before this one to start",
            change=f"It starts after {delay} s (RunConfig(experimental_max_worker_delay_secs=...)).",
        ):
            sleep(delay)
    estimator.train(
        input_fn=train_spec.input_fn,
        max_steps=train_spec.max_steps,
        hooks=list(train_spec.hooks),
        saving_listeners=listeners,
    )
    del server  # The server lives as long as its task trains.


def _has_connected_tasks(config: RunConfig) -> bool:
    """Returns whether the training strategy connects the tasks of TF_CONFIG itself."""
    return leads_steps(configured_strategy(config, ModeKeys.TRAIN))


def worker_delay(config: RunConfig) -> int:
    """Returns a task's delay in seconds: workers start one by one, those of a strategy together."""
    if config.task_type != TaskType.WORKER or config.is_chief or _has_connected_tasks(config):
        return 0
    longest = config.experimental_max_worker_delay_secs
    longest = _MOST_SECONDS if longest is None else int(longest)
    return min(longest, (config.task_id + 1) * _SECONDS_PER_WORKER)


def _evaluate_until_the_end(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_spec: EvalSpec,
    listener: EvaluationListener | None,
    sleep: Callable[[float], None],
) -> None:
    """Evaluates checkpoints as they appear, until the last step."""
    listener = listener or EvaluationListener()
    evaluator = CheckpointEvaluator(estimator, eval_spec, max_steps=train_spec.max_steps)
    if eval_spec.start_delay_secs:
        _logger.info("Waiting %f secs before starting eval.", eval_spec.start_delay_secs)
        with said_while_waiting(
            "the training to make progress",
            change=f"Evaluations start after {eval_spec.start_delay_secs} s (EvalSpec(start_delay_secs=...)).",
        ):
            sleep(eval_spec.start_delay_secs)
    # `idle` logs the wait for a checkpoint over any number of checks; the next evaluation closes it.
    waits = False
    with contextlib.ExitStack() as idle:
        while listener.before_eval():
            started = time.monotonic()
            evaluated = evaluator.evaluate_newest()
            if evaluated is not None and waits:
                idle.close()
                waits = False
            if not listener.after_eval(evaluated):
                _logger.info(
                    "Exiting evaluation, as requested by _ContinuousEvalListener.after_eval."
                )
                return
            last_step = train_spec.max_steps
            if evaluated is not None and last_step and evaluated.global_step >= last_step:
                _logger.info(
                    "Exiting evaluation, global_step=%s >= train max_steps=%s",
                    evaluated.global_step,
                    last_step,
                )
                return
            if not waits:
                waits = True
                idle.enter_context(
                    said_while_waiting(
                        evaluator.awaited,
                        change=(
                            "It ends with a checkpoint of TrainSpec(max_steps=...); "
                            f"EvalSpec(throttle_secs={eval_spec.throttle_secs}) sets how often it "
                            "looks."
                        ),
                    )
                )
            left = eval_spec.throttle_secs - (time.monotonic() - started)
            if left > 0:
                _logger.info("Waiting %f secs before starting next eval run.", left)
                sleep(left)
            elif not eval_spec.throttle_secs and evaluated is None:
                _logger.warning(
                    "EvalSpec.throttle_secs is set as 0. This might overload the job before finding "
                    "(next) new checkpoint. Please consider to increase it."
                )
    _logger.info("Exiting evaluation, as requested by _ContinuousEvalListener.before_eval.")
