"""Private modules that moved, under the names by which TensorFlow and libraries still ask for them."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Final

_TRACKING: Final = "tensorflow.python.training.tracking"
_LAYERS: Final = "tf_keras.legacy_tf_layers"
_LAYERS_NOW: Final = "tf_keras.src.legacy_tf_layers"

MOVED: Final = {
    # tensorflow.python.layers.normalization, on which tf-slim's batch_norm stands, asks for the first of these; no
    # tf_keras since 2.16 has it.
    **{
        f"{_LAYERS}.{name}": f"{_LAYERS_NOW}.{name}"
        for name in ("base", "convolutional", "core", "normalization", "pooling")
    },
    _LAYERS: _LAYERS_NOW,
    # TensorFlow 2.9 moved these; AdaNet and TensorFlow Hub up to 0.12 import them.
    f"{_TRACKING}.base": "tensorflow.python.trackable.base",
    f"{_TRACKING}.data_structures": "tensorflow.python.trackable.data_structures",
    f"{_TRACKING}.graph_view": "tensorflow.python.checkpoint.graph_view",
    f"{_TRACKING}.python_state": "tensorflow.python.trackable.python_state",
    f"{_TRACKING}.tracking": "tensorflow.python.trackable.autotrackable",
    f"{_TRACKING}.util": "tensorflow.python.checkpoint.checkpoint",
}
"""Old name -> today's."""


class MovedModulesFinder(importlib.abc.MetaPathFinder):
    """Finds each by its old name, as the same module; to be asked last, so that one that is there wins."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds the module that is meant, if it is one of these."""
        if fullname == _TRACKING:
            # A package without a folder, of which the modules are all that is asked for.
            return importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        today = MOVED.get(fullname)
        if today is None or importlib.util.find_spec(today) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, _SameModule(today))


class _SameModule(importlib.abc.Loader):
    """Imports a module by today's name: both names are the same module."""

    def __init__(self, today: str) -> None:
        self._today = today

    def exec_module(self, module: types.ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._today)
