"""Lists what old runs have left in a root, and removes it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from tfx_tpu_trainer._support.terminal import standard_output
from tfx_tpu_trainer.workbench.history import leftovers
from tfx_tpu_trainer.workbench.history.leftovers import Leftovers
from tfx_tpu_trainer.workbench.history.summary import program, short_path
from tfx_tpu_trainer.workbench.project import metadata, root_lock
from tfx_tpu_trainer.workbench.project.config import ConfigError
from tfx_tpu_trainer.workbench.project.roots import METADATA_FILE

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def clean(folder: Path, *, keep: int, remove: bool) -> None:
    """Lists what old runs have left in a root, or in a folder of roots, and removes it where asked to."""
    console = standard_output()
    removal = (
        f"{program('tfx-tpu-trainer')} clean --root {short_path(folder)} --keep {keep} --remove"
    )
    for root in _roots(folder):
        try:
            with root_lock.locked(root):
                _clean(console, root, keep=keep, removal=None if remove else removal)
        except root_lock.LockedError as error:
            raise ConfigError(
                f"a run is in progress in {str(root)!r} ({error}); wait until it ends"
            ) from None
        except metadata.UnreadableError as error:
            raise ConfigError(f"{error}; only a root of the local runner can be cleaned") from None
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise ConfigError(
                f"{str(root)!r} can't be cleaned: {error.strerror}{where}; give this user write "
                "access, then run clean again"
            ) from None


def _roots(folder: Path) -> list[Path]:
    roots = sorted(
        {path.parent for path in (*folder.glob(METADATA_FILE), *folder.glob(f"*/{METADATA_FILE}"))}
    )
    if not roots:
        raise ConfigError(
            f"{str(folder)!r} contains no {METADATA_FILE}, nor does any of its folders; give the "
            "root of a pipeline, such as runs/taxi"
        )
    return roots


def _clean(console: Console, root: Path, *, keep: int, removal: str | None) -> None:
    """Cleans a root; with the command that would remove what is listed, only lists it."""
    store = metadata.open_store(root / METADATA_FILE, read_only=removal is not None)
    found = leftovers.find(root, store, keep=keep)
    console.print(Text(f"{short_path(root)}: keeps {_kept_in_words(found)}"), soft_wrap=True)
    for left in found.left:
        size = _in_words(left.size)
        console.print(
            Text(f"{size:>10}  {left.path.relative_to(root)}{_because(left.why)}"), soft_wrap=True
        )
    for training in found.resumable:
        console.print(
            Text(
                f"      kept  {training.folder.relative_to(root)}: the same command resumes it, "
                f"from step {training.step or 0:,}",
                style="dim",
            ),
            soft_wrap=True,
        )
    total = _in_words(sum(left.size for left in found.left))
    if not found.left:
        console.print("   nothing to remove")
    elif removal is None:
        leftovers.remove(root, store, found.left)
        console.print(Text(f"{total:>10}  removed", style="bold"))
    else:
        console.print(
            Text(
                f"{total:>10}  in all; nothing has been removed yet. To remove it: {removal}",
                style="bold",
            ),
            soft_wrap=True,
        )


def _kept_in_words(found: Leftovers) -> str:
    parts = [f"{len(found.newest)} of {found.runs} runs"]
    for run, what in ((found.blessed, "blessed"), (found.pushed, "pushed")):
        if run is not None and run not in found.newest:
            parts.append(f"run {run}, whose model was the last one {what}")
    return ", ".join(parts)


def _because(why: str) -> str:
    return f": {why}" if why else ""


def _in_words(size: float) -> str:
    unit = 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{size:.0f} {_UNITS[unit]}"
