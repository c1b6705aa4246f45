"""One training of a legacy module, from trainer_fn to the artifacts."""

from __future__ import annotations

import dataclasses
import logging
import os
import uuid
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from tfx_tpu_trainer.compat.tfma_export import evaluation_receiver, export_eval_savedmodel
from tfx_tpu_trainer.component import preconditions
from tfx_tpu_trainer.component.artifact_folders import copy_folder
from tfx_tpu_trainer.component.hosts import ONLY_HOST, Host
from tfx_tpu_trainer.component.legacy.fn_args import LegacyFnArgs, legacy_fn_args
from tfx_tpu_trainer.component.legacy.module import LegacyModule
from tfx_tpu_trainer.component.legacy.settings import check_settings
from tfx_tpu_trainer.component.legacy.training_spec import TrainingSpec
from tfx_tpu_trainer.component.legacy.watched import EXPORT_FILE, Export, WatchedSchedule
from tfx_tpu_trainer.component.results import all_or_nothing, write_metrics
from tfx_tpu_trainer.component.resume import RECORD_FILE, CheckpointFolder, StillOursListener
from tfx_tpu_trainer.component.serving_step import ServingStep
from tfx_tpu_trainer.component.train_request import TrainRequest
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.evaluation import EvalMetrics
from tfx_tpu_trainer.evaluation.learning_curve import (
    LEARNING_CURVE_FILE,
    LearningCurve,
    write_learning_curve,
)

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LegacyTraining:
    """A training that a module's own estimator does, ready to run.

    Attributes:
        request: What was asked for.
        fn_args: What trainer_fn was called with.
        spec: What it has returned.
        checkpoint_folder: Takes the place of the ModelRun artifact until the training has ended, so
            that another attempt finds its checkpoints; `None` trains in the ModelRun artifact.
    """

    request: TrainRequest
    fn_args: LegacyFnArgs
    spec: TrainingSpec
    checkpoint_folder: CheckpointFolder | None = None

    @classmethod
    def prepare(
        cls,
        request: TrainRequest,
        module: LegacyModule,
        *,
        host: Host = ONLY_HOST,
        checkpoint_folder: CheckpointFolder | None = None,
    ) -> LegacyTraining:
        """Calls trainer_fn, and checks what can be checked without training.

        Args:
            request: What is asked for.
            module: The user's module.
            host: This process's part. Defaults to that of the only host.
            checkpoint_folder: Takes the place of the ModelRun artifact until the training has ended.
                Defaults to `None`.

        Returns:
            The training.

        Raises:
            ValueError: Something would go wrong later on; names the value and the fix.
        """
        check_settings(dict(request.settings))
        if not host.is_alone:
            raise ValueError(
                "trainer_fn: a module that makes its own estimator trains on one host here, and "
                f"this process is the {host.role.value} of several: unset TF_CONFIG and "
                "TPU_WORKER_HOSTNAMES, or give TpuTrainer the model_fn, which trains on all of them"
            )
        preconditions.check_base_model(request.base_model)
        working = checkpoint_folder.path if checkpoint_folder else request.model_run.uri
        preconditions.check_writable(request.model.uri, request.model_run.uri)
        if checkpoint_folder:
            preconditions.check_writable(
                working, called="checkpoint folder (setting checkpoint_root)"
            )
        fn_args = legacy_fn_args(request.fn_args, working)
        returned = module(fn_args, _read_schema(fn_args.schema_file))
        spec = TrainingSpec.read(returned, module=module.name)
        spec.check_eval_receiver()
        spec.check_evaluation_ends()
        training = cls(
            request=request, fn_args=fn_args, spec=spec, checkpoint_folder=checkpoint_folder
        )
        if not training._is_in_working_folder:
            _logger.warning(
                "The module's estimator has its checkpoints in %s, and not in "
                "trainer_fn_args.serving_model_dir: they are no part of the ModelRun, and another "
                "attempt at this training finds them if the module does.",
                spec.estimator.model_dir,
            )
        return training

    def run(self, *, training_ended: Callable[[], None] = lambda: None) -> EvalMetrics:
        """Trains, evaluates and exports as the module says, and fills the artifacts.

        On a failure nothing stays behind in the folders of the model and of its evaluation;
        checkpoints and events stay where they are.

        Args:
            training_ended: Called when training, its evaluations and exports are done. Defaults to
                nothing.

        Returns:
            The metrics of the exported model.
        """
        request, folder = self.request, self._folder_to_resume
        with all_or_nothing(request):
            schedule = self._train()
            training_ended()
            export = self._export_of(schedule)
            evaluation_model = self._export_for_evaluation(export)
            if folder:
                folder.check_still_ours()
            self._publish()
            metrics, curve = self._in_model_run(export.metrics, schedule.curve)
            write_learning_curve(request.model.uri, curve)
            self._place(export.path, request.serving_model_dir, self._serving_step(export))
            self._place(evaluation_model, request.fn_args.eval_model_dir)
            write_metrics(request, metrics)
        if self.checkpoint_folder:
            self.checkpoint_folder.remove()
        return metrics

    def _train(self) -> WatchedSchedule:
        folder = self._folder_to_resume
        step = folder.take_up() if folder else 0
        schedule = WatchedSchedule(self.spec, folder=self._working, goes_on=step > 0)
        schedule.run(*([StillOursListener(folder)] if folder else []))
        return schedule

    @property
    def _working(self) -> str:
        return self.fn_args.model_run_dir

    @property
    def _is_in_working_folder(self) -> bool:
        model_dir = self.spec.estimator.model_dir
        return f"{model_dir.rstrip('/')}/".startswith(f"{self._working.rstrip('/')}/")

    @property
    def _folder_to_resume(self) -> CheckpointFolder | None:
        """The estimator's own folder, where an earlier attempt may have left checkpoints."""
        if self.checkpoint_folder is None or not self._is_in_working_folder:
            return None
        model_dir = self.spec.estimator.model_dir.rstrip("/")
        return dataclasses.replace(self.checkpoint_folder, path=model_dir)

    def _export_of(self, schedule: WatchedSchedule) -> Export:
        if schedule.export is not None:
            return schedule.export
        exporter = self.spec.eval_spec.exporters[0]
        raise ValueError(
            f"the exporter {exporter.name!r} ({type(exporter).__name__}) has exported nothing, at the "
            f"end of training neither: it ended at step {schedule.last_step}, and a FinalExporter "
            f"exports at train_spec.max_steps={self.spec.train_spec.max_steps}. Where the input ended "
            "before, let input_fn repeat it or give fewer train_args.num_steps; an exporter of your own "
            "returns the path of what it exports"
        )

    def _export_for_evaluation(self, export: Export) -> str:
        """Exports what TFMA reads, from the checkpoint of the serving export."""
        checkpoint = export.metrics.checkpoint
        if not checkpoint or not tf.io.gfile.exists(f"{checkpoint}.index"):
            # Pushed out by newer ones. The serving export has transform_features too.
            return export.path
        exported = export_eval_savedmodel(
            estimator=self.spec.estimator,
            export_dir_base=self.fn_args.eval_model_dir,
            eval_input_receiver_fn=self.spec.eval_input_receiver_fn,
            checkpoint_path=checkpoint,
        )
        return tf.compat.as_str_any(exported)

    def _publish(self) -> None:
        """Copies checkpoints, events and exports to the ModelRun artifact, where they are not yet."""
        if self.checkpoint_folder:
            left_out = (RECORD_FILE, EXPORT_FILE, LEARNING_CURVE_FILE)
            copy_folder(self._working, self.request.model_run.uri, leaving_out=left_out)
        else:
            tf.io.gfile.remove(os.path.join(self._working, EXPORT_FILE))

    def _in_model_run(
        self, metrics: EvalMetrics, curve: LearningCurve
    ) -> tuple[EvalMetrics, LearningCurve]:
        """Names the checkpoints by the place where they stay."""
        before, after = self._working, self.request.model_run.uri
        curve = curve.with_checkpoints_moved(before, after)
        write_learning_curve(after, curve)
        return metrics.with_checkpoint_moved(before, after), curve

    def _serving_step(self, export: Export) -> Callable[[str], None]:
        request, estimator = self.request, self.spec.estimator
        on_cores = isinstance(estimator, tpu.TPUEstimator)
        settings = request.settings.model_copy(
            # The module may have left the splitting between host and cores to its model_fn.
            update={"export_to_tpu": on_cores, "export_saved_model_api_version": 2}
        )
        step = ServingStep(
            request=dataclasses.replace(request, settings=settings),
            receiver_fn=export.receiver_fn or self._receiver_of_evaluation,
            host_estimator=None if on_cores else estimator,
        )
        return lambda path: step.run(path, export.metrics.checkpoint)

    def _receiver_of_evaluation(self) -> Any:
        return evaluation_receiver(eval_input_receiver_fn=self.spec.eval_input_receiver_fn)

    def _place(
        self, exported: str, final: str, prepare: Callable[[str], None] = lambda path: None
    ) -> None:
        # Beside its final place, so that a server or Pusher never sees half of a model.
        staging = os.path.join(self.request.model.uri, f".export-{uuid.uuid4().hex}")
        copy_folder(exported, staging)
        prepare(staging)
        tf.io.gfile.rename(staging, final)


def _read_schema(path: str | None) -> schema_pb2.Schema:
    if not path:
        raise ValueError(
            "schema is missing, which trainer_fn(trainer_fn_args, schema) is called with; give "
            "schema=schema_gen.outputs['schema']"
        )
    with tf.io.gfile.GFile(path, "r") as file:
        return text_format.Parse(file.read(), schema_pb2.Schema())
