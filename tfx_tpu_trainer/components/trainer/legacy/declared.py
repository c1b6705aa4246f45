"""What can be said of a module and its parameters when the pipeline is made, before anything is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfx_tpu_trainer.components.trainer.legacy.module import (
    MODEL_FN,
    TRAINER_FN,
    both_message,
    names_in_source,
)
from tfx_tpu_trainer.components.trainer.module_source import ModuleSource, source_file
from tfx_tpu_trainer.components.trainer.settings import TrainSettings


def declared_source(
    *, module_file: Any, module: Any, trainer_fn: Any, settings: Mapping[str, Any]
) -> ModuleSource | None:
    """Checks which module a component names, and that its parameters mean something to it."""
    if sum(map(bool, (module_file, module, trainer_fn))) != 1:
        raise ValueError(
            f"give exactly one of module_file={module_file!r} (a .py file), "
            f"trainer_fn={trainer_fn!r} (the import path of a legacy module's function) and "
            f"module={module!r} (an import path)"
        )
    for name, path in (("module", module), (TRAINER_FN, trainer_fn)):
        if path is not None and not isinstance(path, str):
            raise ValueError(
                f"{name}={path!r} can't be a runtime parameter: its source is hashed when the "
                "pipeline is made; give an import path"
            )
    source = None
    if trainer_fn:
        source = ModuleSource.of_trainer_fn(trainer_fn)
    elif module:
        source = ModuleSource(module=module)
    if _is_legacy(source, module_file):
        check_settings(settings)
    return source


def _is_legacy(source: ModuleSource | None, module_file: Any) -> bool:
    if source is not None and source.trainer_fn:
        return True
    # What is not seen here, in a file elsewhere for one, is seen when the trainer runs.
    path = source_file(source.module or "") if source else module_file
    names = names_in_source(path) if isinstance(path, str) else frozenset({"*"})
    called = str(source or module_file)
    if {TRAINER_FN, MODEL_FN} <= names:
        raise ValueError(both_message(called))
    if not names & {TRAINER_FN, MODEL_FN, "*"}:
        raise ValueError(
            f"module {called!r} has no model_fn, nor a trainer_fn; define model_fn(features, labels, "
            "mode, params) in it (docs/component.md, The user's module); for a Keras model, let "
            "keras_to_estimator make it (docs/migration.md, A Keras model); a run_fn belongs to the "
            "stock Trainer (docs/legacy.md)"
        )
    return TRAINER_FN in names


def check_settings(values: Mapping[str, Any]) -> None:
    """Refuses parameters that a legacy module could not see."""
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
