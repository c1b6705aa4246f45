"""Measures TPUEstimator, the original's or ours, on the host or on emulated cores, with the same calls."""

import itertools
import math
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from benchmarks import data
from benchmarks.models import MODELS, make_model_fn
from benchmarks.plan import Request

v1 = tf.compat.v1


class EstimatorRunner:
    """See `benchmarks.measure.Runner`.

    Hooks, summaries and checkpoints are the defaults. A hook that is called in every step would keep an estimator from
    making many steps in one session call, and saving by steps makes the original read the global step once more in each
    step; so the clock is the time in the events. Evaluations and predictions have a hook that no step calls.
    """

    def __init__(
        self, tpu: Any, request: Request, *, use_tpu: bool = False, **run_options: Any
    ) -> None:
        model = MODELS[request.model]
        self.train_end_seconds = self.build_seconds = math.nan
        self.batch_size = model.batch_size
        self._request = request
        self._session_clock = _SessionClock()
        self._estimator = tpu.TPUEstimator(
            make_model_fn(model, tpu),
            config=tpu.RunConfig(model_dir=request.model_dir, **run_options),
            use_tpu=use_tpu,
            train_batch_size=model.batch_size,
            eval_batch_size=model.batch_size,
            predict_batch_size=model.batch_size,
        )

    def first_steps(self, steps: int) -> float:
        clock, started = _EndClock(), time.monotonic()
        self._estimator.train(self._input_fn(), max_steps=steps, saving_listeners=[clock])
        self.build_seconds = clock.begun - started
        return clock.monotonic

    def train(self, steps: int, segments: int) -> list[float]:
        start, clock = self.steps_made(), _EndClock()
        self._estimator.train(self._input_fn(), steps=steps * segments, saving_listeners=[clock])
        self.train_end_seconds = time.monotonic() - clock.monotonic
        times = _times_of_events(self._request.model_dir) | {clock.step: clock.time}
        # An event is due after the first step, so the segments begin one step later than planned.
        bounds = [start + 1 + steps * segment for segment in range(1, segments)] + [clock.step]
        return _rates(times, bounds)

    def evaluate(self, batches: int) -> float:
        input_fn, hooks = self._input_fn(batches), [self._session_clock]
        return float(self._estimator.evaluate(input_fn, hooks=hooks)["loss"])

    def predict(self, batches: int) -> int:
        input_fn, hooks = self._input_fn(batches), [self._session_clock]
        return sum(1 for _ in self._estimator.predict(input_fn, hooks=hooks))

    @property
    def work_seconds(self) -> float:
        """Seconds of the latest evaluation or prediction; see `benchmarks.measure.Runner`."""
        return self._session_clock.ended - self._session_clock.opened

    def steps_made(self) -> int:
        return int(self._estimator.get_variable_value("global_step"))

    def _input_fn(self, batches: int | None = None) -> Callable[..., tf.data.Dataset]:
        def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
            del params
            dataset = data.batches(self._request.model, self._request.data_folder)
            return dataset if batches is None else dataset.take(batches)

        return input_fn


class _EndClock(v1.train.CheckpointSaverListener):
    """Reads the clock when training has ended, before the last checkpoint is written."""

    step, time, monotonic, begun = 0, 0.0, 0.0, 0.0

    def begin(self) -> None:
        """Reads the clock when the graph is complete."""
        self.begun = time.monotonic()

    def before_save(self, session: v1.Session, global_step_value: int) -> None:
        self.step, self.time, self.monotonic = (
            int(global_step_value),
            time.time(),
            time.monotonic(),
        )


class _SessionClock(v1.train.SessionRunHook):
    """Reads the clock when a session opens, and when it has read its last row and is about to close."""

    opened = ended = math.nan

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        self.opened = time.monotonic()

    def end(self, session: v1.Session) -> None:
        self.ended = time.monotonic()


def _times_of_events(model_dir: str) -> dict[int, float]:
    """Returns the times at which a step's loss was summarized."""
    times = {}
    for path in pathlib.Path(model_dir).glob("events.out.tfevents.*"):
        for event in v1.train.summary_iterator(str(path)):
            if any(value.tag == "loss" for value in event.summary.value):
                times[event.step] = event.wall_time
    return times


def _rates(times: Mapping[int, float], bounds: Sequence[int]) -> list[float]:
    """Returns the steps per second between bounds, each moved back to the last step with a time."""
    known = sorted({max(step for step in times if step <= bound) for bound in bounds})
    return [
        (after - before) / (times[after] - times[before])
        for before, after in itertools.pairwise(known)
    ]


def make(
    request: Request,
    *,
    original: bool = False,
    cores: int | None = None,
    jit_compile: bool | str | None = None,
) -> EstimatorRunner:
    options = {"save_summary_steps": request.plan.summary_steps}
    if original:
        return EstimatorRunner(tf.compat.v1.estimator.tpu, request, **options)
    # Imported here: the original's environment lacks our package.
    from tfx_tpu_trainer.estimator import tpu

    if cores is None:
        return EstimatorRunner(tpu, request, jit_compile=jit_compile, **options)
    tpu_config = tpu.TPUConfig(num_shards=cores, iterations_per_loop=request.plan.loop_steps)
    return EstimatorRunner(
        tpu, request, use_tpu=True, master="emulated", tpu_config=tpu_config, **options
    )
