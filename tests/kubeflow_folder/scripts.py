"""The scripts of kubeflow/, which is no package: the name belongs to one of the index."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "kubeflow"


def load(name: str) -> ModuleType:
    """Imports a script of the folder under a name of its own."""
    module_name = f"kubeflow_script_{name}"
    spec = importlib.util.spec_from_file_location(module_name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
