"""Writes the page of a training, and its numbers next to it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.components.report._gathering import gather
from tfx_tpu_trainer.components.report._page import render
from tfx_tpu_trainer.components.report._run_data import Lineage, RunData, write_run_data
from tfx_tpu_trainer.estimator import Estimator

PAGE_FILE = "run.html"
"""Name of the page, next to the checkpoints of its training."""

_PACKAGES = ("tfx-tpu-trainer", "tensorflow", "tf-keras", "tfx", "tensorflow-transform", "numpy")


def write(
    estimator: Estimator,
    folder: str | None = None,
    *,
    title: str | None = None,
    exported: str | None = None,
) -> str:
    """Writes the page of an estimator's training: `run.html`, and `run.json` next to it.

    Args:
        estimator: Has been trained, and evaluated where the page is to say how good the model is.
        folder: Where they go; any path `tf.io.gfile` knows. Defaults to `None`: the estimator's `model_dir`.
        title: The name of the training. Defaults to `None`: the last part of `model_dir`.
        exported: The SavedModel that `export_saved_model` has returned. Defaults to `None`: the page
            describes no SavedModel.

    Returns:
        The page's path.

    Raises:
        TypeError: `estimator` is something else.
        OSError: It can't be written there.
    """
    if not isinstance(estimator, Estimator):
        raise TypeError(f"estimator={estimator!r} is not a tfx_tpu_trainer.estimator.Estimator.")
    model_dir = tf.compat.as_str_any(estimator.model_dir)
    run = gather(
        model_dir,
        title=title or os.path.basename(model_dir.rstrip("/")) or model_dir,
        exported=exported,
        lineage=Lineage(settings=_settings(estimator), versions=versions()),
    )
    return write_page(run, folder or model_dir)


def write_page(run: RunData, folder: str, *, copies: Sequence[str] = ()) -> str:
    """Writes `run.json` and `run.html`; each appears whole or not at all.

    Args:
        run: The data of the training.
        folder: Where they go; any path `tf.io.gfile` knows. Created if missing.
        copies: Further files that hold the page. Defaults to none.

    Returns:
        The page's path.

    Raises:
        OSError: They can't be written there.
    """
    path, page = os.path.join(folder, PAGE_FILE), render(run)
    write_run_data(run, folder)
    for each in (path, *copies):
        write_whole(each, page)
    return path


def versions() -> dict[str, str]:
    """Returns the versions of Python, of this package and of those that a model depends on most."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _settings(estimator: Estimator) -> dict[str, str]:
    """Returns params, and what of the RunConfig differs from a new one's."""
    default = type(estimator.config)()
    params = estimator.params or {}
    settings = {f"params.{name}": str(value) for name, value in sorted(params.items())}
    for name in sorted(default_names := _public_properties(default)):
        value = getattr(estimator.config, name)
        if name != "model_dir" and value != default_names[name]:
            settings[name] = str(value)
    return settings


def _public_properties(config: Any) -> dict[str, Any]:
    return {
        name: getattr(config, name)
        for name in dir(type(config))
        if not name.startswith("_") and isinstance(getattr(type(config), name), property)
    }
