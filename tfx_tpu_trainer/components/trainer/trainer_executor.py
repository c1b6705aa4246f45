"""Defines TpuTrainerExecutor, which runs a TpuTrainer's training."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from tfx import v1 as tfx

from tfx_tpu_trainer._support.progress import followed, phase
from tfx_tpu_trainer.components._tfx_private import GenericExecutor
from tfx_tpu_trainer.components.trainer import preconditions
from tfx_tpu_trainer.components.trainer.estimators import with_callbacks
from tfx_tpu_trainer.components.trainer.hosts import ChiefStatus, ChiefWatch, Host, read_host
from tfx_tpu_trainer.components.trainer.legacy.training import LegacyTraining
from tfx_tpu_trainer.components.trainer.model_training import ModelTraining
from tfx_tpu_trainer.components.trainer.module_source import find_legacy, imported, source_texts
from tfx_tpu_trainer.components.trainer.resume import CheckpointFolder
from tfx_tpu_trainer.components.trainer.tracking import check_store
from tfx_tpu_trainer.components.trainer.train_job import TrainJob
from tfx_tpu_trainer.components.trainer.training import Training
from tfx_tpu_trainer.components.user_module._module import check_module
from tfx_tpu_trainer.estimator.extending import listening


class TpuTrainerExecutor(GenericExecutor):
    """Trains, evaluates and exports a model with TPUEstimator, or with a legacy module's estimator.

    It belongs to `TpuTrainer`, and also runs in the stock `Trainer`, as
    `custom_executor_spec=ExecutorClassSpec(TpuTrainerExecutor)`: the settings are then read from
    `custom_config={'tpu_trainer': {...}}`, and no evaluation artifact is written.
    """

    def Do(
        self,
        input_dict: dict[str, list[tfx.dsl.Artifact]],
        output_dict: dict[str, list[tfx.dsl.Artifact]],
        exec_properties: Mapping[str, Any],
    ) -> None:
        """Runs one training.

        Args:
            input_dict: `examples`, `transform_graph`, and if given `schema`, `raw_examples`, `statistics`,
                `base_model`, `hyperparameters`.
            output_dict: `model`, `model_run` and, in a TpuTrainer, `evaluation` and `page`.
            exec_properties: The parameters.

        Raises:
            ValueError: If the parameters, the data or the module are invalid, or the MLflow store does not answer;
                nothing was trained.
            PreflightError: If the model does not compile for the TPU slice or does not fit it, and `preflight` is
                "error"; nothing was trained.
            ServingCheckError: If the exported model fails its check, or is known before the training to fail it, and
                `serving_check` is "error".
            StoppedBySignal: If SIGTERM stopped the process; another attempt resumes from the checkpoint that was
                written.
        """
        self._log_startup(input_dict, output_dict, exec_properties)
        with listening():
            self._run(input_dict, output_dict, exec_properties)

    def _run(
        self,
        input_dict: dict[str, list[tfx.dsl.Artifact]],
        output_dict: dict[str, list[tfx.dsl.Artifact]],
        exec_properties: Mapping[str, Any],
    ) -> None:
        context = self._context
        job = TrainJob.from_execution(
            input_dict,
            output_dict,
            exec_properties,
            read_fn_args=self._GetFnArgs,
            pipeline_info=context and context.pipeline_info,
            pipeline_node=context and context.pipeline_node,
            pipeline_run=context and context.pipeline_run_id,
        )
        host, model_run = read_host(), job.model_run.uri
        if not host.is_chief:
            watch = ChiefWatch(model_run, start_secs=job.settings.start_timeout_secs)
            with _prepared(job, host) as training:
                training.help_chief(watch)
            # TFX's entry points record the outputs when Do returns; only the chief has outputs.
            raise SystemExit(0)
        with contextlib.ExitStack() as stack:
            status = None
            if not host.is_alone:
                preconditions.check_writable(model_run)
                status = stack.enter_context(ChiefStatus(model_run).reported())
            # Only a single host may draw progress on the terminal of a pod or process.
            stack.enter_context(followed("auto", may_draw=host.is_alone))
            with phase("input check"):
                check_store(job)
                training = stack.enter_context(_prepared(job, host))
            training = training.checked_before_training()
            training.run(training_ended=status.finishing if status else lambda: None)


@contextlib.contextmanager
def _prepared(job: TrainJob, host: Host) -> Iterator[Training[Any]]:
    """Prepares a training of the user's module, which stays importable while it is in use."""
    with contextlib.ExitStack() as stack:
        with phase("imports", is_told=False):
            module = stack.enter_context(
                imported(job.source, restore_tf_estimator=job.restore_tf_estimator)
            )
        job = dataclasses.replace(job, source_texts=source_texts(job.source))
        legacy = find_legacy(module, job.source.trainer_fn)
        checked = None if legacy else check_module(module)
        job = with_callbacks(job, checked) if checked else job
        evaluates = legacy is not None or job.settings.evaluates_in_training
        folder = CheckpointFolder.of(job, evaluates=evaluates) if job.settings.resume else None
        if legacy:
            yield LegacyTraining.prepare(job, legacy, host=host, checkpoint_folder=folder)
        else:
            assert checked is not None
            yield ModelTraining.prepare(job, checked, host=host, checkpoint_folder=folder)
