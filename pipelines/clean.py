"""`python -m pipelines.clean FOLDER`: lists what old runs have left, and removes it where `--remove` says so."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from pipelines import leftovers, metadata, root_lock
from pipelines.leftovers import Leftovers
from pipelines.summary import short_path
from tfx_tpu_trainer.printable import printable
from tfx_tpu_trainer.terminal import standard_output

_METADATA = "metadata.sqlite"
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--keep",
    default=3,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many complete runs to keep, the newest.",
)
@click.option("--remove", is_flag=True, help="Removes what is listed.")
def main(folder: Path, keep: int, remove: bool) -> None:
    """Lists what old runs have left in FOLDER: a root, or a folder of roots.

    Kept are the newest runs, those of the model that was blessed last and of the one that was pushed last, all that
    these runs have used, and each training that the same command would go on with. The folder of pushed models is
    left alone.
    """
    console = standard_output()
    removal = f"{short_path(sys.executable)} -m pipelines.clean {folder} --keep {keep} --remove"
    for root in _roots(folder.absolute()):
        try:
            with root_lock.locked(root):
                _clean(console, root, keep=keep, removal=None if remove else removal)
        except root_lock.LockedError:
            raise click.ClickException(
                f"a run is going on in {printable(repr(str(root)))}; wait for its end"
            ) from None
        except metadata.UnreadableError as error:
            raise click.ClickException(
                f"{printable(str(error))}; only a root of the local runner can be cleaned"
            ) from None
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise click.ClickException(
                f"{printable(str(root))} can't be cleaned: {error.strerror}{printable(where)}; let this user "
                "write there, then call again"
            ) from None


def _roots(folder: Path) -> list[Path]:
    roots = sorted(
        {path.parent for path in (*folder.glob(_METADATA), *folder.glob(f"*/{_METADATA}"))}
    )
    if not roots:
        raise click.ClickException(
            f"{printable(repr(str(folder)))} holds no {_METADATA}, nor does a folder in it; give the root of a "
            "pipeline, such as runs/taxi"
        )
    return roots


def _clean(console: Console, root: Path, *, keep: int, removal: str | None) -> None:
    """Cleans a root; with the command that would remove what is listed, only lists it."""
    store = metadata.open_store(root / _METADATA, read_only=removal is not None)
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
                f"      kept  {training.folder.relative_to(root)}: the same command goes on with it, from step "
                f"{training.step or 0:,}",
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
            Text(f"{total:>10}  in all, of which nothing is removed yet: {removal}", style="bold"),
            soft_wrap=True,
        )


def _kept_in_words(found: Leftovers) -> str:
    parts = [f"{len(found.newest)} of {found.runs} runs"]
    for run, what in ((found.blessed, "blessed"), (found.pushed, "pushed")):
        if run is not None and run not in found.newest:
            parts.append(f"run {run}, whose model was {what} last")
    return ", ".join(parts)


def _because(why: str) -> str:
    return f": {why}" if why else ""


def _in_words(size: float) -> str:
    unit = 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{size:.0f} {_UNITS[unit]}"


if __name__ == "__main__":
    main()
