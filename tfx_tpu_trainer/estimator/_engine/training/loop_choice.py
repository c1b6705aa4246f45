"""Chooses a loop of steps: by the graph, or by measuring two."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.gpus import sees_gpus
from tfx_tpu_trainer.estimator._engine.loops.compiled_loop import (
    CannotCompileError,
    CompiledLoop,
    build_compiled_loop,
)
from tfx_tpu_trainer.estimator._engine.loops.step_loop import HostLoop
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate

v1 = tf.compat.v1
_logger = tf.get_logger()

# The first of each is left out, and is one call: it makes what later ones use. The others last some
# time, as a call may be as short as 10 ms where events are written often: other programs' work would
# decide.
_TRIALS = 4
_TRIAL_SECONDS = 0.1

# A loop of single ops would have made many steps meanwhile, and measuring is to win time.
_COMPILE_SECONDS = 60.0


class LoopChoice:
    """Runs the plain loop or the compiled one: as told, or whichever is faster."""

    def __init__(
        self,
        plain: HostLoop,
        compiled: CompiledLoop,
        *,
        jit_compile: Literal[True, "auto"],
        asked: bool = True,
        clock: Callable[[], float] = time.perf_counter,
        compile_seconds: float = _COMPILE_SECONDS,
    ) -> None:
        self._plain = plain
        self._compiled = compiled
        self._jit_compile = jit_compile
        self._asked = asked
        self._clock = clock
        self._compile_seconds = compile_seconds
        self._chosen: HostLoop | CompiledLoop | None = None
        self._plain_seconds: list[float] = []
        self._compiled_seconds: list[float] = []
        self._trial_steps = 0
        self._trial_seconds = 0.0

    def prepare(self, session: v1.Session) -> None:
        """Compiles; falls back on the plain loop, with a log line."""
        self._plain.prepare(session)
        if self._chosen is self._plain:
            return
        try:
            within = None if self._jit_compile is True else self._compile_seconds
            self._compiled.compile(session, within=within)
        except CannotCompileError as error:
            _log_fallback(error, asked=self._asked)
            self._chosen = self._plain
        else:
            if self._jit_compile is True:
                self._chosen = self._compiled

    def run(self, session: v1.Session, steps: int) -> tuple[np.ndarray, int]:
        """Makes some steps, or fewer while it measures; see `HostLoop.run`."""
        if self._chosen is not None:
            return self._chosen.run(session, steps)
        plain, compiled = self._plain_seconds, self._compiled_seconds
        plains_turn = len(plain) == len(compiled)
        if plain:
            steps = max(1, min(steps, int(_TRIAL_SECONDS / plain[-1])))
        started = self._clock()
        result = (self._plain if plains_turn else self._compiled).run(session, steps)
        self._trial_steps += steps
        self._trial_seconds += self._clock() - started
        times = plain if plains_turn else compiled
        if times and self._trial_seconds < _TRIAL_SECONDS:
            return result
        times.append(self._trial_seconds / self._trial_steps)
        self._trial_steps, self._trial_seconds = 0, 0.0
        if len(compiled) == _TRIALS:
            self._choose(statistics.median(plain[1:]), statistics.median(compiled[1:]))
        return result

    def _choose(self, plain: float, compiled: float) -> None:
        self._chosen = self._compiled if compiled < plain else self._plain
        _logger.info(
            "jit_compile=%s: a step takes %.3f ms in the loop that XLA compiled and %.3f ms "
            "in the loop of single ops; continuing with the %s.",
            "'auto'" if self._asked else "None, which is 'auto' on a GPU",
            compiled * 1000,
            plain * 1000,
            "compiled loop" if self._chosen is self._compiled else "loop of single ops",
        )


def runs_on_one_thread(has_small_steps: bool, *, jit_compile: bool | str | None) -> bool:
    """Tells whether a model's loop runs each op on one thread, and says so in the log."""
    one_thread = jit_compile is not False and has_small_steps
    if one_thread and jit_compile is None:
        _logger.info(
            "The steps of this model are small: in loops each op runs on one thread, which takes "
            "less time than sharing it among several. RunConfig(jit_compile=False) shares it."
        )
    return one_thread


def choose_loop(
    plain: HostLoop, template: ModelTemplate, *, jit_compile: Any, asked: bool = True
) -> HostLoop | LoopChoice:
    """Returns the loop that a setting asks for."""
    if not jit_compile:
        return plain
    try:
        compiled = build_compiled_loop(template)
    except CannotCompileError as error:
        _log_fallback(error, asked=asked)
        return plain
    return LoopChoice(plain, compiled, jit_compile=jit_compile, asked=asked)


def jit_compile_of(setting: bool | str | None, *, same_each_time: bool) -> bool | str | None:
    """Returns the setting that a training runs with."""
    if setting is None and not same_each_time and sees_gpus():
        return "auto"
    if setting != "auto" or not same_each_time:
        return setting
    _logger.info(
        "jit_compile='auto' measures nothing, because this training is to make the same model each "
        "time (it has a seed, deterministic ops or save_input_position): the graph chooses the "
        "loop, as without jit_compile. jit_compile=True compiles."
    )
    return None


def log_no_loops() -> None:
    """Says that there is nothing to compile."""
    _logger.warning(
        "jit_compile has no effect: it compiles loops of steps, but these steps run one by one or "
        "on cores. On the host (use_tpu=False, without a cluster) steps run in loops unless a "
        "hook needs to see each of them."
    )


def _log_fallback(error: CannotCompileError, *, asked: bool) -> None:
    if asked:
        _logger.warning("jit_compile is ignored, because XLA can't compile the steps: %s.", error)
    else:
        _logger.info("The steps run op by op, because XLA can't compile them: %s.", error)
