"""Where the input stands, saved with each checkpoint, so that a later session resumes from there.

The position lies in files of its own: `<model_dir>/input_position/host<number>-<step>`, in the format of
a checkpoint. So checkpoints stay what every other program reads, and their size is what it was. Where
several processes draw the input of the same steps, each saves its own part's.
"""

from __future__ import annotations

import contextlib
import os
import re

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoint_damage
from tfx_tpu_trainer.estimator._engine.checkpointing.writes_aside import PatientListener
from tfx_tpu_trainer.estimator._engine.feeding.saved_iterators import (
    DESCRIPTION,
    IGNORED,
    REFUSED,
    SavedInput,
    iterators_of_default_graph,
)

v1 = tf.compat.v1
_logger = tf.get_logger()

POSITIONS_FOLDER = "input_position"
"""Name of the folder below that of the checkpoints."""

# The files of a position that has been written; those that some process is writing just now have other endings.
_WRITTEN = re.compile(r"host\d+-(\d+)\.(?:damaged\.)?(?:index|data-\d+-of-\d+)$")


class InputPosition(v1.train.SessionRunHook):
    """Saves where the input stands with each checkpoint, and resumes from there.

    The position is written before its checkpoint: whoever finds the checkpoint finds it, too. It is
    that of the step saved, as rows are drawn only for steps that are made. Positions go when their
    checkpoints do.

    What tf.data can't save (a Python generator, a queue) is told once, and the input then starts from
    its beginning, as it does without positions. So it does where a checkpoint has no position, or one
    that is damaged (which is set aside) or of another input.

    Several processes save together: the chief's checkpoint waits for the positions of all of them.

    Must come after the hooks that save and before one that lets processes stop together.
    """

    def __init__(self, model_dir: str, saved_input: SavedInput | None = None) -> None:
        self._model_dir = model_dir
        self._input = saved_input
        self._policy = REFUSED
        self._can_save = False
        # The session that goes on from its position.
        self._stands_in: v1.Session | None = None
        self._others_told = False
        self.listener: v1.train.CheckpointSaverListener = _AtCheckpoints(self)

    def begin(self) -> None:
        """Finds the iterators of the default graph."""
        self._global_step = v1.train.get_global_step()
        self._input = self._input or iterators_of_default_graph()
        self._can_save = self._input is not None
        if not self._can_save:
            log_not_saved("no tf.data iterator of this session reads it")

    def before_run(self, run_context: v1.train.SessionRunContext) -> None:
        """Goes on from the position of the session's checkpoint, before its first step.

        Other hooks may start the iterators when the session is made.
        """
        session = run_context.session
        if self._can_save and session is not self._stands_in:
            self._take_up(session, int(session.run(self._global_step)))
        self._stands_in = session

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Saves with the chief, where that is another process."""
        del run_values
        self._save_with_chief(run_context.session)

    def end(self, session: v1.Session) -> None:
        """Saves with the chief, where that is another process."""
        self._save_with_chief(session)

    def save(self, session: v1.Session, step: int) -> None:
        """Saves the position of a checkpoint that is about to be written, in all processes.

        Before its first step a session, which may be made again after one that was lost, saves what it has restored:
        its position is there.
        """
        if self._input is not None and session is self._stands_in:
            self._others_told = True
            self._save_if_any(session, step, asked=True)

    def _save_with_chief(self, session: v1.Session) -> None:
        """Asks once for each session call and once at the end, as the chief does when it saves."""
        if self._input is not None and self._input.hosts > 1 and not self._others_told:
            self._save_if_any(session, int(session.run(self._global_step)), asked=False)
        self._others_told = False

    def _save_if_any(self, session: v1.Session, step: int, *, asked: bool) -> None:
        assert self._input is not None
        if not self._input.any_host(asked):
            return
        if self._can_save:
            tf.io.gfile.makedirs(os.path.join(self._model_dir, POSITIONS_FOLDER))
            self._write(session, self._path(step))
        # All positions are there before the checkpoint is.
        self._input.any_host(False)

    def remove_without_checkpoint(self, *, kept: int) -> None:
        """Removes the positions whose checkpoints are gone."""
        if self._input is None:
            return
        found = checkpoint_damage.checkpoint_paths(self._model_dir)
        steps = {kept, *(int(path.rpartition("-")[2]) for path in found)}
        for file in tf.io.gfile.glob(os.path.join(self._model_dir, POSITIONS_FOLDER, "host*")):
            step = _WRITTEN.match(os.path.basename(file))
            if step and int(step[1]) not in steps:
                # Another process that trains in this folder removes it, too.
                with contextlib.suppress(tf.errors.NotFoundError):
                    tf.io.gfile.remove(file)

    def _path(self, step: int) -> str:
        host = 0 if self._input is None else self._input.host
        return os.path.join(self._model_dir, POSITIONS_FOLDER, f"host{host}-{step}")

    def _write(self, session: v1.Session, path: str) -> None:
        assert self._input is not None
        try:
            try:
                self._input.save(session, path, policy=self._policy)
            except tf.errors.FailedPreconditionError as error:
                self._input.save(session, path, policy=IGNORED)
                self._policy = IGNORED
                _logger.info(
                    "After a restart the input continues with the next rows, but it calls Python "
                    "code or random ops whose state is not saved and starts again from the "
                    "beginning (%s). Ops of tf.random.stateless_*, with a seed derived from the "
                    "row, have no state.",
                    _cause(error),
                )
        except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError) as error:
            self._can_save = False
            log_not_saved(_cause(error))

    def _take_up(self, session: v1.Session, step: int) -> None:
        assert self._input is not None
        path = self._path(step)
        if not tf.io.gfile.exists(f"{path}.index"):
            if step:
                _logger.info(
                    "The checkpoint of step %d has no input position (%s); the input starts from "
                    "its beginning.",
                    step,
                    path,
                )
            return
        try:
            description = tf.train.load_checkpoint(path).get_tensor(DESCRIPTION).decode()
            self._input.check(session, path)
        except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as error:
            # The reader has other errors than a session has.
            self._set_aside(path, _cause(error))
            return
        if description != self._input.description:
            _logger.warning(
                "The input position %s belongs to another input: its datasets, batch sizes, "
                "shapes or number of hosts differ from this one's. The input starts from its "
                "beginning.",
                path,
            )
            return
        try:
            self._input.restore(session, path)
        except tf.errors.OpError as error:
            self._input.start(session)
            self._set_aside(path, _cause(error))
            return
        _logger.info("The input resumes at its position of step %d (%s).", step, path)

    def _set_aside(self, path: str, cause: str) -> None:
        _logger.warning(
            "The input position %s can't be read (%s). It is set aside as %s.damaged.*, and the "
            "input starts from its beginning.",
            path,
            cause,
            path,
        )
        for file in tf.io.gfile.glob(f"{path}.*"):
            aside = file.replace(f"{path}.", f"{path}.damaged.", 1)
            with contextlib.suppress(tf.errors.NotFoundError):
                tf.io.gfile.rename(file, aside, overwrite=True)


class _AtCheckpoints(PatientListener):
    """Tells an `InputPosition` of checkpoints; a hook can't be a listener: their `end` differs."""

    def __init__(self, position: InputPosition) -> None:
        self._position = position

    def before_save(self, session: v1.Session, global_step_value: int) -> None:
        self._position.save(session, int(global_step_value))

    def after_save(self, session: v1.Session, global_step_value: int) -> None:
        del session
        self._position.remove_without_checkpoint(kept=int(global_step_value))


def latest_description(model_dir: str) -> str | None:
    """Returns what the latest position of a training says that its input is.

    Args:
        model_dir: Folder of the checkpoints.

    Returns:
        The description, as `SavedInput` has it; `None` where there is no position that can be read.
    """
    found = tf.io.gfile.glob(os.path.join(model_dir, POSITIONS_FOLDER, "host*.index"))
    paths = {int(step[1]): path for path in found if (step := re.search(r"-(\d+)\.index$", path))}
    for number in sorted(paths, reverse=True):
        try:
            reader = tf.train.load_checkpoint(paths[number].removesuffix(".index"))
            return str(reader.get_tensor(DESCRIPTION).decode())
        except (tf.errors.OpError, IndexError, RuntimeError, ValueError):
            # It is set aside, with a line, when the training goes on.
            continue
    return None


def remove_positions(model_dir: str) -> None:
    """Removes the positions of a training that has come to its end.

    Args:
        model_dir: Folder of the checkpoints.
    """
    folder = os.path.join(model_dir, POSITIONS_FOLDER)
    if tf.io.gfile.isdir(folder):
        tf.io.gfile.rmtree(folder)


def log_not_saved(cause: str) -> None:
    """Says that a training saves no positions.

    Args:
        cause: Why.
    """
    _logger.info(
        "The position of the input is not saved: %s. A restarted training reads it from the "
        "beginning.",
        cause,
    )


def _cause(error: Exception) -> str:
    """Returns the line of an error that says most; TensorFlow puts the place of the op before it."""
    message = getattr(error, "message", None) or str(error)
    lines = [line.strip() for line in message.split("\n") if line.strip()]
    telling = [line for line in lines if not line.startswith(_PLACES)]
    return (telling or lines or [type(error).__name__])[0].rstrip(".")


_PLACES = ("Graph execution error", "Detected at node", "File ", "Node: ", "[[", "Original stack")
