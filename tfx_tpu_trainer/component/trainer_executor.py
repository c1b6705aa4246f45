"""TpuTrainerExecutor: what runs when TFX runs a TpuTrainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfx import v1 as tfx

from tfx_tpu_trainer.component import preconditions, user_module
from tfx_tpu_trainer.component.tfx_private import GenericExecutor
from tfx_tpu_trainer.component.train_request import TrainRequest, splits_from
from tfx_tpu_trainer.component.training import Training


class TpuTrainerExecutor(GenericExecutor):
    """Trains, evaluates and exports a model with TPUEstimator.

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
        with user_module.opened(request.source) as module:
            Training.prepare(request, module).run()
