"""Finds files of old runs that no later run needs; lists or removes them."""

import dataclasses
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import ml_metadata
from ml_metadata.proto import metadata_store_pb2
from rich.console import Console
from rich.text import Text

from tfx_tpu_trainer._support.terminal import standard_output
from tfx_tpu_trainer.workbench.history.summary import program, short_path
from tfx_tpu_trainer.workbench.project import metadata, roots
from tfx_tpu_trainer.workbench.project.config import ConfigError
from tfx_tpu_trainer.workbench.project.metadata import State
from tfx_tpu_trainer.workbench.project.roots import (
    CHECKPOINTS,
    LOGS,
    METADATA_FILE,
    TENSORBOARD,
    Root,
    UnfinishedTraining,
    made,
    remove_dead_links,
    unfinished_trainings,
)

_ARTIFACTS = "artifacts"
_LIVE = metadata_store_pb2.Artifact.LIVE
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def clean(folder: Path, *, keep: int, remove: bool) -> None:
    """Lists the leftovers of runs in a root, or in a folder of roots; removes them on request."""
    console = standard_output()
    removal = (
        f"{program('tfx-tpu-trainer')} clean --root {short_path(folder)} --keep {keep} --remove"
    )
    for root in _roots(folder):
        try:
            with roots.locked(root):
                _clean(console, root, keep=keep, removal=None if remove else removal)
        except roots.LockedError as error:
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
    """Cleans a root; given the command that would remove the leftovers, only lists them."""
    store = metadata.open_store(root / METADATA_FILE, read_only=removal is not None)
    found = find(root, store, keep=keep)
    console.print(Text(f"{short_path(root)}: keeps {_kept_in_words(found)}"), soft_wrap=True)
    for left in found.left:
        why = f": {left.why}" if left.why else ""
        line = f"{_in_words(left.size):>10}  {left.path.relative_to(root)}{why}"
        console.print(Text(line), soft_wrap=True)
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
        remove(root, store, found.left)
        console.print(Text(f"{total:>10}  removed", style="bold"))
    else:
        console.print(
            Text(
                f"{total:>10}  in total; nothing has been removed yet. To remove it: {removal}",
                style="bold",
            ),
            soft_wrap=True,
        )


@dataclasses.dataclass(frozen=True)
class Leftover:
    """A folder that no later run needs."""

    path: Path
    size: int
    # A description, if its path is not enough.
    why: str = ""
    # The ids of the artifacts in it.
    artifacts: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Leftovers:
    """The leftovers below a root."""

    runs: int
    # Runs kept because they are the newest.
    newest: Sequence[str]
    # The run with the last blessing; None if there is none.
    blessed: str | None
    # The run with the last push; None if there is none.
    pushed: str | None
    left: Sequence[Leftover]
    # Trainings that stay because the same command resumes them.
    resumable: Sequence[UnfinishedTraining]


def find(root: Path, store: ml_metadata.MetadataStore, *, keep: int) -> Leftovers:
    """Finds what can be removed."""
    runs = metadata.run_names(store)
    began = {run: _began(store, run) for run in runs}
    newest = _newest(store, runs, keep)
    blessed = _last_run_with(store, "ModelBlessing", "blessed")
    pushed = _last_run_with(store, "PushedModel", "pushed")
    kept = {*newest, *filter(None, (blessed, pushed))}
    abandoned, resumable = _trainings(root, store)
    left = [
        *_old_artifacts(root, store, kept),
        *abandoned,
        *_old_logs(
            root / LOGS, [began[run] for run in kept], until=began[newest[0]] if newest else 0.0
        ),
        *_old_pages(root, [run for run in runs if run not in kept]),
    ]
    return Leftovers(len(runs), newest, blessed, pushed, left, resumable)


def remove(root: Path, store: ml_metadata.MetadataStore, left: Iterable[Leftover]) -> None:
    """Removes the leftovers, and marks them in ML Metadata so that TFX's cache ignores them."""
    for leftover in left:
        # Marked first, so a half-removed folder is never used as a complete one.
        _mark(store, leftover.artifacts, metadata_store_pb2.Artifact.MARKED_FOR_DELETION)
        shutil.rmtree(leftover.path)
        _mark(store, leftover.artifacts, metadata_store_pb2.Artifact.DELETED)
    remove_dead_links(root / TENSORBOARD)


def _mark(store: ml_metadata.MetadataStore, artifacts: Collection[int], state: int) -> None:
    if artifacts:
        found = store.get_artifacts_by_id(list(artifacts))
        for artifact in found:
            artifact.state = state
        store.put_artifacts(found)


def _newest(store: ml_metadata.MetadataStore, runs: Sequence[str], keep: int) -> list[str]:
    # Only complete runs count, and everything after the oldest of them stays, too. Example: with keep=1, the last two
    # of the runs [complete, failed, complete, failed] stay.
    complete = [index for index, run in enumerate(runs) if _is_complete(store, run)]
    return list(runs[complete[-keep] :] if len(complete) >= keep else runs)


def _is_complete(store: ml_metadata.MetadataStore, run: str) -> bool:
    states = {status.state for status in metadata.node_statuses(store, run).values()}
    return bool(states) and states <= {State.COMPLETE, State.CACHED}


def _began(store: ml_metadata.MetadataStore, run: str) -> float:
    statuses = metadata.node_statuses(store, run).values()
    return min((status.started for status in statuses), default=0.0)


def _last_run_with(store: ml_metadata.MetadataStore, kind: str, flag: str) -> str | None:
    """Returns the run that made the newest artifact of a type whose custom property is 1."""
    found = [
        artifact
        for artifact in _artifacts_of_type(store, kind)
        if artifact.custom_properties[flag].int_value == 1
    ]
    if not found:
        return None
    newest = max(found, key=lambda artifact: artifact.id)
    contexts = store.get_contexts_by_artifact(newest.id)
    names = {
        context.id: context.name for context in contexts if context.type == metadata.RUN_CONTEXT
    }
    # Later runs got it from the cache.
    return names[min(names)] if names else None


def _artifacts_of_type(
    store: ml_metadata.MetadataStore, kind: str
) -> list[metadata_store_pb2.Artifact]:
    """Returns a type's existing artifacts, according to ML Metadata."""
    if kind not in {known.name for known in store.get_artifact_types()}:
        return []
    return [artifact for artifact in store.get_artifacts_by_type(kind) if artifact.state == _LIVE]


def _old_artifacts(
    root: Path, store: ml_metadata.MetadataStore, kept: Collection[str]
) -> Iterator[Leftover]:
    # TFX's cache points to artifacts of older runs, so a folder's age is irrelevant: everything that a kept run
    # made, read or took from the cache stays, with all folders above and below it. Links are resolved on both sides.
    used = {os.path.realpath(uri) for uri in _used_by(store, kept)}
    below = os.path.realpath(root / _ARTIFACTS)
    by_folder: dict[str, list[int]] = {}
    for artifact in store.get_artifacts():
        folder = os.path.realpath(artifact.uri)
        if "://" not in artifact.uri and _is_inside(folder, below) and os.path.isdir(folder):
            by_folder.setdefault(folder, []).append(artifact.id)
    for folder, artifacts in sorted(by_folder.items()):
        # An artifact's folder may be inside another one's, like that of the last blessed baseline.
        if not any(
            folder == one or _is_inside(folder, one) or _is_inside(one, folder) for one in used
        ):
            path = root / _ARTIFACTS / os.path.relpath(folder, below)
            yield Leftover(path, _size(path), artifacts=tuple(artifacts))


def _used_by(store: ml_metadata.MetadataStore, runs: Collection[str]) -> list[str]:
    """Returns the folders of all artifacts that runs made, read or took from the cache."""
    executions = []
    for run in runs:
        context = store.get_context_by_type_and_name(metadata.RUN_CONTEXT, run)
        executions += store.get_executions_by_context(context.id)
    if not executions:
        return []
    events = store.get_events_by_execution_ids([execution.id for execution in executions])
    found = store.get_artifacts_by_id(sorted({event.artifact_id for event in events}))
    return [artifact.uri for artifact in found]


def _trainings(
    root: Path, store: ml_metadata.MetadataStore
) -> tuple[list[Leftover], list[UnfinishedTraining]]:
    """Returns the checkpoint folders that no training will resume from, and the other ones."""
    finished: dict[str, float] = {}
    for artifact in _artifacts_of_type(store, "ModelRun"):
        # <node>/model_run/<execution>
        node = Path(artifact.uri).parent.parent.name
        began = artifact.create_time_since_epoch / 1000
        finished[node] = max(began, finished.get(node, 0.0))
    left, resumable = [], []
    for pipeline in sorted(path for path in (root / CHECKPOINTS).glob("*") if path.is_dir()):
        for training in unfinished_trainings(pipeline):
            if why := _why_abandoned(training, finished.get(training.node, 0.0)):
                left.append(Leftover(training.folder, _size(training.folder), why))
            else:
                resumable.append(training)
    return left, resumable


def _why_abandoned(training: UnfinishedTraining, finished: float) -> str | None:
    if training.set_aside:
        return "checkpoints that no training could resume from"
    if finished > training.written:
        at = f" at step {training.step:,}" if training.step is not None else ""
        return f"a training that stopped{at}; a later one has ended"
    return None


def _old_logs(logs: Path, kept: Sequence[float], *, until: float) -> Iterator[Leftover]:
    """Yields the logs of runs from before a time, except those that began just before one of the other times."""
    folders = sorted((path for path in logs.glob("*") if path.is_dir()), key=made)
    of_kept = {
        max((f for f in folders if made(f) <= began), key=made, default=None) for began in kept
    }
    newest = max((folder for folder in folders if made(folder) <= until), key=made, default=None)
    for folder in folders:
        if newest is not None and made(folder) < made(newest) and folder not in of_kept:
            yield Leftover(folder, _size(folder))


def _old_pages(root: Path, runs: Iterable[str]) -> Iterator[Leftover]:
    for run in runs:
        folder = Root.at(str(root)).report_folder(run)
        if folder.is_dir():
            yield Leftover(folder, _size(folder))


def _is_inside(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def _size(folder: Path) -> int:
    return sum(
        os.lstat(os.path.join(parent, name)).st_size
        for parent, _, names in os.walk(folder)
        for name in names
    )


def _kept_in_words(found: Leftovers) -> str:
    parts = [f"{len(found.newest)} of {found.runs} runs"]
    for run, what in ((found.blessed, "blessed"), (found.pushed, "pushed")):
        if run is not None and run not in found.newest:
            parts.append(f"run {run}, whose model was the last one {what}")
    return ", ".join(parts)


def _in_words(size: float) -> str:
    unit = 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{size:.0f} {_UNITS[unit]}"
