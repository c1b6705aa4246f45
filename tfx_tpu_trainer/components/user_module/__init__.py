"""Loads and checks the user's module, turns its exits into errors, and adapts its model for the preflight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfx_tpu_trainer._support.imports import lazy_names

if TYPE_CHECKING:
    from tfx_tpu_trainer.components.user_module._module import (
        UserModule,
        exits_are_errors,
        imported_from,
        load_file,
        load_module,
    )
    from tfx_tpu_trainer.components.user_module._preflight_model import (
        FeatureSpec,
        model_of_module,
    )

__all__ = [
    "FeatureSpec",
    "UserModule",
    "exits_are_errors",
    "imported_from",
    "load_file",
    "load_module",
    "model_of_module",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "._module": [
            "UserModule",
            "exits_are_errors",
            "imported_from",
            "load_file",
            "load_module",
        ],
        "._preflight_model": ["FeatureSpec", "model_of_module"],
    },
)
