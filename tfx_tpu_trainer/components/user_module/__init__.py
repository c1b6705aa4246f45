"""The user's module: found and loaded, what it raises or ends told in one line, its model taken to a preflight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfx_tpu_trainer._support.imports import lazy_names

if TYPE_CHECKING:
    from tfx_tpu_trainer.components.user_module._exits import (
        exits_are_errors,
    )
    from tfx_tpu_trainer.components.user_module._feature_spec import (
        FeatureSpec,
    )
    from tfx_tpu_trainer.components.user_module._module import (
        UserModule,
        imported_from,
        load_file,
        load_module,
    )
    from tfx_tpu_trainer.components.user_module._user_model import (
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
        "._exits": ["exits_are_errors"],
        "._feature_spec": ["FeatureSpec"],
        "._module": ["UserModule", "imported_from", "load_file", "load_module"],
        "._user_model": ["model_of_module"],
    },
)
