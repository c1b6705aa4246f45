"""Runs one training from start to end: the steps that module and legacy trainings share.

A training is prepared, which checks everything that can be checked beforehand, and then run: it trains, evaluates,
publishes its checkpoints, exports and fills the artifacts. Subclasses define the steps of `run`.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import tensorflow as tf

from tfx_tpu_trainer._support.progress import Progress, followed, phase
from tfx_tpu_trainer._support.whole_files import commit_folder, temporary_beside
from tfx_tpu_trainer.components.evaluation import EvalMetrics
from tfx_tpu_trainer.components.evaluation._learning_curve import (
    LearningCurve,
    write_learning_curve,
)
from tfx_tpu_trainer.components.trainer import preconditions
from tfx_tpu_trainer.components.trainer.artifacts import (
    TRAINING,
    all_or_nothing,
    check_finite,
    sweep_outputs,
    tell_result,
    where_it_ran,
    write_metrics,
    write_run_page,
)
from tfx_tpu_trainer.components.trainer.hosts import ChiefWatch, Host
from tfx_tpu_trainer.components.trainer.resume import CheckpointFolder, check_before_writing
from tfx_tpu_trainer.components.trainer.rows import Rows, failures_explained
from tfx_tpu_trainer.components.trainer.serving_step import ServingStep, checking_process
from tfx_tpu_trainer.components.trainer.tracking import track
from tfx_tpu_trainer.components.trainer.train_job import TrainJob
from tfx_tpu_trainer.estimator.extending import POSITIONS_FOLDER, RowSample
from tfx_tpu_trainer.serving import BINARY_FILE, FreshProcess

Trained = TypeVar("Trained")
"""The trained model of one kind of training."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """A training's findings about its model."""

    metrics: EvalMetrics  # The exported checkpoint's metrics.
    curve: LearningCurve | None = None  # The evaluations during training, or `None`.
    rows: RowSample | None = None  # Rows of the evaluation, or `None`.

    def with_checkpoints_moved(self, before: str, after: str) -> Results:
        """Returns the same results with the checkpoints' folder renamed."""
        return dataclasses.replace(
            self,
            metrics=self.metrics.with_checkpoint_moved(before, after),
            curve=self.curve and self.curve.with_checkpoints_moved(before, after),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported:
    """An exported SavedModel before it is moved to its final place."""

    path: str
    final: str  # Its final place.
    # Prepares it for a server; `None` if no server reads it.
    serving_step: ServingStep | None = None


def writable_working_folder(
    job: TrainJob, host: Host, checkpoint_folder: CheckpointFolder | None
) -> str:
    """Checks, on the chief, that everything can be written that a training writes."""
    if host.is_chief:
        preconditions.check_writable(job.model.uri, job.model_run.uri)
        if checkpoint_folder:
            preconditions.check_writable(
                checkpoint_folder.path, called="checkpoint folder (setting checkpoint_root)"
            )
    return _working_folder(job, checkpoint_folder)


def _working_folder(job: TrainJob, checkpoint_folder: CheckpointFolder | None) -> str:
    return checkpoint_folder.path if checkpoint_folder else job.model_run.uri


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training(abc.ABC, Generic[Trained]):
    """A job with all defaults resolved, ready to run."""

    job: TrainJob
    host: Host  # This process's part in the training.
    # Replaces the ModelRun artifact until the training has ended, so another attempt finds its checkpoints; `None`
    # trains in the ModelRun artifact.
    checkpoint_folder: CheckpointFolder | None = None
    # The rows read without the module's input_fn; empty if the module reads its rows itself.
    rows: tuple[Rows, ...] = ()

    def run(self, *, training_ended: Callable[[], None] = lambda: None) -> EvalMetrics:
        """Runs the training as the only host, or as the chief of several.

        Trains, evaluates, exports the last or the best checkpoint and fills the artifacts. After a failure the
        folders of the model and its evaluation are empty; checkpoints and events remain.
        """
        with followed("auto", may_draw=self.host.is_alone) as progress:
            try:
                return self._run(training_ended, progress)
            # Not if a signal ends the process, as a SystemExit: another attempt resumes from here, and writes the page
            # at the end.
            except Exception as error:
                folder = self.folder_to_resume
                if folder is None or folder.surely_is_ours():
                    self._write_page(self.working_folder, progress, stopped=error)
                raise

    def _run(self, training_ended: Callable[[], None], progress: Progress) -> EvalMetrics:
        # The order below matters. The process may be killed between any two lines, another attempt
        # may begin at any of them, and a reader of an artifact must find all of it or nothing:
        #   1. Train and evaluate in the working folder, which another attempt finds again.
        #   2. Reject a diverged model before any of it becomes visible.
        #   3. Copy checkpoints and events; export next to the model's place, check, and rename.
        #   4. Write the metrics and properties that the gate and MLMD read, then the page.
        #   5. Remove the working folder: nothing is left to resume.
        # `check_still_ours` precedes each write. Object stores have no locks: a write that began
        # before a newer attempt took the folder may finish; it writes the newer one's values.
        job, folder = self.job, self.folder_to_resume
        # Both attempts may have the same artifacts, for example if Kubernetes restarts a pod.
        check_still_ours = check_before_writing(folder)
        sweep_outputs(job)
        with (
            folder.giving_way() if folder else contextlib.nullcontext(),
            all_or_nothing(job, are_ours=folder.surely_is_ours if folder else lambda: True),
            contextlib.ExitStack() as stack,
        ):
            with failures_explained(self.rows):
                trained = self.train()
                training_ended()
                process = stack.enter_context(checking_process(job.settings))
                results = self.evaluate(trained)
            check_finite(results.metrics)
            check_still_ours()
            with phase("publish"):
                self._publish()
            results = results.with_checkpoints_moved(self.working_folder, job.model_run.uri)
            if results.curve is not None:
                check_still_ours()
                write_learning_curve(job.model_run.uri, results.curve)
                check_still_ours()
                write_learning_curve(job.model.uri, results.curve)
            self._place(trained, results.metrics.checkpoint, process, check_still_ours)
            check_still_ours()
            write_metrics(job, results.metrics, ran_on=where_it_ran(progress))
            identity = folder.identity.digest if folder else None
            if identity:
                job.model.set_string_custom_property(TRAINING, identity)
            check_still_ours()
            page = self._write_page(
                job.model_run.uri, progress, identity=identity, rows=results.rows
            )
            check_still_ours()
        if self.checkpoint_folder:
            self.checkpoint_folder.remove()
        ran_on, step = where_it_ran(progress), results.metrics.global_step
        tell_result(
            job.node,
            f"trained{f' on {ran_on}' if ran_on else ''}; the model of step {step:,} is "
            f"{job.serving_model_dir}",
            metrics=results.metrics,
            page=page,
        )
        return results.metrics

    def _write_page(self, folder: str, progress: Progress, **known: Any) -> str | None:
        """Writes the page and, if the settings request it, the MLflow run; returns the page's path."""
        with phase("page"):
            written = write_run_page(
                self.job, folder, progress, batch_size=self.batch_size, **known
            )
        if written is None:
            return None
        run, page = written
        track(self.job, run, page, params=self.params)
        return page

    @property
    def working_folder(self) -> str:
        """The folder of checkpoints and events until the training has ended."""
        return _working_folder(self.job, self.checkpoint_folder)

    @property
    def folder_to_resume(self) -> CheckpointFolder | None:
        """Where an earlier attempt may have left checkpoints; `None` if no one would look there."""
        return self.checkpoint_folder

    def checked_before_training(self) -> Training[Trained]:
        """Runs the slow checks that the settings request. Defaults to none."""
        return self

    @abc.abstractmethod
    def help_chief(self, watch: ChiefWatch) -> None:
        """Does the part of a host other than the chief, until the chief has written the artifacts."""

    @abc.abstractmethod
    def train(self) -> Trained:
        """Trains, resuming from an earlier attempt's checkpoint if there is one."""

    @abc.abstractmethod
    def evaluate(self, trained: Trained) -> Results:
        """Returns the exported model's metrics, evaluating if necessary."""

    @abc.abstractmethod
    def export(
        self, trained: Trained, checkpoint_path: str | None, folder: str
    ) -> Iterator[Exported]:
        """Exports SavedModels one by one; each is in its place before the next."""

    @property
    @abc.abstractmethod
    def params(self) -> Mapping[str, Any]:
        """The model's params, from all sources."""

    @property
    def batch_size(self) -> int | None:
        """Rows per training step; `None` if only the user's code knows."""
        return None

    @property
    def unpublished_files(self) -> tuple[str, ...]:
        """Names of files in the working folder that only another attempt would read."""
        return ()

    def _publish(self) -> None:
        """Copies checkpoints and events to the ModelRun artifact, unless they are there already."""
        if self.checkpoint_folder:
            # A delayed attempt may still be writing and removing its input's positions.
            self.checkpoint_folder.publish(
                self.job.model_run.uri, leaving_out=(*self.unpublished_files, POSITIONS_FOLDER)
            )
            return
        for name in self.unpublished_files:
            path = os.path.join(self.job.model_run.uri, name)
            if tf.io.gfile.exists(path):
                tf.io.gfile.remove(path)

    def _place(
        self,
        trained: Trained,
        checkpoint_path: str | None,
        process: FreshProcess | None,
        check_still_ours: Callable[[], None],
    ) -> None:
        # Next to its final place, so a server or Pusher never sees half a model.
        staging = temporary_beside(os.path.join(self.job.model.uri, "export"))
        try:
            for exported in self.export(trained, checkpoint_path, staging):
                check_still_ours()
                if exported.serving_step:
                    exported.serving_step.run(exported.path, checkpoint_path, process)
                    # A process checks one model, and then ends.
                    process = None
                    check_still_ours()
                commit_folder(exported.path, exported.final, last=[BINARY_FILE])
        finally:
            if tf.io.gfile.isdir(staging):
                tf.io.gfile.rmtree(staging)
