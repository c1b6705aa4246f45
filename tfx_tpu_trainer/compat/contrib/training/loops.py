"""Train ops that run the layers' updates, and loops that train and evaluate without an estimator."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer._support.waiting import said_while_waiting
from tfx_tpu_trainer.compat.contrib.tf_private import (
    evaluate_once,
    get_or_create_eval_step,
)

v1 = tf.compat.v1
_logger = tf.get_logger()
_Gradients = list[tuple[Any, tf.Variable]]
# The argument's value that means the graph's own step.
_USE_GLOBAL_STEP: Final = 0


def create_train_op(
    total_loss: Any,
    optimizer: Any,
    global_step: Any = _USE_GLOBAL_STEP,
    update_ops: Any = None,
    variables_to_train: Sequence[tf.Variable] | None = None,
    transform_grads_fn: Callable[[_Gradients], _Gradients] | None = None,
    summarize_gradients: bool = False,
    gate_gradients: int = v1.train.Optimizer.GATE_OP,
    aggregation_method: Any = None,
    colocate_gradients_with_ops: bool = False,
    check_numerics: bool = True,
) -> tf.Tensor:
    """Makes an op that runs the layers' updates, trains, and returns the loss.

    Args:
        total_loss: The loss, a scalar.
        optimizer: An optimizer of TF 1.
        global_step: The step to count; `None` for none. Defaults to 0, meaning the graph's.
        update_ops: Ops that run before the loss. Defaults to `None`, those in
            `GraphKeys.UPDATE_OPS`.
        variables_to_train: The variables to train. Defaults to `None`, all trainable variables.
        transform_grads_fn: Changes the pairs of gradient and variable. Defaults to `None`.
        summarize_gradients: Whether to write summaries of them. Defaults to `False`.
        gate_gradients: As for `compute_gradients`. Defaults to `GATE_OP`.
        aggregation_method: As for `compute_gradients`. Defaults to `None`.
        colocate_gradients_with_ops: As for `compute_gradients`. Defaults to `False`.
        check_numerics: Whether a loss that is not a number is an error. Defaults to `True`.

    Returns:
        The loss, after the update. It is in `GraphKeys.TRAIN_OP`.

    Raises:
        ValueError: If there is nothing to train.
    """
    step = global_step
    if isinstance(global_step, int) and global_step == _USE_GLOBAL_STEP:
        step = v1.train.get_or_create_global_step()
    updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS) if update_ops is None else list(update_ops)
    if updates:
        with tf.control_dependencies(updates):
            total_loss = tf.identity(total_loss)
    variables = v1.trainable_variables() if variables_to_train is None else variables_to_train
    if not variables:
        raise ValueError("Nothing to train: the graph has no trainable variables.")
    gradients = optimizer.compute_gradients(
        total_loss,
        variables,
        gate_gradients=gate_gradients,
        aggregation_method=aggregation_method,
        colocate_gradients_with_ops=colocate_gradients_with_ops,
    )
    if transform_grads_fn is not None:
        gradients = transform_grads_fn(gradients)
    if summarize_gradients:
        with v1.name_scope("summarize_grads"):
            add_gradients_summaries(gradients)
    update = optimizer.apply_gradients(gradients, global_step=step)
    with v1.name_scope("train_op"):
        if check_numerics:
            total_loss = tf.debugging.check_numerics(total_loss, "LossTensor is inf or nan")
        with tf.control_dependencies([update]):
            train_op = tf.identity(total_loss)
    v1.add_to_collection(v1.GraphKeys.TRAIN_OP, train_op)
    return train_op


def add_gradients_summaries(grads_and_vars: _Gradients) -> list[tf.Tensor]:
    """Writes a histogram and the norm of each gradient.

    Args:
        grads_and_vars: Pairs of gradient and variable.

    Returns:
        The summary ops.
    """
    made = []
    for gradient, variable in grads_and_vars:
        if gradient is None:
            _logger.info("Var %s has no gradient", variable.op.name)
            continue
        values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        made.append(v1.summary.histogram(f"{variable.op.name}_gradient", values))
        norm = tf.linalg.global_norm([values])
        made.append(v1.summary.scalar(f"{variable.op.name}_gradient_norm", norm))
    return made


def clip_gradient_norms(gradients_to_variables: _Gradients, max_norm: float) -> _Gradients:
    """Clips each gradient by its norm.

    Args:
        gradients_to_variables: Pairs of gradient and variable.
        max_norm: The greatest norm.

    Returns:
        The clipped pairs.
    """
    return [
        (changed(gradient, lambda values: tf.clip_by_norm(values, max_norm)), variable)
        for gradient, variable in gradients_to_variables
    ]


def multiply_gradients(
    grads_and_vars: _Gradients, gradient_multipliers: Mapping[Any, Any]
) -> _Gradients:
    """Multiplies the gradients of some variables.

    Args:
        grads_and_vars: Pairs of gradient and variable.
        gradient_multipliers: Variable, or its name -> factor.

    Returns:
        The multiplied pairs.

    Raises:
        ValueError: If there are no factors, or one is for a variable without a gradient.
    """
    if not isinstance(grads_and_vars, list):
        raise ValueError(f"grads_and_vars must be a list of pairs; got {grads_and_vars!r}.")
    if not gradient_multipliers or not isinstance(gradient_multipliers, Mapping):
        raise ValueError(
            f"gradient_multipliers must be a dict of at least one factor; got {gradient_multipliers!r}."
        )
    factors = {
        each if isinstance(each, str) else each.op.name: factor
        for each, factor in gradient_multipliers.items()
    }
    multiplied: _Gradients = []
    for gradient, variable in grads_and_vars:
        factor = factors.get(variable.op.name)
        if factor is not None:
            if gradient is None:
                raise ValueError(f"{variable.op.name} has no gradient that could be multiplied.")
            gradient = changed(gradient, functools.partial(tf.multiply, factor))
        multiplied.append((gradient, variable))
    return multiplied


def changed(gradient: Any, change: Callable[[Any], Any]) -> Any:
    """Changes the values of a gradient, dense or sparse."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(change(gradient.values), gradient.indices, gradient.dense_shape)
    return change(gradient)


def wait_for_new_checkpoint(
    checkpoint_dir: str,
    last_checkpoint: str | None = None,
    seconds_to_sleep: float = 1,
    timeout: float | None = None,
) -> str | None:
    """Waits until a folder has another checkpoint.

    Args:
        checkpoint_dir: The folder.
        last_checkpoint: The last known checkpoint. Defaults to `None`.
        seconds_to_sleep: How often to look, in seconds. Defaults to 1.
        timeout: How long to wait, in seconds. Defaults to `None`, forever.

    Returns:
        The checkpoint; `None` if none appears in time.
    """
    end = None if timeout is None else time.monotonic() + timeout
    with said_while_waiting(
        f"a new checkpoint in {checkpoint_dir}", change=f"The time limit is timeout={timeout}."
    ):
        while True:
            found = tf.train.latest_checkpoint(checkpoint_dir)
            if found is not None and found != last_checkpoint:
                return found
            if end is not None and time.monotonic() + seconds_to_sleep > end:
                return None
            time.sleep(seconds_to_sleep)


def train(
    train_op: Any,
    logdir: str | None,
    master: str = "",
    is_chief: bool = True,
    scaffold: Any = None,
    hooks: Sequence[Any] | None = None,
    chief_only_hooks: Sequence[Any] | None = None,
    save_checkpoint_secs: int | None = 600,
    save_summaries_steps: int | None = 100,
    config: Any = None,
    max_wait_secs: int = 7200,
    run_metadata: Any = None,
) -> Any:
    """Runs a train op until a hook, or the end of the input, stops it.

    Args:
        train_op: An op that trains and returns the loss.
        logdir: The folder of checkpoints and summaries; `None` if neither is written.
        master: The session's target. Defaults to `""`, this process.
        is_chief: Whether this process starts the session. Defaults to `True`.
        scaffold: How a session is initialized. Defaults to `None`, TensorFlow's own.
        hooks: Hooks of the training. Defaults to `None`.
        chief_only_hooks: Hooks of the chief only. Defaults to `None`.
        save_checkpoint_secs: How often a checkpoint is written, in seconds; `None`: never.
            Defaults to 600.
        save_summaries_steps: How often summaries are written, in steps; `None`: never. Defaults to 100.
        config: The session's `ConfigProto`. Defaults to `None`.
        max_wait_secs: How long a worker waits for the chief, in seconds. Defaults to 7200.
        run_metadata: Filled by each step. Defaults to `None`.

    Returns:
        The last loss.

    Raises:
        ValueError: If there is no folder to write to.
    """
    if logdir is None and is_chief:
        for name, value in (
            ("save_summaries_steps", save_summaries_steps),
            ("save_checkpoint_secs", save_checkpoint_secs),
        ):
            if value is not None:
                raise ValueError(f"{name} is {value!r}, and logdir None: set one of them.")
    loss = None
    with said_while_waiting(
        f"a session of {master or 'this process'} to open",
        change=f"A worker waits for the chief for {max_wait_secs} s (max_wait_secs).",
    ):
        opened = v1.train.MonitoredTrainingSession(
            master=master,
            is_chief=is_chief,
            checkpoint_dir=logdir,
            scaffold=scaffold,
            hooks=hooks,
            chief_only_hooks=chief_only_hooks,
            save_checkpoint_secs=save_checkpoint_secs,
            save_summaries_steps=save_summaries_steps,
            config=config,
            max_wait_secs=max_wait_secs,
        )
    with opened as session:
        while not session.should_stop():
            loss = session.run(train_op, run_metadata=run_metadata)
    return loss


class SummaryAtEndHook(v1.train.SessionRunHook):
    """Writes summaries when an evaluation ends, at the training's step."""

    def __init__(
        self,
        log_dir: str | None = None,
        summary_writer: Any = None,
        summary_op: Any = None,
        feed_dict: Any = None,
    ) -> None:
        """Stores what to write.

        Args:
            log_dir: The folder to write into. Defaults to `None`; then there must be a writer.
            summary_writer: The writer. Defaults to `None`, a `FileWriter` of the folder.
            summary_op: The summaries. Defaults to `None`, all of the graph.
            feed_dict: Values to feed to them. Defaults to `None`.
        """
        self._log_dir, self._writer = log_dir, summary_writer
        self._summary_op, self._feed_dict = summary_op, feed_dict
        self._step: Any = None

    def begin(self) -> None:
        """Finds the summaries and the step.

        Raises:
            ValueError: If there is neither a folder nor a writer.
        """
        if self._writer is None and not self._log_dir:
            raise ValueError("SummaryAtEndHook needs log_dir or summary_writer.")
        if self._summary_op is None:
            self._summary_op = v1.summary.merge_all()
        self._step = v1.train.get_or_create_global_step()

    def after_create_session(self, session: v1.Session, coord: Any) -> None:
        """Opens the writer.

        Args:
            session: Not used.
            coord: Not used.
        """
        del coord
        if self._writer is None:
            self._writer = v1.summary.FileWriterCache.get(self._log_dir)

    def end(self, session: v1.Session) -> None:
        """Writes the summaries.

        Args:
            session: The session that evaluates the summaries.
        """
        if self._summary_op is not None:
            text = session.run(self._summary_op, self._feed_dict)
            self._writer.add_summary(text, v1.train.global_step(session, self._step))
        self._writer.flush()


def evaluate_repeatedly(
    checkpoint_dir: str,
    master: str = "",
    scaffold: Any = None,
    eval_ops: Any = None,
    feed_dict: Any = None,
    final_ops: Any = None,
    final_ops_feed_dict: Any = None,
    eval_interval_secs: float = 60,
    hooks: Sequence[Any] | None = None,
    config: Any = None,
    max_number_of_evaluations: int | None = None,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Any:
    """Evaluates each new checkpoint of a folder.

    Args:
        checkpoint_dir: The folder.
        master: The session's target. Defaults to `""`, this process.
        scaffold: How a session is initialized. Defaults to `None`, by restoring the checkpoint.
        eval_ops: Run until a hook ends the evaluation. Defaults to `None`.
        feed_dict: Values to feed to them. Defaults to `None`.
        final_ops: Run once, when the evaluation ends. Defaults to `None`.
        final_ops_feed_dict: Values to feed to these. Defaults to `None`.
        eval_interval_secs: The least time between two evaluations, in seconds. Defaults to 60.
        hooks: Hooks of the evaluations. Defaults to `None`.
        config: The sessions' `ConfigProto`. Defaults to `None`.
        max_number_of_evaluations: Most evaluations to run. Defaults to `None`, no end.
        timeout: How long to wait for a checkpoint, in seconds. Defaults to `None`, forever.
        timeout_fn: Called after the timeout; returns whether to stop. Defaults to `None`, to stop.

    Returns:
        The last evaluation's final_ops, `None` without any.

    Raises:
        ValueError: If max_number_of_evaluations is not positive.
    """
    most = max_number_of_evaluations
    if most is not None and most <= 0:
        raise ValueError(f"max_number_of_evaluations must be at least 1, or None; got {most!r}.")
    get_or_create_eval_step()
    kept = list(hooks or ())
    final = v1.train.FinalOpsHook(final_ops, final_ops_feed_dict)
    kept.append(final)
    checkpoints = tf.train.checkpoints_iterator(
        checkpoint_dir, eval_interval_secs, timeout, timeout_fn
    )
    count = 0
    while True:
        with said_while_waiting(
            f"a new checkpoint in {checkpoint_dir}", change=f"The time limit is timeout={timeout}."
        ):
            path = next(checkpoints, None)
        if path is None:
            break
        count += 1
        # A copy, since each evaluation adds its own hooks; the given ones take part in all of them.
        evaluate_once(
            path,
            master=master,
            scaffold=scaffold,
            eval_ops=eval_ops,
            feed_dict=feed_dict,
            hooks=list(kept),
            config=config,
        )
        if most is not None and count >= most:
            break
    return final.final_ops_values
