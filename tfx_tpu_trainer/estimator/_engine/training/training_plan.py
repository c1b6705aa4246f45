"""A training, placed and ready to run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.checking.train_op_check import check_train_op
from tfx_tpu_trainer.estimator._engine.feeding.saved_iterators import SavedInput
from tfx_tpu_trainer.estimator._engine.loops.one_thread_loop import build_one_thread_loop
from tfx_tpu_trainer.estimator._engine.loops.small_steps import is_small
from tfx_tpu_trainer.estimator._engine.loops.step_loop import HostLoop, build_host_loop
from tfx_tpu_trainer.estimator._engine.sessions.opening import SessionCreatorFn
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate

v1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A training, placed and ready to run.

    Attributes:
        template: The model.
        train_op: What a session call runs: a step, or a loop of them.
        loss: Loss of the call's last step.
        stop_hook: Stops the session at the last step; `None` goes to the end of the input.
        steps_per_call: Steps of a session call, at most.
        make_loop: Returns a loop of steps that may run between the calls that hooks must see, from
            whether each op runs on one thread; `None` where every call must be seen.
        last_step_of: Returns the last step of a session that starts at a step; `None` where the
            end of the input ends it.
        session_creator: Makes the session's creator. Defaults to `ChiefSessionCreator`.
        saved_input: The input, where it is none of the session's graph. Defaults to `None`.
        end_loop: Ends a loop that is running after its current step; called in another thread.
            Defaults to `None`: calls are short, or can't be ended.
        agreed_stop: Hook by which several processes that make the same steps stop together: none
            of them may leave the others by itself. Defaults to `None`: there are no others.
        log_loss_every: Steps between log lines of loss and step, where the settings have no
            `log_step_count_steps`. Defaults to `None`, no lines.
        ran_on: Where it runs, in words. Defaults to "this host".
    """

    template: ModelTemplate
    train_op: Any
    loss: tf.Tensor
    stop_hook: v1.train.SessionRunHook | None
    steps_per_call: int = 1
    make_loop: Callable[[bool], HostLoop] | None = None
    last_step_of: Callable[[int], int | None] = lambda start: None
    session_creator: SessionCreatorFn = v1.train.ChiefSessionCreator
    saved_input: SavedInput | None = None
    end_loop: Callable[[], None] | None = None
    agreed_stop: v1.train.SessionRunHook | None = None
    log_loss_every: int | None = None
    ran_on: str = "this host"

    @functools.cached_property
    def has_small_steps(self) -> bool:
        """Whether a step is faster with each op on one thread."""
        return is_small([self.template.train_op, self.template.loss])


def plan_training_on_host(
    template: ModelTemplate, *, steps: int | None, max_steps: int | None
) -> TrainingPlan:
    """Plans a training on this host, a step in each session call that hooks must see."""
    check_train_op(template)
    limited = steps is not None or max_steps is not None

    def last_step_of(start: int) -> int | None:
        return max_steps if steps is None else start + steps

    return TrainingPlan(
        template=template,
        train_op=template.train_op,
        loss=template.loss,
        stop_hook=(
            v1.train.StopAtStepHook(num_steps=steps, last_step=max_steps) if limited else None
        ),
        make_loop=lambda one_thread: (
            build_one_thread_loop(template) if one_thread else build_host_loop(template)
        ),
        last_step_of=last_step_of,
    )
