"""Trains a legacy module, from trainer_fn to the artifacts."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from tfx_tpu_trainer.compat.tfma_export import evaluation_receiver, export_eval_savedmodel
from tfx_tpu_trainer.components.evaluation._learning_curve import LearningCurve
from tfx_tpu_trainer.components.trainer import preconditions
from tfx_tpu_trainer.components.trainer.artifacts import copy_folder
from tfx_tpu_trainer.components.trainer.declared_arguments import check_settings
from tfx_tpu_trainer.components.trainer.hosts import ONLY_HOST, ChiefWatch, Host
from tfx_tpu_trainer.components.trainer.legacy.training_spec import (
    EXPORT_FILE,
    Export,
    LegacyFnArgs,
    TrainingSpec,
    WatchedSchedule,
    legacy_fn_args,
)
from tfx_tpu_trainer.components.trainer.module_source import LegacyModule
from tfx_tpu_trainer.components.trainer.resume import (
    CheckpointFolder,
    StillOursListener,
    check_before_writing,
)
from tfx_tpu_trainer.components.trainer.rows import RowLimit
from tfx_tpu_trainer.components.trainer.serving_step import ServingStep
from tfx_tpu_trainer.components.trainer.train_job import TrainJob
from tfx_tpu_trainer.components.trainer.training import (
    Exported,
    Results,
    Training,
    writable_working_folder,
)
from tfx_tpu_trainer.estimator import tpu

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class LegacyModels:
    """The models that a module's own schedule trained and exported."""

    serving: Export  # The first exporter's newest export.
    for_evaluation: str  # The SavedModel for TFMA, from the same checkpoint.
    curve: LearningCurve  # The schedule's evaluations.


@dataclasses.dataclass(frozen=True, kw_only=True)
class LegacyTraining(Training[LegacyModels]):
    """A training run by the module's own estimator."""

    fn_args: LegacyFnArgs  # The arguments of trainer_fn.
    spec: TrainingSpec  # The result of trainer_fn.

    @classmethod
    def prepare(
        cls,
        job: TrainJob,
        module: LegacyModule,
        *,
        host: Host = ONLY_HOST,
        checkpoint_folder: CheckpointFolder | None = None,
    ) -> LegacyTraining:
        """Calls trainer_fn, and checks as much as possible without training."""
        check_settings(dict(job.settings))
        _check_alone(host)
        preconditions.check_base_model(job.base_model)
        working_folder = writable_working_folder(job, host, checkpoint_folder)
        fn_args = legacy_fn_args(job.fn_args, working_folder)
        returned = module(fn_args, _read_schema(fn_args.schema_file))
        spec = TrainingSpec.read(returned, module=module.name)
        spec.check_eval_receiver()
        spec.check_evaluation_ends()
        training = cls(
            job=job,
            host=host,
            fn_args=fn_args,
            spec=spec.with_row_limit(RowLimit.of(job)),
            checkpoint_folder=checkpoint_folder,
        )
        if not training._is_in_working_folder:
            _logger.warning(
                "The module's estimator keeps its checkpoints in %s, not in "
                "trainer_fn_args.serving_model_dir: they are not part of the ModelRun, and "
                "another attempt at this training resumes from them only if the module finds "
                "them.",
                spec.estimator.model_dir,
            )
        return training

    def help_chief(self, watch: ChiefWatch) -> None:
        """Raises: a legacy module trains on one host only."""
        del watch
        _check_alone(self.host)

    def train(self) -> LegacyModels:
        """Trains, evaluates and exports by the module's own schedule."""
        folder = self.folder_to_resume
        step = folder.take_up() if folder else 0
        schedule = WatchedSchedule(
            self.spec,
            folder=self.working_folder,
            goes_on=step > 0,
            before_writing=check_before_writing(folder),
            stall_timeout_secs=self.job.settings.stall_timeout_secs or None,
        )
        schedule.run(*([StillOursListener(folder)] if folder else []))
        export = self._export_of(schedule)
        return LegacyModels(
            serving=export,
            for_evaluation=self._export_for_evaluation(export),
            curve=schedule.curve,
        )

    def evaluate(self, trained: LegacyModels) -> Results:
        """Returns the evaluation that preceded the schedule's export."""
        return Results(metrics=trained.serving.metrics, curve=trained.curve)

    def export(
        self, trained: LegacyModels, checkpoint_path: str | None, folder: str
    ) -> Iterator[Exported]:
        """Copies the schedule's exports."""
        del checkpoint_path
        job = self.job
        serving, evaluation = os.path.join(folder, "serving"), os.path.join(folder, "evaluation")
        copy_folder(trained.serving.path, serving)
        yield Exported(
            path=serving,
            final=job.serving_model_dir,
            serving_step=self._serving_step(trained.serving),
        )
        copy_folder(trained.for_evaluation, evaluation)
        yield Exported(path=evaluation, final=job.eval_model_dir)

    @property
    def _is_in_working_folder(self) -> bool:
        model_dir = self.spec.estimator.model_dir
        return f"{model_dir.rstrip('/')}/".startswith(f"{self.working_folder.rstrip('/')}/")

    @property
    def folder_to_resume(self) -> CheckpointFolder | None:
        """The estimator's own folder, where an earlier attempt may have left checkpoints."""
        if self.checkpoint_folder is None or not self._is_in_working_folder:
            return None
        model_dir = self.spec.estimator.model_dir.rstrip("/")
        return dataclasses.replace(self.checkpoint_folder, path=model_dir)

    @property
    def params(self) -> Mapping[str, Any]:
        """The user's estimator's params."""
        return self.spec.estimator.params

    def _export_of(self, schedule: WatchedSchedule) -> Export:
        if schedule.export is not None:
            return schedule.export
        exporter = self.spec.eval_spec.exporters[0]
        raise ValueError(
            f"the exporter {exporter.name!r} ({type(exporter).__name__}) has exported nothing, not "
            f"even at the end of training: it ended at step {schedule.last_step}, and a "
            f"FinalExporter exports at train_spec.max_steps={self.spec.train_spec.max_steps}. If "
            "the input ended early, let input_fn repeat it or lower train_args.num_steps; an "
            "exporter of your own must return the path of its export"
        )

    def _export_for_evaluation(self, export: Export) -> str:
        """Exports the model for TFMA, from the serving export's checkpoint."""
        checkpoint = export.metrics.checkpoint
        if not checkpoint or not tf.io.gfile.exists(f"{checkpoint}.index"):
            # Newer checkpoints have replaced it. The serving export has transform_features, too.
            return export.path
        exported = export_eval_savedmodel(
            estimator=self.spec.estimator,
            export_dir_base=self.fn_args.eval_model_dir,
            eval_input_receiver_fn=self.spec.eval_input_receiver_fn,
            checkpoint_path=checkpoint,
        )
        return tf.compat.as_str_any(exported)

    @property
    def unpublished_files(self) -> tuple[str, ...]:
        """The record of the newest export, whose path ends with the training."""
        return (EXPORT_FILE,)

    def _serving_step(self, export: Export) -> ServingStep:
        job, estimator = self.job, self.spec.estimator
        on_cores = isinstance(estimator, tpu.TPUEstimator)
        settings = job.settings.model_copy(
            # The module may have left the split between host and cores to its model_fn.
            update={"export_saved_model_api_version": 2}
        )
        return ServingStep(
            job=dataclasses.replace(job, settings=settings),
            receiver_fn=export.receiver_fn or self._receiver_of_evaluation,
            host_estimator=None if on_cores else estimator,
        )

    def _receiver_of_evaluation(self) -> Any:
        return evaluation_receiver(eval_input_receiver_fn=self.spec.eval_input_receiver_fn)


def _check_alone(host: Host) -> None:
    if not host.is_alone:
        raise ValueError(
            "trainer_fn: a module that makes its own estimator trains on one host only, but this "
            f"process is the {host.role.value} of several: unset TF_CONFIG and "
            "TPU_WORKER_HOSTNAMES, or give TpuTrainer the model_fn, which trains on all of them"
        )


def _read_schema(path: str | None) -> schema_pb2.Schema:
    if not path:
        raise ValueError(
            "schema is missing, but trainer_fn(trainer_fn_args, schema) needs it; give "
            "schema=schema_gen.outputs['schema']"
        )
    with tf.io.gfile.GFile(path, "r") as file:
        return text_format.Parse(file.read(), schema_pb2.Schema())
