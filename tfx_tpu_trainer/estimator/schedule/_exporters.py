"""Exporters, which choose the evaluated models that `train_and_evaluate` exports."""

import abc
import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._argument_checks import holds
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation_plan import GLOBAL_STEP, LOSS
from tfx_tpu_trainer.estimator._user_calls import argument_names, unexpected_arguments
from tfx_tpu_trainer.estimator.hooks._evaluations import read_events

_logger = tf.get_logger()

_COMPARED = ("best_eval_result", "current_eval_result")


class Exporter(abc.ABC):
    """Decides after each evaluation whether the model is exported; mirrors `tf.estimator.Exporter`."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Name of the exporter's folder below `<model_dir>/export`."""

    @abc.abstractmethod
    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> bytes | None:
        """Exports the model if this exporter chooses it.

        Args:
            estimator: The estimator that was evaluated.
            export_path: Folder of this exporter.
            checkpoint_path: The checkpoint that was evaluated.
            eval_result: The metrics of its evaluation.
            is_the_final_export: Whether training has reached its last step.

        Returns:
            Path of the export, or `None` without an export.
        """


class SavedModelExporter(Exporter):
    """An exporter that calls `export_saved_model`; the base of this package's exporters."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any] | None,
        assets_extra: Mapping[str, str] | None,
        as_text: bool,
    ) -> None:
        """Stores the folder's name, and the arguments of `Estimator.export_saved_model`."""
        self._name = name
        self._serving_input_receiver_fn = serving_input_receiver_fn
        self._assets_extra = assets_extra
        self._as_text = as_text

    @property
    def name(self) -> str:
        """Name of the folder of the exports."""
        return self._name

    def _export(self, estimator: Any, export_path: str, checkpoint_path: str) -> bytes:
        return estimator.export_saved_model(
            export_path,
            self._serving_input_receiver_fn,
            assets_extra=self._assets_extra,
            as_text=self._as_text,
            checkpoint_path=checkpoint_path,
        )


class FinalExporter(SavedModelExporter):
    """Exports once, when training reaches `max_steps`; mirrors `tf.estimator.FinalExporter`.

    Examples:
        Before the end it exports nothing:

        >>> from tfx_tpu_trainer.estimator import FinalExporter, export
        >>> import tensorflow as tf
        >>> receiver_fn = export.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([None])})
        >>> exporter = FinalExporter("final", receiver_fn)
        >>> exporter.name
        'final'
        >>> exporter.export(None, "runs/line/export/final", "", {}, is_the_final_export=False)
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
    ) -> None:
        """Stores the arguments of the export.

        Args:
            name: Name of the folder of the exports.
            serving_input_receiver_fn: Returns a `ServingInputReceiver`.
            assets_extra: Maps names below `assets.extra` to files to copy. Defaults to `None`.
            as_text: Whether the model is written as text. Defaults to `False`.
        """
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text)

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> bytes | None:
        """Exports the model if it is the last one; see `Exporter.export`."""
        del eval_result
        if not is_the_final_export:
            return None
        _logger.info("Performing the final export in the end of training.")
        return self._export(estimator, export_path, checkpoint_path)


class LatestExporter(SavedModelExporter):
    """Exports after every evaluation; mirrors `tf.estimator.LatestExporter`.

    Examples:
        >>> from tfx_tpu_trainer.estimator import LatestExporter, export
        >>> import tensorflow as tf
        >>> parsing = {"x": tf.io.FixedLenFeature([], tf.float32)}
        >>> receiver_fn = export.build_parsing_serving_input_receiver_fn(parsing)
        >>> exporter = LatestExporter("latest", receiver_fn, exports_to_keep=2)
        >>> exporter.name
        'latest'
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        """Stores the arguments of the export.

        Args:
            name: Name of the folder of the exports.
            serving_input_receiver_fn: Returns a `ServingInputReceiver`.
            assets_extra: Maps names below `assets.extra` to files to copy. Defaults to `None`.
            as_text: Whether the model is written as text. Defaults to `False`.
            exports_to_keep: Newest exports to keep. Defaults to 5; `None` keeps all.

        Raises:
            ValueError: If no export would be kept.
        """
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text)
        self._exports_to_keep = check_exports_to_keep(exports_to_keep)

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> bytes | None:
        """Exports the model and removes the oldest exports; see `Exporter.export`."""
        del eval_result, is_the_final_export
        exported = self._export(estimator, export_path, checkpoint_path)
        remove_old_exports(export_path, keep=self._exports_to_keep)
        return exported


def loss_smaller(
    best_eval_result: Mapping[str, Any], current_eval_result: Mapping[str, Any]
) -> bool:
    """Returns whether the current loss is smaller than the best one."""
    for name, result in zip(_COMPARED, (best_eval_result, current_eval_result)):
        if not result or LOSS not in result:
            raise ValueError(f"{name} cannot be empty or no loss is found in it: {result!r}.")
    return bool(best_eval_result[LOSS] > current_eval_result[LOSS])


class BestExporter(SavedModelExporter):
    """Exports each model that is better than all before; mirrors `tf.estimator.BestExporter`.

    After a restart, the best result comes from the evaluation's events, so a worse model is not
    exported. (The original exports the first model after every restart.)

    Examples:
        >>> from tfx_tpu_trainer.estimator import (
        ...     BaselineRegressor, BestExporter, EvalSpec, TrainSpec, export, inputs, train_and_evaluate
        ... )
        >>> import numpy as np
        >>> import tensorflow as tf
        >>> def is_better(best_eval_result, current_eval_result):
        ...     return current_eval_result["average_loss"] < best_eval_result["average_loss"]
        >>> receiver_fn = export.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([None])})
        >>> best = BestExporter("best", receiver_fn, compare_fn=is_better, exports_to_keep=1)
        >>> rows = np.ones(8, np.float32)
        >>> input_fn = inputs.numpy_input_fn({"x": rows}, rows, num_epochs=None, shuffle=False)
        >>> metrics, exports = train_and_evaluate(
        ...     BaselineRegressor(model_dir="runs/best"),
        ...     TrainSpec(input_fn, max_steps=5),
        ...     EvalSpec(input_fn, steps=1, exporters=best),
        ... )
        >>> exports[0].decode().startswith("runs/best/export/best/")
        True
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        compare_fn: Callable[..., bool] = loss_smaller,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        """Stores the arguments of comparison and export.

        Args:
            name: Name of the folder of the exports. Defaults to `"best_exporter"`.
            serving_input_receiver_fn: Returns a `ServingInputReceiver`.
            event_file_pattern: Event files of the evaluation, relative to the model folder. Defaults to those of an
                unnamed one; with `None`, a restart forgets the best result.
            compare_fn: Takes `best_eval_result` and `current_eval_result`, and returns whether the current one is
                better. Defaults to the smaller loss.
            assets_extra: Maps names below `assets.extra` to files to copy. Defaults to `None`.
            as_text: Whether the model is written as text. Defaults to `False`.
            exports_to_keep: Newest exports to keep. Defaults to 5; `None` keeps all.

        Raises:
            ValueError: If compare_fn has other arguments, or no export would be kept.
        """
        _check_compare_fn(compare_fn)
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text)
        self._event_file_pattern = event_file_pattern
        self._compare_fn = compare_fn
        self._exports_to_keep = check_exports_to_keep(exports_to_keep, kind="a positive number")
        self._model_dir: str | None = None
        self._best: Mapping[str, Any] | None = None

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> bytes | None:
        """Exports the model if it is the best so far; see `Exporter.export`."""
        del is_the_final_export
        # One exporter may serve several estimators in turn, each with its own best result.
        if self._model_dir != estimator.model_dir:
            self._model_dir, self._best = estimator.model_dir, None
            _logger.info("Loading best metric from event files.")
            # Events without an export come from a run that was killed before it exported: its best model is not on
            # disk, so the next one is exported regardless of its result.
            if self._event_file_pattern and versions_of(export_path):
                self._best = self._best_before(eval_result)
        if self._best is not None and not self._compare_fn(
            best_eval_result=self._best, current_eval_result=eval_result
        ):
            return None
        _logger.info("Performing best model export.")
        exported = self._export(estimator, export_path, checkpoint_path)
        self._best = eval_result
        remove_old_exports(export_path, keep=self._exports_to_keep)
        return exported

    def _best_before(self, eval_result: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Finds the best result in the events; that of the current step is not yet one of them."""
        assert self._model_dir is not None and self._event_file_pattern is not None
        best = None
        pattern = os.path.join(self._model_dir, self._event_file_pattern)
        for step, metrics in read_events(pattern):
            if step == eval_result.get(GLOBAL_STEP):
                continue
            if best is None or self._compare_fn(best_eval_result=best, current_eval_result=metrics):
                best = metrics
        return best


def _check_compare_fn(compare_fn: Callable[..., bool] | None) -> None:
    if compare_fn is None:
        raise ValueError("`compare_fn` must not be None. Leave it out to compare the loss.")
    if not callable(compare_fn):
        raise TypeError(f"`compare_fn` must be callable; got {compare_fn!r}.")
    arguments = argument_names(compare_fn)
    for name in _COMPARED:
        if name not in arguments:
            raise ValueError(f"compare_fn ({compare_fn!r}) must include {name} argument.")
    others = unexpected_arguments(compare_fn, _COMPARED)
    if others:
        raise ValueError(f"compare_fn ({compare_fn!r}) has following not expected args: {others}")


def check_exports_to_keep(number: int | None, *, kind: str = "positive number") -> int | None:
    """Checks a number of exports to keep and returns it."""
    if number is not None and not holds(
        "exports_to_keep", number, lambda kept: kept > 0 and kept == int(kept)
    ):
        raise ValueError(
            f"`exports_to_keep`, if provided, must be {kind}. Got {number}: use None to keep all."
        )
    return None if number is None else int(number)


def versions_of(export_path: str) -> list[str]:
    """Lists the exports in a folder, oldest first: the folders named by seconds since the epoch."""
    if not tf.io.gfile.isdir(export_path):
        return []
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(export_path)]
    # Ten digits, as the seconds have from 2001 to 2286; "temp-1700000000" and others stay.
    return sorted((name for name in names if len(name) == 10 and name.isdecimal()), key=int)


def remove_old_exports(export_path: str, *, keep: int | None) -> None:
    """Removes all but the newest exports of a folder."""
    if keep is None:
        return
    for version in versions_of(export_path)[:-keep]:
        path = os.path.join(export_path, version)
        try:
            tf.io.gfile.rmtree(path)
        except tf.errors.NotFoundError as error:
            _logger.warning("Can not delete %s recursively: %s", path, error)
