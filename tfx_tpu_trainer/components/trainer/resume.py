"""Finds an earlier attempt's checkpoints: defines which trainings are the same, and the folder that they share."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tfx import v1 as tfx

from tfx_tpu_trainer._support.file_systems import renames_folders
from tfx_tpu_trainer._support.imports import without_notice
from tfx_tpu_trainer._support.messages import printable
from tfx_tpu_trainer._support.whole_files import (
    file_written_whole,
    files_below,
    is_temporary,
    move_folder,
    sweep,
    temporary_beside,
    write_whole,
)
from tfx_tpu_trainer.components.trainer.module_source import ModuleSource, source_hash
from tfx_tpu_trainer.components.trainer.train_job import TrainJob
from tfx_tpu_trainer.estimator.extending import (
    PatientListener,
    checkpoint_paths,
    checkpoints,
    find_damage,
    newest_sound_checkpoint,
)

v1 = tf.compat.v1

_logger = logging.getLogger(__name__)

# A file of a checkpoint; the group is its path.
_OF_A_CHECKPOINT = re.compile(r"(.*ckpt-\d+)\.[^/]+$")

# A checkpoint's parts, a value that is being assembled, and a text file before it gets its name.
_TENSORFLOWS_TEMPORARY = re.compile(r"_temp$|\.tempstate\d*$|\.tmp[0-9a-f]{32}$")

RECORD_FILE = "training.json"
"""The training to which a checkpoint folder belongs, and the attempt that trains in it."""

_STAT_THREADS = 16

# Inputs that only the page of the training reads.
_ONLY_SHOWN = ("statistics",)


class AnotherAttemptError(RuntimeError):
    """Another attempt at the same training has replaced this one."""


@dataclasses.dataclass(frozen=True)
class TrainingIdentity:
    """Pipeline, node, inputs, code and settings of a training.

    Settings that leave no trace in a checkpoint are not part of it: if a serving check has failed, its timeout can be
    changed without training again.
    """

    description: Mapping[str, Any]

    @classmethod
    def of(cls, job: TrainJob, *, evaluates: bool = True) -> TrainingIdentity:
        """Describes a training. Its inputs' files are listed with sizes and times, not read."""
        settings = job.settings.to_exec_properties()
        return cls(
            {
                "pipeline": job.pipeline,
                "node": job.node,
                "inputs": {
                    key: [_artifact(artifact) for artifact in job.inputs[key]]
                    for key in sorted(job.inputs)
                    if key not in _ONLY_SHOWN
                },
                "code": code_of(job.source),
                "train_steps": job.train_steps,
                "train_splits": list(job.train_splits),
                "eval_steps": job.eval_steps if evaluates else None,
                "eval_splits": list(job.eval_splits),
                "custom_config": repr(job.custom_config),
                "settings": {
                    name: value
                    for name, value in sorted(settings.items())
                    if job.settings.about(name).in_checkpoint
                },
            }
        )

    @property
    def digest(self) -> str:
        """A 16-digit hexadecimal name."""
        text = json.dumps(self.description, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _artifact(artifact: tfx.dsl.Artifact) -> dict[str, str]:
    return {
        "type": artifact.type_name,
        "uri": artifact.uri,
        "content": _content(artifact.uri),
    }


def _content(uri: str) -> str:
    """Hashes the names, sizes and times of files below an artifact's URI.

    TFX never writes twice to its own URIs, but an imported artifact's files may be replaced.
    """
    paths = sorted(
        os.path.join(folder, name) for folder, _, names in tf.io.gfile.walk(uri) for name in names
    )
    # Each stat is a request to an object store.
    with concurrent.futures.ThreadPoolExecutor(_STAT_THREADS) as pool:
        found = list(pool.map(tf.io.gfile.stat, paths))
    digest = hashlib.sha256()
    for path, stat in zip(paths, found, strict=True):
        digest.update(f"{path.removeprefix(uri)}\0{stat.length}\0{stat.mtime_nsec}\0".encode())
    return digest.hexdigest()[:16]


def code_of(source: ModuleSource) -> str:
    """Names a user's module, with a digest of its code."""
    if source.module:
        function = f":{source.trainer_fn}" if source.trainer_fn else ""
        return f"{source.module}{function}@{source_hash(source.module)}"
    if source.file:
        with tf.io.gfile.GFile(source.file, "rb") as file:
            return f"{os.path.basename(source.file)}@{hashlib.sha256(file.read()).hexdigest()}"
    # The version in TFX's wheel is a hash of its files.
    name, _, wheel = (source.wheel or "").partition("@")
    return f"{name}@{os.path.basename(wheel)}"


def _as_json(value: Any) -> Any:
    # Tuples become lists, as in a record read from JSON.
    return json.loads(json.dumps(value))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointFolder:
    """The folder for one training's checkpoints, the same for each attempt.

    Nothing in it depends on the order of renames, so it may be in an object store.
    """

    path: str  # Named by the identity's digest.
    identity: TrainingIdentity
    claim: str = dataclasses.field(
        default_factory=lambda: uuid.uuid4().hex
    )  # The id of this attempt.
    # The paths that this attempt has claimed.
    taken: set[str] = dataclasses.field(default_factory=set)

    @classmethod
    def of(cls, job: TrainJob, *, evaluates: bool = True) -> CheckpointFolder | None:
        """Returns a job's folder."""
        root = checkpoint_root_of(
            job.settings.checkpoint_root,
            model_run=job.model_run.uri,
            node=job.node,
            orchestrated_by_tfx=job.orchestrated_by_tfx,
        )
        if root is None:
            _logger.info(
                "Another attempt at this training would start from scratch: on this orchestrator "
                "it finds these checkpoints only if checkpoint_root is set."
            )
            return None
        return cls.below(root, TrainingIdentity.of(job, evaluates=evaluates))

    @classmethod
    def below(cls, root: str, identity: TrainingIdentity) -> CheckpointFolder:
        """Returns a training's folder."""
        return cls(path=os.path.join(root, identity.digest), identity=identity)

    def take_up(self) -> int:
        """Prepares the folder for an attempt, and takes it over from an earlier one.

        A folder from which no training can resume is set aside, with a warning, and the training starts from scratch.
        """
        # A retry gets new artifacts, so it finds an earlier attempt's checkpoints only by name: the folder's name
        # is a digest of everything that affects a checkpoint. The same training returns to it, and no other does. The
        # earlier attempt may still run, on a machine that counts as lost. So `training.json` holds the claim of the
        # last attempt, and each attempt reads it before it writes. Invariant: of two attempts the later one continues.
        # Example: A saves step 300 and its machine hangs; B resumes at 300 and claims the folder; A wakes at step 400,
        # finds B's claim before it saves (`StillOursListener`), and ends. The claim precedes the sweep, which may
        # remove a file that A is writing.
        self._set_aside_what_is_not_ours()
        step = self._go_back_to_a_sound_checkpoint()
        self._write_record()
        self.taken.add(self.path)
        for path in (*sweep(self.path), *_sweep_half_checkpoints(self.path)):
            _logger.info("Removed %s, left behind by an earlier attempt", printable(path))
        if step:
            _logger.info("Resuming from the checkpoint of step %d in %s", step, self.path)
        else:
            _logger.info("Checkpoints and events are in %s until the training has ended", self.path)
        return step

    def check_still_ours(self) -> None:
        """Raises if another attempt has taken over the folder."""
        if not self._is_ours():
            raise self._another_attempt()

    def surely_is_ours(self) -> bool:
        """Returns whether this attempt surely owns the folder; `False` if that can't be read.

        An attempt that has not taken it over yet has written nothing: the artifacts' content may be the complete result
        of another attempt, which began later and has ended.
        """
        try:
            return bool(self.taken) and self._is_ours()
        except tf.errors.OpError:
            return False

    @contextlib.contextmanager
    def giving_way(self) -> Iterator[None]:
        """Reports a failure of the block as a takeover if another attempt has taken over the folder.

        The other attempt removes files that this one was about to rename or read, so any failure is its effect.
        """
        try:
            yield
        except AnotherAttemptError:
            raise
        except Exception as error:
            if not self.taken or self.surely_is_ours():
                raise
            raise self._another_attempt() from error

    def check_before_writing(self) -> None:
        """Raises if the folder is no longer ours; only warns if that can't be read."""
        try:
            self.check_still_ours()
        # A store that is briefly unavailable must not end a training of days. At worst there is one more write, and the
        # next check ends it.
        except tf.errors.OpError as error:
            _logger.warning("%s can't be read at the moment: %s", self.path, error.message)

    def publish(self, model_run: str, *, leaving_out: Collection[str] = ()) -> None:
        """Copies checkpoints and events to a ModelRun artifact.

        The folder stays unchanged, so an attempt after a later failure still resumes from it.
        """
        # Files in the order in which they name each other: values, index, `checkpoint`. A killed copy leaves no index
        # without its values, and no `checkpoint` that names missing files.
        self.check_still_ours()
        left_out = {RECORD_FILE, *leaving_out}
        # Temporary files belong to a delayed attempt, which may continue just now.
        names = [
            name
            for name in files_below(self.path)
            if left_out.isdisjoint(name.split("/")) and not _is_temporary(name)
        ]
        removed: set[str] = set()
        for name in sorted(names, key=_after_what_it_names):
            self.check_before_writing()
            checkpoint = _OF_A_CHECKPOINT.match(name)
            source = os.path.join(self.path, name)
            try:
                with file_written_whole(os.path.join(model_run, name)) as target:
                    tf.io.gfile.copy(source, target)
            except tf.errors.NotFoundError:
                # A delayed attempt may continue removing a surplus checkpoint.
                if checkpoint is None or tf.io.gfile.exists(source):
                    raise
                removed.add(checkpoint[1])
        for checkpoint_path in removed:
            _logger.info("An earlier attempt removed %s, so it is not published", checkpoint_path)
            for path in tf.io.gfile.glob(os.path.join(model_run, f"{checkpoint_path}.*")):
                tf.io.gfile.remove(path)
        # The copied file `checkpoint` may name a checkpoint that an earlier attempt has removed since, or an older one.
        paths = checkpoint_paths(model_run)
        if paths and _named_latest(model_run) != paths[-1] and find_damage(paths[-1]) is None:
            _name_latest(model_run, paths)

    def remove(self) -> None:
        """Removes the folder of a training that ended well.

        If another attempt has taken it over since, the folder stays.
        """
        try:
            records = map(self._read_record, self.taken)
            if any(record and record.get("claim") != self.claim for record in records):
                _logger.info("Another attempt now uses %s, so it is kept", self.path)
                return
            self._remove_whole()
        except (tf.errors.NotFoundError, FileNotFoundError):
            return
        # The model is in its place, so a folder that can't be removed must not fail the execution.
        except (tf.errors.OpError, OSError) as error:
            _logger.warning(
                "The checkpoint folder %s can't be removed (%s): remove it by hand, or the next "
                "run of the same training will continue where this one ended.",
                self.path,
                getattr(error, "message", error),
            )

    def _remove_whole(self) -> None:
        """Removes the folder such that no attempt resumes from the remains of a killed removal.

        The remains may contain a checkpoint of an earlier step, whose input position is gone.
        """
        if renames_folders(self.path):
            going = temporary_beside(self.path)
            move_folder(self.path, going)
            tf.io.gfile.rmtree(going)
            return
        # The record goes first: without it the next attempt sets the remains aside (`take_up`).
        record = os.path.join(self.path, RECORD_FILE)
        if tf.io.gfile.exists(record):
            tf.io.gfile.remove(record)
        tf.io.gfile.rmtree(self.path)

    def _is_ours(self) -> bool:
        # A legacy module's estimator has its own folder, below this one or elsewhere.
        records = map(self._read_record, self.taken)
        return all(record and record.get("claim") == self.claim for record in records)

    def _another_attempt(self) -> AnotherAttemptError:
        return AnotherAttemptError(
            f"Another attempt at this training now uses {self.path}, so this one ends: it must not "
            "overwrite the other's files."
        )

    def _set_aside_what_is_not_ours(self) -> None:
        # A folder without checkpoints has nothing to resume from, and nothing to lose.
        if not tf.io.gfile.isdir(self.path) or not checkpoint_paths(self.path):
            return
        record = self._read_record(self.path)
        if record is None:
            self._set_aside(
                f"it has no readable {RECORD_FILE}, which records the training it belongs to"
            )
        # The folder's name is a digest of this description. They differ if a folder was renamed or copied, or if two
        # trainings share 64 bits of a hash.
        elif record.get("training") != _as_json(self.identity.description):
            self._set_aside(f"its {RECORD_FILE} belongs to another training")

    def _go_back_to_a_sound_checkpoint(self) -> int:
        paths = checkpoint_paths(self.path) if tf.io.gfile.isdir(self.path) else []
        if not paths:
            return 0
        sound = newest_sound_checkpoint(self.path)
        if sound is None:
            self._set_aside("none of its checkpoints can be read")
            return 0
        if sound != paths[-1]:
            _logger.warning(
                "The checkpoint %s is damaged or incomplete; training resumes from %s",
                printable(paths[-1]),
                sound,
            )
        # TensorFlow restores the checkpoint that the file `checkpoint` names, and an estimator continues from there.
        if _named_latest(self.path) != sound:
            _name_latest(self.path, paths[: paths.index(sound) + 1])
        return checkpoints.global_step_of(self.path)

    def _set_aside(self, reason: str) -> None:
        aside = f"{self.path}.aside-{uuid.uuid4().hex[:8]}"
        _logger.warning(
            "Training can't resume from the checkpoint folder %s: %s. It was renamed to %s, and "
            "the training starts from scratch; remove it when you no longer need it.",
            self.path,
            reason,
            aside,
        )
        move_folder(self.path, aside)

    def _read_record(self, path: str) -> Mapping[str, Any] | None:
        try:
            with tf.io.gfile.GFile(os.path.join(path, RECORD_FILE), "r") as file:
                record = json.loads(file.read())
        except (tf.errors.NotFoundError, ValueError, RecursionError):
            return None
        return record if isinstance(record, dict) else None

    def _write_record(self) -> None:
        record = {"claim": self.claim, "training": self.identity.description}
        path = os.path.join(self.path, RECORD_FILE)
        # Another attempt may have ended since the check, and removed the folder.
        tf.io.gfile.makedirs(self.path)
        write_whole(path, json.dumps(record, indent=2) + "\n")


def check_before_writing(folder: CheckpointFolder | None) -> Callable[[], None]:
    """Returns the check to call before each write; it does nothing without a folder."""
    return folder.check_before_writing if folder else lambda: None


class LastSaved(PatientListener):
    """Knows the last checkpoint that this attempt saved.

    The file `checkpoint` may not name it: an attempt that was delayed while writing the file may continue after another
    one has taken over the folder, and then the file names an earlier checkpoint.
    """

    step: int | None = None  # The checkpoint's step; `None` before there is one.

    def after_save(self, session: v1.Session, global_step_value: int) -> None:
        """Records a saved checkpoint's step."""
        del session
        self.step = int(global_step_value)

    def path(self, folder: str) -> str | None:
        """Returns the path of this attempt's last checkpoint, or else of the folder's latest one."""
        of_step = [path for path in checkpoint_paths(folder) if path.endswith(f"-{self.step}")]
        return of_step[0] if of_step else checkpoints.latest_checkpoint(folder)


class StillOursListener(PatientListener):
    """Ends a training before it writes into a folder that another attempt has taken over."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder

    def before_save(self, session: v1.Session, global_step_value: int) -> None:
        """Ends the training before it saves a checkpoint that another attempt would read."""
        del session, global_step_value
        self._folder.check_before_writing()

    def before_commit(self, step: int) -> None:
        """Checks again, for a checkpoint written while the training continued."""
        del step
        self._folder.check_before_writing()


def checkpoint_root_of(
    setting: str | None, *, model_run: str, node: str, orchestrated_by_tfx: bool
) -> str | None:
    """Finds where a node's checkpoint folders are."""
    if setting:
        return os.path.join(setting, node)
    if orchestrated_by_tfx:
        return os.path.join(os.path.dirname(os.path.dirname(model_run.rstrip("/"))), "checkpoints")
    return None


def _named_latest(folder: str) -> str | None:
    try:
        return checkpoints.latest_checkpoint(folder)
    except tf.errors.DataLossError as error:
        _logger.warning("%s Training resumes from that one.", error.message)
        return None


def _is_temporary(path: str) -> bool:
    return any(
        is_temporary(part) or _TENSORFLOWS_TEMPORARY.search(part) for part in path.split("/")
    )


def _name_latest(folder: str, paths: Sequence[str]) -> None:
    """Makes the folder's file `checkpoint` name checkpoints, the last one as the latest."""
    names = [os.path.basename(path) for path in paths]
    without_notice(v1.train.update_checkpoint_state)(folder, names[-1], names)


def _after_what_it_names(name: str) -> int:
    """Sorts files so that a file that names another one follows it."""
    return 2 if os.path.basename(name) == "checkpoint" else int(name.endswith(".index"))


def _sweep_half_checkpoints(folder: str) -> list[str]:
    """Removes TensorFlow's partial checkpoints; returns their paths."""
    left = []
    for name in tf.io.gfile.listdir(folder):
        path = os.path.join(folder, name.rstrip("/"))
        is_folder = tf.io.gfile.isdir(path)
        # TensorFlow's `_temp` is a folder: TensorFlow does not write a file of this name.
        if not _TENSORFLOWS_TEMPORARY.search(path) or (path.endswith("_temp") and not is_folder):
            continue
        (tf.io.gfile.rmtree if is_folder else tf.io.gfile.remove)(path)
        left.append(path)
    return left
