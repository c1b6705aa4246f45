"""Repaired programs kept between runs, in a folder of the user's."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Final

from tfx_tpu_trainer._support.whole_files import write_whole

_MAKERS: Final = (Path(__file__).resolve().parent, Path(__file__).resolve().parents[1] / "doctor")


@dataclasses.dataclass(frozen=True)
class Repair:
    """A program's text as it is run.

    Attributes:
        text: The text, repaired.
        tensorflow: The version of TensorFlow that the program was written for; `None` where it does
            not say.
        left: What is to be edited by hand: a line, a name and the advice, each as one text.
    """

    text: str
    tensorflow: int | None
    left: tuple[str, ...] = ()


def load(original: str) -> Repair | None:
    """Returns the repair of a text that was kept."""
    try:
        kept = json.loads(_file(original).read_bytes())
        repair = Repair(kept["text"], kept["tensorflow"], tuple(kept["left"]))
        return repair if kept["digest"] == _digest_of(repair) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def keep(original: str, repair: Repair) -> None:
    """Keeps a repair; where nothing can be written, nothing is kept."""
    with contextlib.suppress(OSError, ValueError):
        values = {**dataclasses.asdict(repair), "digest": _digest_of(repair)}
        # Programs that start at the same time see the whole file, or none.
        write_whole(_file(original), json.dumps(values))


def cache_folder() -> Path:
    """Returns the folder of kept repairs: below XDG_CACHE_HOME, or `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "tfx_tpu_trainer" / "repairs"


def _file(original: str) -> Path:
    return cache_folder() / f"{_digest(_makers_digest() + original)}.json"


def _digest_of(repair: Repair) -> str:
    return _digest(json.dumps(dataclasses.asdict(repair)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@functools.cache
def _makers_digest() -> str:
    """A digest of the modules that make repairs: those of another version may make others."""
    digest = hashlib.sha256()
    for folder in _MAKERS:
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()
