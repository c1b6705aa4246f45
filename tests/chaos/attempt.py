"""Runs what an orchestrator restarts, the trainer's or the pusher's execution, in its own process.

A process writes the phase that it begins into a pipe. The package has no part in that: its steps are wrapped here, in
the process that is to be killed.
"""

import ctypes
import dataclasses
import functools
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from tfx import v1 as tfx
from tfx.components.pusher import executor as pusher

from tests.chaos import counted_model, data
from tests.chaos.writes import Writes, report, report_to
from tfx_tpu_trainer.components import TpuTrainerExecutor
from tfx_tpu_trainer.components.trainer.resume import CheckpointFolder
from tfx_tpu_trainer.components.trainer.serving_step import ServingStep
from tfx_tpu_trainer.estimator.extending import OpenEvaluation
from tfx_tpu_trainer.estimator.tpu import TPUEstimator

PHASES = ("prepare", "training", "evaluation", "publishing", "export", "check", "placing", "push")
"""What a process may be doing when it is killed, in the order of an execution."""

NODE = "TpuTrainer"

ARCHIVE = "pushed_model"
"""The folder of the pusher's artifact."""

_PR_SET_PDEATHSIG = 1

_kinds = tfx.types.standard_artifacts
_PARAMS = {
    "taxi": {"embedding_size": 8, "hidden_units": [64, 32], "learning_rate": 0.001},
    "digits": {"filters": 16, "hidden_units": 64, "learning_rate": 0.001},
}
_PLACES: dict[str, dict[str, Any]] = {
    "host": {},
    "cores": {"use_tpu": 1, "master": "emulated", "num_shards": 4},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A training, wherever its files go.

    Attributes:
        model: A name of `data.SOURCES`.
        place: "host" or "cores".
        inputs: The folder that `data.prepare` has filled.
        rows: Rows to train on.
        steps: Steps of the training.
        batch: Rows of a step, a power of two.
        check: Whether the export is checked, in its own processes.
        evaluations: How many times training stops to evaluate, the last time at its end.
    """

    model: str
    place: str
    inputs: Path
    rows: int
    steps: int
    batch: int = 32
    check: bool = True
    evaluations: int = 2

    @property
    def loop(self) -> int:
        """Steps of a loop."""
        return 5

    @property
    def steps_between_checkpoints(self) -> int:
        """Steps that a SIGKILL may cost."""
        return 20

    @property
    def steps_between_evaluations(self) -> int:
        """Steps from one evaluation in training to the next."""
        return self.steps // self.evaluations

    def exec_properties(self, checkpoints: Path) -> dict[str, Any]:
        """Returns the trainer's, with the root of its checkpoint folders."""
        params = {
            **_PARAMS[self.model],
            "pipeline": self.model,
            "rows": self.rows,
            "rows_per_step": self.batch,
            "decay_steps": self.steps,
        }
        return {
            "node": NODE,
            "module": counted_model.__name__,
            "label_key": data.SOURCES[self.model].label,
            "params": json.dumps(params),
            "train_args": json.dumps({"num_steps": self.steps}),
            "eval_args": "{}",
            "train_batch_size": self.batch,
            "eval_batch_size": 32,
            "iterations_per_loop": self.loop,
            "save_checkpoints_steps": self.steps_between_checkpoints,
            "eval_every_steps": self.steps_between_evaluations,
            "best_metric": "accuracy",
            "save_summary_steps": 20,
            "tf_random_seed": 7,
            "checkpoint_root": str(checkpoints),
            "export_to_tpu": int(self.check),
            "serving_check": "error" if self.check else "off",
            **_PLACES[self.place],
        }


def train(plan: Plan, outputs: Path, checkpoints: Path) -> None:
    """Executes the trainer.

    Args:
        plan: What is trained.
        outputs: Where its artifacts go.
        checkpoints: Root of the checkpoint folders.
    """
    kinds = {
        "model": _kinds.Model,
        "model_run": _kinds.ModelRun,
        "evaluation": _kinds.ModelEvaluation,
    }
    made = {key: [_output(kind, outputs / key)] for key, kind in kinds.items()}
    TpuTrainerExecutor().Do(data.inputs(plan.inputs), made, plan.exec_properties(checkpoints))


def push(outputs: Path, destination: Path, *, pause_at: int | None = None) -> None:
    """Executes TFX's Pusher on the trainer's model, counting writes.

    Args:
        outputs: The trainer's folder; the pusher's artifact goes next to the trainer's.
        destination: Where a server looks for versions, next to the outputs.
        pause_at: Number of the write, from 1, before which the process pauses. A push lasts
            milliseconds, too short for a moment to be met. Defaults to `None`: it does not.
    """
    Writes(destination.parent, pause_at).watch()
    report("phase", "push")
    filesystem = {"filesystem": {"base_directory": str(destination)}}
    pusher.Executor().Do(
        {"model": [data.artifact(_kinds.Model, outputs / "model")]},
        {"pushed_model": [_output(_kinds.PushedModel, outputs / ARCHIVE)]},
        {"push_destination": json.dumps(filesystem)},
    )


def in_process(work: Callable[[], None], log: Path, pipe: int | None = None) -> int:
    """Does some work in a separate process, which has imported everything but run nothing.

    A forked process need not import TensorFlow and TFX again, which takes longer than the work.

    Args:
        work: What the process does.
        log: Where its output goes.
        pipe: The end to which it reports. Defaults to `None`: it does not.

    Returns:
        The process's id; it leads its own group.
    """
    sys.stdout.flush()
    if process := os.fork():
        return process
    code = 1
    try:
        os.setsid()
        # With the process that kills it ends the one to be killed, paused or not.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        # What starts this may ignore them, as a shell does for jobs in the background.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if pipe is not None:
            report_to(pipe)
        code = _exit_code(work)
    finally:
        os._exit(code)


def _exit_code(work: Callable[[], None]) -> int:
    """Runs a program's work; returns its exit code."""
    # Deterministic ops can't draw without a seed.
    tf.random.set_seed(7)
    tf.config.experimental.enable_op_determinism()
    _report_phases()
    report("phase", "prepare")
    try:
        work()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _report_phases() -> None:
    _reported(TPUEstimator, "train", before="training")
    # The training's session stays open, and its steps go on after an evaluation.
    _reported(OpenEvaluation, "evaluate", before="evaluation", after="training")
    _reported(CheckpointFolder, "publish", before="publishing")
    _reported(TPUEstimator, "export_graphs", before="export")
    _reported(ServingStep, "run", before="check", after="placing")


def _reported(owner: type, name: str, *, before: str, after: str | None = None) -> None:
    method = getattr(owner, name)

    @functools.wraps(method)
    def reporting(*args: Any, **kwargs: Any) -> Any:
        report("phase", before)
        result = method(*args, **kwargs)
        if after:
            report("phase", after)
        return result

    setattr(owner, name, reporting)


def _output(kind: Any, folder: Path) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    return data.artifact(kind, folder)
