"""Defines trainer_fn's arguments and result, and runs its train_and_evaluate, which another attempt resumes."""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from tfx import v1 as tfx

from tfx_tpu_trainer._support.whole_files import parse_document, write_document
from tfx_tpu_trainer.compat.tfma_export import evaluation_receiver, receive_evaluation
from tfx_tpu_trainer.components.evaluation import EvalMetrics
from tfx_tpu_trainer.components.evaluation._learning_curve import (
    LearningCurve,
    Point,
    take_up_learning_curve,
    write_learning_curve,
)
from tfx_tpu_trainer.components.trainer.rows import RowLimit, check_input_ends
from tfx_tpu_trainer.components.trainer.values import suggest
from tfx_tpu_trainer.estimator import Estimator, EvalSpec, FinalExporter, ModeKeys, TrainSpec
from tfx_tpu_trainer.estimator.extending import (
    CheckpointEvaluator,
    EvalResult,
    EvaluatedCheckpoint,
    EvaluationListener,
    call_input_fn,
    run_schedule,
)

EXPORT_FILE = "last_export.json"
"""The newest export of the first exporter, and its step, for an attempt that continues from here."""

_logger = logging.getLogger(__name__)

_FORMAT_VERSION = 1

_KEYS = ("estimator", "train_spec", "eval_spec", "eval_input_receiver_fn")

v1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """An estimator with its training, evaluation and exports."""

    estimator: Estimator
    train_spec: TrainSpec
    # The evaluation and its exporters, of which the first makes Format-Serving.
    eval_spec: EvalSpec
    # Returns the source of Format-TFMA and of the signature `transform_features` in Format-Serving.
    eval_input_receiver_fn: Callable[[], Any]

    @classmethod
    def read(cls, returned: Any, *, module: str) -> TrainingSpec:
        """Reads the result of trainer_fn."""
        values = _entries(returned, module)
        _check_estimator(values["estimator"], module)
        for name, kind in (("train_spec", TrainSpec), ("eval_spec", EvalSpec)):
            if not isinstance(values[name], kind):
                raise ValueError(
                    f"{name} of module {module!r} is {_described(values[name])}, not "
                    f"tfx_tpu_trainer's {kind.__name__}; {_WAY_TO_OURS}"
                )
        if not callable(values["eval_input_receiver_fn"]):
            raise ValueError(
                f"eval_input_receiver_fn of module {module!r} is "
                f"{values['eval_input_receiver_fn']!r}; give a function that returns an "
                "EvalInputReceiver"
            )
        spec = cls(**values)
        spec._check_exports(module)
        return spec

    def _check_exports(self, module: str) -> None:
        exporters, steps = self.eval_spec.exporters, self.train_spec.max_steps
        if not exporters:
            raise ValueError(
                f"eval_spec of module {module!r} has no exporters, so no model would be exported; "
                "give EvalSpec(..., exporters=FinalExporter('name', serving_input_receiver_fn))"
            )
        if steps is None and isinstance(exporters[0], FinalExporter):
            raise ValueError(
                f"train_spec of module {module!r} has max_steps=None, and a FinalExporter exports when "
                "max_steps is reached: give TrainSpec(..., max_steps=trainer_fn_args.train_steps)"
            )

    def check_eval_receiver(self) -> None:
        """Builds the evaluation's receiver, whose mistakes would otherwise show after the training."""
        try:
            with tf.Graph().as_default():
                receive_evaluation(self.eval_input_receiver_fn)
        except Exception as error:
            lines = str(error).strip().splitlines() or ["no reason given"]
            raise ValueError(
                "the eval_input_receiver_fn fails, so the model couldn't be exported after training: "
                f"{type(error).__name__}: {lines[0]}"
            ) from error

    def check_evaluation_ends(self) -> None:
        """Rejects a full evaluation of an input that never ends."""
        if self.eval_spec.steps is not None:
            return
        check_input_ends(
            lambda: call_input_fn(
                self.eval_spec.input_fn,
                mode=ModeKeys.EVAL,
                params={"batch_size": 1, **self.estimator.params},
                config=self.estimator.config,
            ),
            called="eval_spec.steps",
            found_in="trainer_fn_args.eval_steps",
        )

    def with_row_limit(self, limit: RowLimit | None) -> TrainingSpec:
        """Returns this spec with a row limit on its evaluations."""
        if limit is None or self.eval_spec.steps is not None:
            return self
        hooks = (*self.eval_spec.hooks, limit.hook())
        return dataclasses.replace(self, eval_spec=self.eval_spec._replace(hooks=hooks))


def _entries(returned: Any, module: str) -> dict[str, Any]:
    where = f"trainer_fn of module {module!r}"
    wanted = f"a dict with {', '.join(map(repr, _KEYS))}"
    if not isinstance(returned, Mapping):
        raise ValueError(f"{where} returned {_described(returned)}; let it return {wanted}")
    unexpected = sorted(str(key) for key in returned if key not in _KEYS)
    missing = [key for key in _KEYS if key not in returned]
    if missing:
        others = f", and has {', '.join(map(repr, unexpected))}" if unexpected else ""
        hints = "; ".join(f"{key!r}: {suggest(key, _KEYS)}" for key in unexpected)
        raise ValueError(
            f"{where} returned a dict that lacks {', '.join(map(repr, missing))}{others}; let it "
            f"return {wanted}{f' ({hints})' if hints else ''}"
        )
    if unexpected:
        tf.get_logger().warning(
            "%s also returned %s, which is ignored.", where, ", ".join(map(repr, unexpected))
        )
    return {key: returned[key] for key in _KEYS}


def _check_estimator(estimator: Any, module: str) -> None:
    if isinstance(estimator, Estimator):
        return
    way_out = _WAY_TO_OURS
    if isinstance(estimator, tf.Module) or callable(getattr(estimator, "compile", None)):
        way_out = (
            "convert a Keras model with model_to_estimator, or train it in the stock Trainer with "
            "a run_fn"
        )
    raise ValueError(
        f"estimator of module {module!r} is {_described(estimator)}, not tfx_tpu_trainer's "
        f"Estimator; {way_out}"
    )


def _described(value: Any) -> str:
    kind = type(value)
    return repr(value) if value is None else f"a {kind.__module__}.{kind.__qualname__}"


_WAY_TO_OURS = (
    "leave restore_tf_estimator on, so that tf.estimator is ours, or import it from there in the "
    "module"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export:
    """The last export."""

    path: str
    # The receiver of the export; `None` if the exporter did not use the estimator.
    receiver_fn: Callable[[], Any] | None
    metrics: EvalMetrics  # The evaluation that preceded the export.


class WatchedSchedule(EvaluationListener):
    """Runs `train_and_evaluate` and records the evaluations and the first exporter's exports.

    Exports also get the signature `transform_features`, in which the stock Evaluator finds the labels. The caller's
    estimator stays unchanged, since a copy of it is watched.
    """

    def __init__(
        self,
        spec: TrainingSpec,
        *,
        folder: str,
        goes_on: bool = False,
        before_writing: Callable[[], None] = lambda: None,
        stall_timeout_secs: float | None = None,
    ) -> None:
        self._spec = spec
        self._before_writing = before_writing
        self._folder = folder
        self._results: dict[str | None, EvalMetrics] = {}
        self._receiver_fns: dict[str, Callable[[], Any]] = {}
        self._last: EvaluatedCheckpoint | None = None
        self.curve = (take_up_learning_curve(folder) if goes_on else None) or LearningCurve()
        self.export = self._export_of_earlier_attempt() if goes_on else None
        self.estimator = self._watched(_with_stall_timeout(spec.estimator, stall_timeout_secs))

    def run(self, *listeners: v1.train.CheckpointSaverListener) -> None:
        """Trains, evaluates and exports.

        If an earlier attempt reached the last step and failed after it, the last checkpoint is evaluated and exported
        nevertheless.
        """
        train_spec, eval_spec = self._spec.train_spec, self._spec.eval_spec
        told = (*listeners, *train_spec.saving_listeners)
        run_schedule(
            self.estimator,
            train_spec._replace(saving_listeners=told),
            eval_spec,
            listener=self,
        )
        if self._last is None:
            evaluator = CheckpointEvaluator(
                self.estimator, eval_spec, max_steps=train_spec.max_steps
            )
            self.after_eval(evaluator.evaluate_newest())

    def after_eval(self, evaluated: EvaluatedCheckpoint | None) -> bool:
        """Records an evaluation and the exports after it."""
        if evaluated is None:
            return True
        self._last = evaluated
        metrics = self._results[evaluated.checkpoint_path]
        self.curve = self.curve.with_point(Point(metrics=metrics, time=time.time()))
        exported = evaluated.exports[0]
        if exported is not None:
            path = tf.compat.as_str_any(exported)
            self.export = Export(
                path=path, receiver_fn=self._receiver_fns.get(path), metrics=metrics
            )
        self._write_down()
        return True

    @property
    def last_step(self) -> int | None:
        """The global step of the last evaluation; `None` if there was none."""
        return None if self._last is None else self._last.global_step

    def _write_down(self) -> None:
        self._before_writing()
        write_learning_curve(self._folder, self.curve)
        if self.export is not None:
            document = {
                "version": _FORMAT_VERSION,
                "path": self.export.path,
                "global_step": self.export.metrics.global_step,
            }
            write_document(os.path.join(self._folder, EXPORT_FILE), document)

    def _export_of_earlier_attempt(self) -> Export | None:
        path = os.path.join(self._folder, EXPORT_FILE)
        if not tf.io.gfile.exists(path):
            return None
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                document = parse_document(file.read(), newest=_FORMAT_VERSION)
            exported, step = str(document["path"]), document["global_step"]
        except (KeyError, ValueError) as error:
            _logger.warning(
                "%s can't be read (%s): the export of an earlier attempt is not used.", path, error
            )
            return None
        point = self.curve.at(step)
        if point is None or not tf.io.gfile.isdir(exported):
            return None
        return Export(path=exported, receiver_fn=None, metrics=point.metrics)

    def _watched(self, estimator: Estimator) -> Estimator:
        watched: Any = copy.copy(estimator)
        watched.evaluate_result = functools.partial(self._evaluate, estimator)
        for name in ("export_saved_model", "export_savedmodel"):
            setattr(watched, name, functools.partial(self._export, getattr(estimator, name)))
        return watched

    def _evaluate(self, estimator: Estimator, *args: Any, **kwargs: Any) -> EvalResult:
        result = estimator.evaluate_result(*args, **kwargs)
        self._results[result.checkpoint_path] = EvalMetrics.from_result(result)
        return result

    def _export(
        self,
        export: Callable[..., Any],
        export_dir_base: str,
        serving_input_receiver_fn: Callable[[], Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        receiver_fn = functools.partial(
            evaluation_receiver,
            eval_input_receiver_fn=self._spec.eval_input_receiver_fn,
            serving_input_receiver_fn=serving_input_receiver_fn,
        )
        exported = export(export_dir_base, receiver_fn, *args, **kwargs)
        self._receiver_fns[tf.compat.as_str_any(exported)] = receiver_fn
        return exported


def _with_stall_timeout(estimator: Estimator, seconds: float | None) -> Estimator:
    """Returns an estimator whose stalled sessions end, unless its own config sets a timeout."""
    if seconds is None or estimator.config.stall_timeout_secs is not None:
        return estimator
    timed = copy.copy(estimator)
    timed._config = estimator.config.replace(stall_timeout_secs=seconds)
    return timed


class LegacyFnArgs(tfx.components.FnArgs):
    """FnArgs in every form that a TFX release has passed to trainer_fn.

    TFX 0.1x passed an object with the entries of `custom_config` among its attributes, TFX 0.2x a dict whose keys were
    attributes, too, and TFX 1.x `FnArgs`. A module may rely on any of them.
    """

    def __getattr__(self, name: str) -> Any:
        # Only called for names that are not attributes.
        config = self.__dict__.get("custom_config") or {}
        if name in config:
            return config[name]
        raise AttributeError(
            f"trainer_fn_args has no {name!r}; it has {', '.join(sorted(self))}. To add your own, "
            f"use TpuTrainer(custom_config={{{name!r}: ...}})"
        )

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError as error:
            raise KeyError(str(error)) from None

    def __contains__(self, name: object) -> bool:
        return name in set(self)

    def __iter__(self) -> Iterator[str]:
        return iter({**self.__dict__, **(self.__dict__.get("custom_config") or {})})

    def keys(self) -> list[str]:
        """Lists all names, so `**trainer_fn_args` works."""
        return list(self)

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a value, or the default if it is missing."""
        return getattr(self, name, default)


def legacy_fn_args(fn_args: tfx.components.FnArgs, working_folder: str) -> LegacyFnArgs:
    """Makes a trainer_fn's arguments."""
    values = dict(vars(fn_args))
    for name in ("serving_model_dir", "eval_model_dir"):
        values[name] = os.path.join(working_folder, os.path.basename(values[name]))
    return LegacyFnArgs(**{**values, "model_run_dir": working_folder})
