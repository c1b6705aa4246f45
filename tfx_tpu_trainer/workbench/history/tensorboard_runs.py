"""Names for TensorBoard: `tensorboard/<pipeline>-<time>/train` and `/eval`, of links to the events.

TensorBoard calls a run by its folder, and TFX calls a training's folder `7`.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = "tensorboard"
TRAINING = "train"

_EVENTS = "*.tfevents.*"
# What TensorBoard's plugins find beside the events.
_BESIDE = ("plugins", "projector_config.pbtxt")


def link_run(root: Path, model_run: Path, *, name: str) -> Path:
    """Names the events of a training, unless an earlier run has."""
    below = root / FOLDER
    remove_dead_links(below)
    targets = {link.resolve() for link in _links(below)}
    for folder, label in _folders(model_run):
        events = sorted(folder.glob(_EVENTS))
        if not events or events[0].resolve() in targets:
            continue
        beside = [folder / name for name in _BESIDE if (folder / name).exists()]
        run = below / name / label
        run.mkdir(parents=True, exist_ok=True)
        for path in (*events, *beside):
            link = run / path.name
            if not link.is_symlink():
                # Relative, so that a root may move.
                link.symlink_to(os.path.relpath(path, link.parent))
    return below


def remove_dead_links(below: Path) -> None:
    """Removes the links to events that have gone, and the folders that are empty then."""
    for link in _links(below):
        if link.exists():
            continue
        link.unlink()
        for folder in link.parents:
            if folder == below or any(folder.iterdir()):
                break
            folder.rmdir()


def _folders(model_run: Path) -> list[tuple[Path, str]]:
    """The folders that may hold events: a training's own, and those of its evaluations."""
    evaluations = sorted(path for path in model_run.iterdir() if path.is_dir())
    return [(model_run, TRAINING), *((path, path.name) for path in evaluations)]


def _links(below: Path) -> list[Path]:
    return [path for path in below.glob("*/*/*") if path.is_symlink()]
