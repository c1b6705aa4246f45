"""Saves the input's position with each checkpoint, so a later session resumes from there.

The position is in separate files: `<model_dir>/input_position/host<number>-<step>`, in the format of a checkpoint.
So every other program can read the checkpoints, whose size does not change. If several processes draw the input of the
same steps, each saves the position of its own part.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoint_errors, checkpoints
from tfx_tpu_trainer.estimator._engine.checkpointing.async_saves import PatientListener

v1 = tf.compat.v1
_logger = tf.get_logger()

DESCRIPTION = "input"
"""The key of a file's description of its input."""

READING = "reading"
"""The key of the way in which a file's job reads the input; see `TrainingPlan.reading`."""

IGNORED, REFUSED = 1, 2
"""The policies for state outside tf.data, in Python code and random ops: leave it out, or raise an error."""

# TensorFlow's collection of a graph's iterators.
_ITERATORS = "iterators"


class SavedInput(Protocol):
    """An input whose position can be written to a file."""

    # Describes the input, equally in every process.
    description: str
    # This process's index among those that draw a part of the input each.
    process: int
    # The number of those processes.
    processes: int

    def any_process(self, flag: bool) -> bool:
        """Returns whether a flag is set in any process; all processes must call it together."""

    def save(self, session: v1.Session, path: str, *, policy: int) -> None:
        """Writes the position."""

    def check(self, session: v1.Session, path: str) -> None:
        """Reads a position to its end without moving the input."""

    def restore(self, session: v1.Session, path: str) -> None:
        """Continues from a position."""

    def start(self, session: v1.Session) -> None:
        """Starts at the beginning."""


class SessionIterators:
    """A graph's iterators in a session; a `SavedInput`."""

    process, processes = 0, 1

    def __init__(self, iterators: Sequence[tf.Tensor], reading: str) -> None:
        self.description = json.dumps([_description(iterator) for iterator in iterators])
        with tf.name_scope("input_position"), v1.device("/device:CPU:0"):
            self._prefix = v1.placeholder(tf.string, (), name="prefix")
            self._save = {
                policy: write(self._prefix, iterators, self.description, reading, policy=policy)
                for policy in (REFUSED, IGNORED)
            }
            states = read(self._prefix, len(iterators))
            self._read = states[0].op
            self._restore = restore(iterators, states)
        self._start = [
            op
            for op in v1.get_default_graph().get_operations()
            if op.type == "MakeIterator" and any(op.inputs[1] is each for each in iterators)
        ]

    def any_process(self, flag: bool) -> bool:
        """Returns the flag, since there is no other process."""
        return flag

    def save(self, session: v1.Session, path: str, *, policy: int) -> None:
        """Writes the position; see `SavedInput`."""
        session.run(self._save[policy], {self._prefix: path})

    def check(self, session: v1.Session, path: str) -> None:
        """Reads a position; see `SavedInput`."""
        session.run(self._read, {self._prefix: path})

    def restore(self, session: v1.Session, path: str) -> None:
        """Continues from a position; see `SavedInput`."""
        session.run(self._restore, {self._prefix: path})

    def start(self, session: v1.Session) -> None:
        """Starts at the beginning; see `SavedInput`."""
        session.run(self._start)


def iterators_of_default_graph(reading: str = "") -> SessionIterators | None:
    """Returns the default graph's iterators; `None` if it has none."""
    iterators = v1.get_collection(_ITERATORS)
    return SessionIterators(iterators, reading) if iterators else None


def write(
    prefix: Any, iterators: Sequence[tf.Tensor], description: str, reading: str = "", *, policy: int
) -> Any:
    """Writes iterators' states and descriptions as a checkpoint; returns the op, if in a graph."""
    states = [
        tf.raw_ops.SerializeIterator(resource_handle=iterator, external_state_policy=policy)
        for iterator in iterators
    ]
    return tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=[DESCRIPTION, READING, *_names(len(iterators))],
        shape_and_slices=[""] * (2 + len(iterators)),
        tensors=[tf.constant(description), tf.constant(reading), *states],
    )


def read(prefix: Any, count: int) -> list[tf.Tensor]:
    """Reads iterators' states."""
    return tf.raw_ops.RestoreV2(
        prefix=prefix,
        tensor_names=_names(count),
        shape_and_slices=[""] * count,
        dtypes=[tf.variant] * count,
    )


def restore(iterators: Sequence[tf.Tensor], states: Sequence[tf.Tensor]) -> list[Any]:
    """Sets iterators to the states that were read; returns the ops, if in a graph."""
    return [
        tf.raw_ops.DeserializeIterator(resource_handle=iterator, serialized=state)
        for iterator, state in zip(iterators, states, strict=True)
    ]


def _names(count: int) -> list[str]:
    return [f"iterator_{number}" for number in range(count)]


def _description(iterator: tf.Tensor) -> list[Any]:
    """Describes an input by the parts that are equal in every process."""
    # Names differ between processes, and files may be moved.
    if iterator.op.type == "OneShotIterator":
        # Its dataset is made in a function; only the kinds of its nodes are read.
        name = iterator.op.get_attr("dataset_factory").name
        library = v1.get_default_graph().as_graph_def().library.function
        nodes: Iterable[v1.NodeDef] = next(f.node_def for f in library if f.signature.name == name)
        return sorted(node.op for node in nodes)
    # Dataset.range(100).batch(32) is [["BatchDatasetV2", 32], ["RangeDataset", 0, 100, 1]].
    made = [op for op in iterator.consumers() if op.type == "MakeIterator"]
    pending = [op.inputs[0].op for op in made]
    described: list[Any] = []
    while pending:
        op = pending.pop()
        numbers = [int(tf.get_static_value(tensor)) for tensor in op.inputs if _is_number(tensor)]
        if op.type == "TensorSliceDataset":  # Batches cut out of arrays are slices.
            numbers += [size for tensor in op.inputs for size in tensor.shape[1:].as_list()]
        described.append([op.type, *numbers])
        pending += [tensor.op for tensor in op.inputs if tensor.dtype == tf.variant]
    return described


def _is_number(tensor: tf.Tensor) -> bool:
    value = (
        tf.get_static_value(tensor) if tensor.dtype.is_integer and not tensor.shape.rank else None
    )
    return value is not None


POSITIONS_FOLDER = "input_position"
"""Name of the folder below that of the checkpoints."""

# A complete position's files; those still being written end differently.
_WRITTEN = re.compile(r"host\d+-(\d+)\.(?:damaged\.)?(?:index|data-\d+-of-\d+)$")


# Keeps each position with its checkpoint. A checkpoint of step 100 must go with the rows that step 101 would have read,
# though a kill may come between any two writes, and several processes may each have a part of the input. The order
# ensures it: save position 100, write checkpoint 100, remove positions of removed checkpoints. A kill after the first
# leaves a position without a checkpoint, which is never read. The position is as old as the variables, since rows are
# drawn only for steps that are made. With several processes the chief's `save` sets a flag that all query in the same
# session call (`any_process`), each writes its own position, and a second exchange holds the chief back until all are
# done.
class InputPosition(v1.train.SessionRunHook):
    """Saves the input's position with each checkpoint, and resumes from there."""

    # The position is written before its checkpoint, so whoever finds the checkpoint finds it, too. It is that of the
    # saved step, since rows are drawn only for steps that are made. A position is removed with its checkpoint.
    #
    # An input that tf.data can't save (a Python generator, a queue) is logged once and starts from its beginning, as
    # without positions. The same happens if a checkpoint has no position, a damaged one (which is set aside), or one of
    # another input.
    #
    # Several processes save together: the chief's checkpoint waits for the positions of all of them.
    #
    # Must come after the hooks that save and before one that lets processes stop together.

    def __init__(
        self, model_dir: str, saved_input: SavedInput | None = None, *, reading: str = ""
    ) -> None:
        self._model_dir = model_dir
        self._input = saved_input
        self._reading = reading
        self._policy = REFUSED
        self._can_save = False
        # The session that continues from its position.
        self._stands_in: v1.Session | None = None
        self._others_told = False
        self.listener: v1.train.CheckpointSaverListener = _AtCheckpoints(self)

    def begin(self) -> None:
        self._global_step = v1.train.get_global_step()
        self._input = self._input or iterators_of_default_graph(self._reading)
        self._can_save = self._input is not None
        if not self._can_save:
            log_not_saved("no tf.data iterator of this session reads it")

    def before_run(self, run_context: v1.train.SessionRunContext) -> None:
        """Continues from the position of the session's checkpoint before its first step."""
        # Other hooks may start the iterators when the session is made.
        session = run_context.session
        if self._can_save and session is not self._stands_in:
            self._take_up(session, int(session.run(self._global_step)))
        self._stands_in = session

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Saves together with the chief in another process."""
        del run_values
        self._save_with_chief(run_context.session)

    def end(self, session: v1.Session) -> None:
        """Saves together with the chief in another process."""
        self._save_with_chief(session)

    def save(self, session: v1.Session, step: int) -> None:
        """Saves the position of a checkpoint about to be written, in all processes."""
        # Before its first step, a session (perhaps reopened after a loss) saves what it has restored, whose position
        # exists.
        if self._input is not None and session is self._stands_in:
            self._others_told = True
            self._save_if_any(session, step, asked=True)

    def _save_with_chief(self, session: v1.Session) -> None:
        """Queries the chief's flag once per session call and once at the end, like the chief when it saves."""
        if self._input is not None and self._input.processes > 1 and not self._others_told:
            self._save_if_any(session, int(session.run(self._global_step)), asked=False)
        self._others_told = False

    def _save_if_any(self, session: v1.Session, step: int, *, asked: bool) -> None:
        assert self._input is not None
        if not self._input.any_process(asked):
            return
        if self._can_save:
            tf.io.gfile.makedirs(os.path.join(self._model_dir, POSITIONS_FOLDER))
            self._write(session, self._path(step))
        # All positions exist before the checkpoint does.
        self._input.any_process(False)

    def remove_without_checkpoint(self, *, kept: int) -> None:
        """Removes positions whose checkpoints are gone."""
        if self._input is None:
            return
        found = checkpoint_errors.checkpoint_paths(self._model_dir)
        steps = {kept, *(int(path.rpartition("-")[2]) for path in found)}
        for file in tf.io.gfile.glob(os.path.join(self._model_dir, POSITIONS_FOLDER, "host*")):
            step = _WRITTEN.match(os.path.basename(file))
            if step and int(step[1]) not in steps:
                # Another process of this training removes it, too.
                with contextlib.suppress(tf.errors.NotFoundError):
                    tf.io.gfile.remove(file)

    def _path(self, step: int) -> str:
        process = 0 if self._input is None else self._input.process
        return os.path.join(self._model_dir, POSITIONS_FOLDER, f"host{process}-{step}")

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
            # Reads to the end before moving the iterator, so a truncated file leaves the input at its beginning.
            self._input.check(session, path)
        except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as error:
            # The errors of a reader differ from those of a session.
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
    """Notifies an `InputPosition` of checkpoints; a hook can't be a listener, since their `end` differs."""

    def __init__(self, position: InputPosition) -> None:
        self._position = position

    def before_save(self, session: v1.Session, global_step_value: int) -> None:
        self._position.save(session, int(global_step_value))

    def after_save(self, session: v1.Session, global_step_value: int) -> None:
        del session
        self._position.remove_without_checkpoint(kept=int(global_step_value))


def latest_description(model_dir: str) -> str | None:
    """Returns the description of the input in the latest position of a training.

    Args:
        model_dir: Folder of the checkpoints.

    Returns:
        The description, as `SavedInput` has it; `None` if no position can be read.
    """
    found = tf.io.gfile.glob(os.path.join(model_dir, POSITIONS_FOLDER, "host*.index"))
    paths = {int(step[1]): path for path in found if (step := re.search(r"-(\d+)\.index$", path))}
    for number in sorted(paths, reverse=True):
        try:
            reader = tf.train.load_checkpoint(paths[number].removesuffix(".index"))
            return str(reader.get_tensor(DESCRIPTION).decode())
        except (tf.errors.OpError, IndexError, RuntimeError, ValueError):
            # It is set aside, with a log line, when the training continues.
            continue
    return None


def latest_reading(model_dir: str) -> str | None:
    """Returns how the job of a folder's latest checkpoint reads its input; `None` if unknown."""
    checkpoint = checkpoints.latest_checkpoint(model_dir)
    if checkpoint is None:
        return None
    step = checkpoint.rpartition("-")[2]
    try:
        reader = tf.train.load_checkpoint(
            os.path.join(model_dir, POSITIONS_FOLDER, f"host0-{step}")
        )
        return reader.get_tensor(READING).decode() if reader.has_tensor(READING) else None
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError):
        # A damaged position is set aside, with a log line, when the training continues.
        return None


def remove_positions(model_dir: str) -> None:
    """Removes the positions of a training that has ended.

    Args:
        model_dir: Folder of the checkpoints.
    """
    folder = os.path.join(model_dir, POSITIONS_FOLDER)
    if tf.io.gfile.isdir(folder):
        tf.io.gfile.rmtree(folder)


def log_not_saved(cause: str) -> None:
    """Logs that a training saves no positions.

    Args:
        cause: The reason.
    """
    _logger.info(
        "The position of the input is not saved: %s. A restarted training reads it from the "
        "beginning.",
        cause,
    )


def _cause(error: Exception) -> str:
    """Returns the most informative line of an error; TensorFlow puts the op's place before it."""
    message = getattr(error, "message", None) or str(error)
    lines = [line.strip() for line in message.split("\n") if line.strip()]
    telling = [line for line in lines if not line.startswith(_PLACES)]
    return (telling or lines or [type(error).__name__])[0].rstrip(".")


_PLACES = ("Graph execution error", "Detected at node", "File ", "Node: ", "[[", "Original stack")
