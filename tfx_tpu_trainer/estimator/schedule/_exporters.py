"""Exporters: which of the models that `train_and_evaluate` evaluates are exported."""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._number_checks import holds

_logger = tf.get_logger()


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
        """Exports the model, or not.

        Args:
            estimator: The estimator that was evaluated.
            export_path: Folder of this exporter.
            checkpoint_path: The checkpoint that was evaluated.
            eval_result: What `evaluate` returned for it.
            is_the_final_export: Whether training has reached its last step.

        Returns:
            Path of the export, or `None` if there is none.
        """


class SavedModelExporter(Exporter):
    """An exporter by `export_saved_model`: what those of this package share."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any] | None,
        assets_extra: Mapping[str, str] | None,
        as_text: bool,
    ) -> None:
        """Keeps the folder's name, and the arguments of `Estimator.export_saved_model`."""
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
    """Exports once, when training has reached `max_steps`; mirrors `tf.estimator.FinalExporter`.

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
        """Keeps how to export.

        Args:
            name: Name of the folder of the exports.
            serving_input_receiver_fn: Returns a `ServingInputReceiver`.
            assets_extra: Name below `assets.extra` -> file to copy. Defaults to `None`.
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
        """Keeps how to export.

        Args:
            name: Name of the folder of the exports.
            serving_input_receiver_fn: Returns a `ServingInputReceiver`.
            assets_extra: Name below `assets.extra` -> file to copy. Defaults to `None`.
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


def check_exports_to_keep(number: int | None, *, kind: str = "positive number") -> int | None:
    """Checks a number of exports to keep and returns it."""
    if number is not None and not holds("exports_to_keep", number, lambda kept: kept > 0):
        raise ValueError(
            f"`exports_to_keep`, if provided, must be {kind}. Got {number}: use None to keep all."
        )
    return number


def versions_of(export_path: str) -> list[str]:
    """Lists the exports in a folder, oldest first: the folders named by seconds since the epoch."""
    if not tf.io.gfile.isdir(export_path):
        return []
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(export_path)]
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
