"""Exports a plain Estimator's model for TPU hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tfx_tpu_trainer.estimator.estimator import Estimator
from tfx_tpu_trainer.estimator.tpu.run_config import RunConfig
from tfx_tpu_trainer.estimator.tpu.tpu_estimator import TPUEstimator


def export_estimator_savedmodel(
    estimator: Estimator,
    export_dir_base: str,
    serving_input_receiver_fn: Callable[[], Any],
    assets_extra: Mapping[str, str] | None = None,
    as_text: bool = False,
    checkpoint_path: str | None = None,
) -> bytes:
    """Exports the model of an Estimator, as a TPUEstimator of the same model_fn would.

    Args:
        estimator: The estimator; its model_fn must take `params`.
        export_dir_base: As of `TPUEstimator.export_saved_model`, like the others.
        serving_input_receiver_fn: See there.
        assets_extra: See there. Defaults to `None`.
        as_text: See there. Defaults to `False`.
        checkpoint_path: See there. Defaults to the latest of the estimator's.

    Returns:
        The path of the export, which holds a graph for CPUs and one for TPUs.

    Raises:
        ValueError: As `TPUEstimator.export_saved_model`.
    """
    exporter = TPUEstimator(
        estimator._model_fn,
        config=RunConfig(model_dir=estimator.model_dir),
        params=estimator.params,
        use_tpu=False,
        eval_on_tpu=False,
    )
    return exporter.export_saved_model(
        export_dir_base,
        serving_input_receiver_fn,
        assets_extra=assets_extra,
        as_text=as_text,
        checkpoint_path=checkpoint_path or estimator.latest_checkpoint(),
    )
