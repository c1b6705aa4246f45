"""Implements the train op of `slim.learning` and its loop."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer._support.imports import without_notice
from tfx_tpu_trainer._support.waiting import said_while_waiting
from tfx_tpu_trainer.compat.contrib.training import loops
from tfx_tpu_trainer.compat.contrib.training.loops import clip_gradient_norms, multiply_gradients

v1 = tf.compat.v1

__all__ = [
    "clip_gradient_norms",
    "create_train_op",
    "multiply_gradients",
    "train",
    "train_step",
]


def create_train_op(
    total_loss: Any,
    optimizer: Any,
    global_step: Any = 0,
    update_ops: Any = None,
    variables_to_train: Sequence[tf.Variable] | None = None,
    clip_gradient_norm: float = 0,
    summarize_gradients: bool = False,
    gate_gradients: int = v1.train.Optimizer.GATE_OP,
    aggregation_method: Any = None,
    colocate_gradients_with_ops: bool = False,
    gradient_multipliers: Mapping[Any, Any] | None = None,
    check_numerics: bool = True,
) -> tf.Tensor:
    """Makes an op that runs the layers' updates, trains, and returns the loss.

    `tfx_tpu_trainer.compat.contrib.training.create_train_op`, with its arguments, and with two changes of
    gradients built in. `clip_gradient_norm` is the greatest norm of a gradient, by default 0 for no
    clipping; `gradient_multipliers` are factors of gradients by variable, or by its name.

    Returns:
        The loss, after the update.

    Raises:
        ValueError: If there is nothing to train.
    """
    given = locals()
    del given["clip_gradient_norm"], given["gradient_multipliers"]

    def transform(gradients: Any) -> Any:
        if gradient_multipliers:
            gradients = multiply_gradients(gradients, gradient_multipliers)
        if clip_gradient_norm > 0:
            gradients = clip_gradient_norms(gradients, clip_gradient_norm)
        return gradients

    return loops.create_train_op(**given, transform_grads_fn=transform)


_logger = tf.get_logger()
# The argument's value that means the Supervisor's own default.
_USE_DEFAULT: Final = 0
_Step = Callable[..., tuple[Any, Any]]


class _Supervisor(v1.train.Supervisor):
    __init__ = without_notice(v1.train.Supervisor.__init__)


def train_step(
    sess: Any, train_op: Any, global_step: Any, train_step_kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """Runs a step, and returns whether it was the last."""
    begun = time.monotonic()
    loss, step = sess.run([train_op, global_step])
    took = time.monotonic() - begun
    if "should_log" in train_step_kwargs and sess.run(train_step_kwargs["should_log"]):
        _logger.info("global step %d: loss = %.4f (%.3f sec/step)", step, loss, took)
    stop = train_step_kwargs.get("should_stop")
    return loss, False if stop is None else sess.run(stop)


def _step_arguments(step: Any, number_of_steps: int | None, log_every: int) -> dict[str, Any]:
    with v1.name_scope("train_step"):
        arguments = {"should_log": tf.equal(tf.math.mod(step, log_every), 0)}
        if number_of_steps:
            arguments["should_stop"] = tf.greater_equal(step, number_of_steps)
        return arguments


def train(
    train_op: Any,
    logdir: str | None,
    train_step_fn: _Step = train_step,
    train_step_kwargs: Any = _USE_DEFAULT,
    log_every_n_steps: int = 1,
    graph: tf.Graph | None = None,
    master: str = "",
    is_chief: bool = True,
    global_step: Any = None,
    number_of_steps: int | None = None,
    init_op: Any = _USE_DEFAULT,
    init_feed_dict: Any = None,
    local_init_op: Any = _USE_DEFAULT,
    init_fn: Callable[[Any], Any] | None = None,
    ready_op: Any = _USE_DEFAULT,
    summary_op: Any = _USE_DEFAULT,
    save_summaries_secs: int = 600,
    summary_writer: Any = _USE_DEFAULT,
    startup_delay_steps: int = 0,
    saver: Any = None,
    save_interval_secs: int = 600,
    sync_optimizer: Any = None,
    session_config: Any = None,
    session_wrapper: Callable[[Any], Any] | None = None,
    trace_every_n_steps: int | None = None,
    ignore_live_threads: bool = False,
) -> Any:
    """Trains up to a step, or until the input ends.

    Training resumes from the last checkpoint of logdir. Synchronous replicas and traces are not supported: use a
    distribution strategy, and `tf.compat.v1.train.ProfilerHook`.

    Args:
        train_op: An op that trains and returns the loss, from `create_train_op`.
        logdir: The folder of checkpoints and summaries; `None` if neither is written.
        train_step_fn: Makes a step; takes session, train_op, step and train_step_kwargs, and
            returns the loss and whether to stop. Defaults to `train_step`.
        train_step_kwargs: Its arguments. Defaults to 0, meaning the tensors `should_log` and, with number_of_steps,
            `should_stop`. `summary_writer` is added to them.
        log_every_n_steps: How often the loss is logged, in steps. Defaults to 1.
        graph: The graph. Defaults to `None`, the default one.
        master: The session's target. Defaults to `""`, this process.
        is_chief: Whether this process begins and saves. Defaults to `True`.
        global_step: The step. Defaults to `None`, the graph's.
        number_of_steps: The step to stop at. Defaults to `None`, no end.
        init_op: Sets the initial values. Defaults to 0, meaning all initializers.
        init_feed_dict: Values to feed to it. Defaults to `None`.
        local_init_op: The same for local variables and tables. Defaults to 0, meaning their initializers.
        init_fn: Called with the session after init_op. Defaults to `None`.
        ready_op: Lists the variables without a value. Defaults to 0, meaning all variables.
        summary_op: The summaries. Defaults to 0, meaning all of the graph.
        save_summaries_secs: How often they are written, in seconds. Defaults to 600.
        summary_writer: Writes them. Defaults to 0, meaning a `FileWriter` of logdir.
        startup_delay_steps: The step that other processes than the chief wait for. Defaults to 0.
        saver: Writes checkpoints. Defaults to `None`, a `Saver` of all variables.
        save_interval_secs: How often checkpoints are written, in seconds. Defaults to 600.
        sync_optimizer: Must be `None`, which it is by default.
        session_config: The session's `ConfigProto`. Defaults to `None`.
        session_wrapper: Wraps the session. Defaults to `None`.
        trace_every_n_steps: Must be `None`, which it is by default.
        ignore_live_threads: Whether threads may keep running after the end. Defaults to `False`.

    Returns:
        The last loss, `None` if no step was made.

    Raises:
        ValueError: If there is no train_op, a summary_op or saver without a folder, a number of steps that is not
            positive, or something unsupported.
    """
    if train_op is None:
        raise ValueError("train_op is None; slim.learning.create_train_op makes one.")
    if number_of_steps is not None and number_of_steps <= 0:
        raise ValueError(f"number_of_steps must be at least 1, or None; got {number_of_steps!r}.")
    if logdir is None:
        if summary_op not in (_USE_DEFAULT, None):
            raise ValueError("summary_op needs a logdir to write to; got None.")
        if saver is not None:
            raise ValueError("saver needs a logdir to write to; got None.")
    if sync_optimizer is not None:
        raise ValueError(
            "sync_optimizer: replicas that step together are those of a tf.distribute strategy, in an Estimator."
        )
    if trace_every_n_steps is not None:
        raise ValueError("trace_every_n_steps: tf.compat.v1.train.ProfilerHook traces a step.")
    graph = graph or v1.get_default_graph()
    with graph.as_default():
        step = v1.train.get_or_create_global_step() if global_step is None else global_step
        saver = saver or v1.train.Saver()
        if init_op == _USE_DEFAULT:
            init_op = v1.global_variables_initializer()
        if ready_op == _USE_DEFAULT:
            ready_op = v1.report_uninitialized_variables()
        if local_init_op == _USE_DEFAULT:
            local_init_op = tf.group(v1.local_variables_initializer(), v1.tables_initializer())
        if summary_op == _USE_DEFAULT:
            summary_op = v1.summary.merge_all()
        if train_step_kwargs == _USE_DEFAULT:
            train_step_kwargs = _step_arguments(step, number_of_steps, log_every_n_steps)
        writer = (
            v1.train.Supervisor.USE_DEFAULT if summary_writer == _USE_DEFAULT else summary_writer
        )
        supervisor = _Supervisor(
            graph=graph,
            is_chief=is_chief,
            logdir=logdir,
            init_op=init_op,
            init_feed_dict=init_feed_dict,
            local_init_op=local_init_op,
            ready_op=ready_op,
            summary_op=summary_op,
            summary_writer=writer,
            global_step=step,
            saver=saver,
            save_summaries_secs=save_summaries_secs,
            save_model_secs=save_interval_secs,
            init_fn=init_fn,
        )
        if summary_writer is not None:
            train_step_kwargs["summary_writer"] = supervisor.summary_writer
        loss = None
        again = True
        while again:
            again = False
            try:
                with supervisor.managed_session(
                    master, start_standard_services=False, config=session_config
                ) as opened:
                    session = opened if session_wrapper is None else session_wrapper(opened)
                    if is_chief:
                        if logdir:
                            _start_services(
                                supervisor,
                                session,
                                summary_op,
                                save_summaries_secs,
                                save_interval_secs,
                            )
                    elif startup_delay_steps > 0:
                        end = number_of_steps or startup_delay_steps
                        _wait_for_step(session, step, min(startup_delay_steps, end))
                    threads = supervisor.start_queue_runners(session)
                    try:
                        while not supervisor.should_stop():
                            loss, stop = train_step_fn(session, train_op, step, train_step_kwargs)
                            if stop:
                                supervisor.request_stop()
                    except tf.errors.OutOfRangeError:
                        _logger.info("The input has ended; the training ends too.")
                        supervisor.request_stop()
                    supervisor.stop(
                        threads, close_summary_writer=True, ignore_live_threads=ignore_live_threads
                    )
                    # After the threads: one that is still writing an earlier checkpoint would name it the latest.
                    if logdir and supervisor.is_chief:
                        supervisor.saver.save(session, supervisor.save_path, supervisor.global_step)
            except tf.errors.AbortedError:
                # A server was restarted: its variables are those of the last checkpoint.
                _logger.info("The session was lost; a new one continues from the last checkpoint.")
                again = True
    return loss


def _start_services(
    supervisor: Any, session: Any, summary_op: Any, summary_secs: float, model_secs: float
) -> None:
    """Saves and writes summaries while the loop runs.

    The Supervisor's own threads do that too, but take the step for an eager variable where eager
    execution is on: a new thread has no default graph.
    """
    graph = v1.get_default_graph()
    last = [v1.train.global_step(session, supervisor.global_step), time.monotonic()]

    def count() -> None:
        now = [v1.train.global_step(session, supervisor.global_step), time.monotonic()]
        rate = (now[0] - last[0]) / max(now[1] - last[1], 1e-6)
        last[:] = now
        value = v1.Summary.Value(tag="global_step/sec", simple_value=rate)
        supervisor.summary_writer.add_summary(v1.Summary(value=[value]), now[0])

    def summarize() -> None:
        supervisor.summary_computed(session, session.run(summary_op))

    def save() -> None:
        supervisor.saver.save(session, supervisor.save_path, supervisor.global_step)

    def in_graph(target: Callable[[], None]) -> None:
        with graph.as_default():
            target()

    if supervisor.summary_writer is not None and summary_secs:
        targets = [count] if summary_op is None else [count, summarize]
        for target in targets:
            supervisor.loop(summary_secs, in_graph, args=(target,))
    if model_secs:
        supervisor.loop(model_secs, in_graph, args=(save,))


def _wait_for_step(session: Any, step: Any, wanted: int) -> None:
    with said_while_waiting(
        f"the global step {wanted}, to which other processes train",
        change="startup_delay_steps is the number of steps that this one starts after them.",
    ):
        while session.run(step) < wanted:
            time.sleep(1)
