"""Processes that a program starts with multiprocessing have the old names, and its repairs, too."""

from __future__ import annotations

import dataclasses
import importlib.machinery
import multiprocessing.spawn
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tfx_tpu_trainer.compat._installation import install
from tfx_tpu_trainer.compat.repairing.loaders import RepairingFinder
from tfx_tpu_trainer.compat.repairing.own_files import OwnFiles
from tfx_tpu_trainer.compat.repairing.repairs import Repairs

_KEY = "tfx_tpu_trainer.compat"


def serve_workers(repairs: Repairs | None) -> None:
    """Lets processes of the start methods "spawn" and "forkserver" begin as this one did.

    Forked ones have it all by themselves. What such a process is told at its start it unpickles
    before it imports the program; a value in there does the installation.
    """
    original: Callable[[str], dict[str, Any]] = multiprocessing.spawn.get_preparation_data
    start = _Start(None if repairs is None else repairs.files.roots)

    def get_preparation_data(name: str) -> dict[str, Any]:
        data = original(name)
        module = _name_of(data.get("init_main_from_path"))
        if repairs is not None and module is not None:
            # By its name the program's own file is imported, and so repaired.
            del data["init_main_from_path"]
            data["init_main_from_name"] = module
        return {_KEY: start, **data}

    vars(multiprocessing.spawn)["get_preparation_data"] = get_preparation_data


@dataclasses.dataclass(frozen=True)
class _Start:
    """What a worker begins with, done when it is unpickled."""

    roots: Sequence[str] | None

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        return start_worker, (self.roots,)


def start_worker(roots: Sequence[str] | None) -> None:
    """Begins a worker."""
    install()
    repairs = None
    if roots is not None:
        repairs = Repairs(OwnFiles(roots), shown=False)
        sys.meta_path.insert(0, RepairingFinder(repairs))
    serve_workers(repairs)


def _name_of(path: str | None) -> str | None:
    """Returns the module name under which a program's file is found, if there is one."""
    stem, suffix = os.path.splitext(os.path.basename(path or ""))
    if path is None or suffix != ".py" or not stem.isidentifier():
        return None
    spec = importlib.machinery.PathFinder.find_spec(stem)
    origin = spec.origin if spec is not None else None
    found = origin is not None and os.path.realpath(origin) == os.path.realpath(path)
    return stem if found else None
