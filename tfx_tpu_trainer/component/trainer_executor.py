"""TpuTrainerExecutor: what runs when TFX runs a TpuTrainer."""

from __future__ import annotations

import contextlib
import logging
import types
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from tfx import v1 as tfx

from tfx_tpu_trainer.component import preconditions, user_module
from tfx_tpu_trainer.component.chief_status import ChiefStatus, ChiefWatch
from tfx_tpu_trainer.component.helper_hosts import help_chief
from tfx_tpu_trainer.component.hosts import Host, read_host
from tfx_tpu_trainer.component.legacy.module import find_legacy
from tfx_tpu_trainer.component.legacy.training import LegacyTraining
from tfx_tpu_trainer.component.preflight_step import check_before_training
from tfx_tpu_trainer.component.resume import CheckpointFolder, checkpoint_root_of
from tfx_tpu_trainer.component.tfx_private import GenericExecutor
from tfx_tpu_trainer.component.train_request import Artifacts, TrainRequest, splits_from
from tfx_tpu_trainer.component.training import Training
from tfx_tpu_trainer.component.training_identity import TrainingIdentity
from tfx_tpu_trainer.inputs.user_module import check_module

_logger = logging.getLogger(__name__)

# A stock Trainer under an entry point that tells no name.
_UNKNOWN_NODE = "Trainer"


class TpuTrainerExecutor(GenericExecutor):
    """Trains, evaluates and exports a model with TPUEstimator, or with a legacy module's estimator.

    It belongs to `TpuTrainer`, and runs in the stock `Trainer` as well, as
    `custom_executor_spec=ExecutorClassSpec(TpuTrainerExecutor)`: then the settings are read from
    `custom_config={'tpu_trainer': {...}}` and no evaluation artifact is written.
    """

    def Do(
        self,
        input_dict: dict[str, list[tfx.dsl.Artifact]],
        output_dict: dict[str, list[tfx.dsl.Artifact]],
        exec_properties: Mapping[str, Any],
    ) -> None:
        """Runs one training.

        Args:
            input_dict: `examples`, `transform_graph`, and where given `schema`, `raw_examples`,
                `base_model`, `hyperparameters`.
            output_dict: `model`, `model_run` and, in a TpuTrainer, `evaluation`.
            exec_properties: The parameters.

        Raises:
            ValueError: The parameters, the data or the module don't fit; nothing was trained.
            PreflightError: The model does not compile for the TPU slice or does not fit it, and
                `preflight` is "error"; nothing was trained.
        """
        self._log_startup(input_dict, output_dict, exec_properties)
        for mode in ("train", "eval"):
            preconditions.check_splits(
                input_dict["examples"], splits_from(exec_properties, mode), mode
            )
        raw_examples = input_dict.get("raw_examples") or []
        preconditions.check_splits(raw_examples, splits_from(exec_properties, "eval"), "eval")
        request = TrainRequest.from_execution(
            outputs=output_dict,
            exec_properties=exec_properties,
            fn_args=self._GetFnArgs(input_dict, output_dict, exec_properties),
            raw_examples=raw_examples,
        )
        host = read_host()
        model_run = request.model_run.uri
        if not host.is_chief:
            watch = ChiefWatch(model_run)
            with self._imported(request, exec_properties) as module:
                training = self._prepare(request, module, host, input_dict, exec_properties)
                # A legacy training has refused to be one of several hosts.
                assert isinstance(training, Training)
                help_chief(training, watch)
            # TFX's entry points write down what an execution has made when Do returns, and what it
            # has made is the chief's to tell.
            raise SystemExit(0)
        with contextlib.ExitStack() as stack:
            status = None
            if not host.is_alone:
                preconditions.check_writable(model_run)
                status = stack.enter_context(ChiefStatus(model_run).told())
            module = stack.enter_context(self._imported(request, exec_properties))
            training = self._prepare(request, module, host, input_dict, exec_properties)
            if isinstance(training, Training):
                check_before_training(training)
            training.run(training_ended=status.finishing if status else lambda: None)

    def _imported(
        self, request: TrainRequest, exec_properties: Mapping[str, Any]
    ) -> AbstractContextManager[types.ModuleType]:
        restore = exec_properties.get("restore_tf_estimator")
        return user_module.imported(
            request.source, restore_tf_estimator=True if restore is None else bool(restore)
        )

    def _prepare(
        self,
        request: TrainRequest,
        module: types.ModuleType,
        host: Host,
        inputs: Artifacts,
        exec_properties: Mapping[str, Any],
    ) -> Training | LegacyTraining:
        legacy = find_legacy(module, request.source.trainer_fn)
        checked = None if legacy else check_module(module)
        folder = None
        if request.settings.resume:
            folder = self._checkpoint_folder(request, inputs, exec_properties)
        if legacy:
            return LegacyTraining.prepare(request, legacy, host=host, checkpoint_folder=folder)
        assert checked is not None
        return Training.prepare(request, checked, host=host, checkpoint_folder=folder)

    def _checkpoint_folder(
        self, request: TrainRequest, inputs: Artifacts, exec_properties: Mapping[str, Any]
    ) -> CheckpointFolder | None:
        context = self._context
        pipeline_node = context and context.pipeline_node
        pipeline_info = context and context.pipeline_info
        node = exec_properties.get("node") or (pipeline_node and pipeline_node.node_info.id)
        root = checkpoint_root_of(
            request.settings.checkpoint_root,
            model_run=request.model_run.uri,
            node=node or _UNKNOWN_NODE,
            orchestrated_by_tfx=pipeline_node is not None,
        )
        if root is None:
            _logger.info(
                "Another attempt at this training would begin anew: here only checkpoint_root says "
                "where it would find these checkpoints."
            )
            return None
        identity = TrainingIdentity.of(
            request,
            inputs,
            pipeline=pipeline_info.id if pipeline_info else "",
            node=node or _UNKNOWN_NODE,
        )
        return CheckpointFolder.below(root, identity)
