"""Which parameters of a TpuTrainer say nothing to a module that makes its own estimator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfx_tpu_trainer.component.trainer_parameters import TrainSettings


def check_settings(values: Mapping[str, Any]) -> None:
    """Refuses parameters that a legacy module could not see.

    Args:
        values: Parameters by name, settings of other kinds too. `None`, and a setting's default,
            count as not given.

    Raises:
        ValueError: One is given; says where the module has it.
    """
    for name in TrainSettings.model_fields:
        value, why = values.get(name), TrainSettings.about(name).not_legacy
        if why and _is_given(name, value):
            raise ValueError(
                f"{name}={value!r} has no meaning for a module with a trainer_fn: {why}; leave it out"
            )


def _is_given(name: str, value: Any) -> bool:
    default = TrainSettings.model_fields[name].default
    try:
        return value is not None and bool(value != default)
    except (TypeError, ValueError):
        # A runtime parameter or a placeholder, which makes a comparison part of the pipeline.
        return True
