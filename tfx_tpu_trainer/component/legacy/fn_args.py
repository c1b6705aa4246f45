"""What a legacy trainer_fn is called with: FnArgs that point into the ModelRun, and may be read as a dict."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from tfx import v1 as tfx


class LegacyFnArgs(tfx.components.FnArgs):
    """FnArgs in every form that a TFX release has handed to trainer_fn.

    TFX 0.1x gave an object with the entries of `custom_config` among its attributes, TFX 0.2x a dict
    whose keys were attributes too, and TFX 1.x `FnArgs`. A module may rely on any of them.
    """

    def __getattr__(self, name: str) -> Any:
        # Only called for what is no attribute.
        config = self.__dict__.get("custom_config") or {}
        if name in config:
            return config[name]
        raise AttributeError(
            f"trainer_fn_args has no {name!r}; it has {', '.join(sorted(self))}. A value of your own "
            f"comes with TpuTrainer(custom_config={{{name!r}: ...}})"
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
        """Names all values, so that `**trainer_fn_args` works."""
        return list(self)

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a value, or the default where there is none."""
        return getattr(self, name, default)


def legacy_fn_args(fn_args: tfx.components.FnArgs, working_folder: str) -> LegacyFnArgs:
    """Makes a trainer_fn's arguments.

    Args:
        fn_args: What TFX made of the artifacts.
        working_folder: Takes the place of the ModelRun artifact: checkpoints and exports are made
            below it, and copied to the Model artifact when all of them are there.

    Returns:
        The arguments: `serving_model_dir`, `eval_model_dir` and `model_run_dir` are in the working
        folder, as TFX <= 1.15 had them in the ModelRun. All else is as it was.
    """
    values = dict(vars(fn_args))
    for name in ("serving_model_dir", "eval_model_dir"):
        values[name] = os.path.join(working_folder, os.path.basename(values[name]))
    return LegacyFnArgs(**{**values, "model_run_dir": working_folder})
