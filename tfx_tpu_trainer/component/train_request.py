"""TrainRequest: one execution of the trainer, as plain typed values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tfx import v1 as tfx

from tfx_tpu_trainer.component.module_source import ModuleSource
from tfx_tpu_trainer.component.tfx_private import (
    artifact_utils,
    json_utils,
    proto_utils,
    standard_component_specs,
)
from tfx_tpu_trainer.component.trainer_parameters import TrainSettings

CUSTOM_CONFIG_SETTINGS = "tpu_trainer"
"""Key of the stock Trainer's custom_config that holds our settings."""

Artifacts = Mapping[str, Sequence[tfx.dsl.Artifact]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What is to be trained, from what, and where the results go.

    Attributes:
        settings: The typed parameters.
        source: Where the user's module is.
        train_steps: Global step at which training ends.
        eval_steps: Batches to evaluate; `None` is the whole split.
        train_splits: Names of the splits to train on.
        eval_splits: Names of the splits to evaluate.
        transform_graph_path: Folder of the TransformGraph artifact.
        raw_eval_files: File patterns of the raw examples behind the eval splits; empty where the
            trainer has no such input.
        base_model: A SavedModel to take the first values from, or `None`.
        hyperparameters: Values of the HyperParameters artifact; they win over all other params.
        model: The Model artifact to fill.
        model_run: The ModelRun artifact: checkpoints and events.
        evaluation: The ModelEvaluation artifact; `None` in a stock Trainer.
        serving_model_dir: Where the SavedModel goes, inside of `model`'s folder.
        fn_args: TFX's FnArgs, for the functions of the user's module.
    """

    settings: TrainSettings
    source: ModuleSource
    train_steps: int
    eval_steps: int | None
    train_splits: tuple[str, ...]
    eval_splits: tuple[str, ...]
    transform_graph_path: str
    base_model: str | None
    hyperparameters: Mapping[str, Any]
    model: tfx.dsl.Artifact
    model_run: tfx.dsl.Artifact
    evaluation: tfx.dsl.Artifact | None
    serving_model_dir: str
    fn_args: tfx.components.FnArgs
    raw_eval_files: tuple[str, ...] = ()

    @classmethod
    def from_execution(
        cls,
        *,
        outputs: Artifacts,
        exec_properties: Mapping[str, Any],
        fn_args: tfx.components.FnArgs,
        raw_examples: Sequence[tfx.dsl.Artifact] = (),
    ) -> TrainRequest:
        """Reads what TFX gives to an executor.

        Args:
            outputs: The output artifacts: `model`, `model_run` and, but in a stock Trainer,
                `evaluation`.
            exec_properties: The execution properties of a TpuTrainer or of a stock Trainer.
            fn_args: What TFX made of the input artifacts.
            raw_examples: The raw examples, of which TFX makes nothing.

        Returns:
            The request.

        Raises:
            ValueError: A property is missing or doesn't fit.
        """
        if not fn_args.train_steps:
            raise ValueError(
                f"train_args.num_steps={fn_args.train_steps or 0}: the number of training steps "
                "must be set; give train_args=tfx.proto.TrainArgs(num_steps=...)"
            )
        if not fn_args.transform_graph_path:
            raise ValueError(
                "transform_graph is missing; give transform_graph="
                "transform.outputs['transform_graph'] of a Transform component"
            )
        eval_splits = splits_from(exec_properties, "eval")
        return cls(
            settings=settings_from(exec_properties),
            source=ModuleSource.from_exec_properties(exec_properties),
            train_steps=fn_args.train_steps,
            eval_steps=fn_args.eval_steps,
            train_splits=splits_from(exec_properties, "train"),
            eval_splits=eval_splits,
            transform_graph_path=fn_args.transform_graph_path,
            base_model=fn_args.base_model,
            hyperparameters=_hyperparameter_values(fn_args.hyperparameters),
            model=artifact_utils.get_single_instance(outputs["model"]),
            model_run=artifact_utils.get_single_instance(outputs["model_run"]),
            evaluation=_optional(outputs.get("evaluation")),
            serving_model_dir=fn_args.serving_model_dir,
            fn_args=fn_args,
            raw_eval_files=tuple(
                f"{artifact_utils.get_split_uri([artifact], split)}/*"
                for artifact in raw_examples
                for split in eval_splits
            ),
        )


def settings_from(exec_properties: Mapping[str, Any]) -> TrainSettings:
    """Finds the settings among execution properties.

    Args:
        exec_properties: Those of a TpuTrainer, or of a stock Trainer whose
            custom_config={'tpu_trainer': {...}} holds the settings by name.

    Returns:
        The settings.

    Raises:
        ValueError: A setting is unknown or its value doesn't fit.
    """
    custom = json_utils.loads(
        exec_properties.get(standard_component_specs.CUSTOM_CONFIG_KEY) or "null"
    )
    if custom is not None and CUSTOM_CONFIG_SETTINGS in custom:
        return TrainSettings.parse(
            custom[CUSTOM_CONFIG_SETTINGS], source=f"custom_config[{CUSTOM_CONFIG_SETTINGS!r}]"
        )
    # Besides ours a component's properties hold the module's place, the steps and the splits.
    names = TrainSettings.execution_types()
    return TrainSettings.parse({k: v for k, v in exec_properties.items() if k in names})


def splits_from(exec_properties: Mapping[str, Any], mode: str) -> tuple[str, ...]:
    """Gives the names of the splits to train on or to evaluate.

    Args:
        exec_properties: The execution properties.
        mode: "train" or "eval", which is also the split where none is named.
    """
    message = {"train": tfx.proto.TrainArgs, "eval": tfx.proto.EvalArgs}[mode]()
    text = exec_properties.get(f"{mode}_args")
    if text:
        proto_utils.json_to_proto(text, message)
    return tuple(message.splits) or (mode,)


def _hyperparameter_values(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Takes the values out of keras-tuner's description of a search space, or plain ones."""
    if not config:
        return {}
    return dict(config.get("values", config))


def _optional(artifacts: Sequence[tfx.dsl.Artifact] | None) -> tfx.dsl.Artifact | None:
    return artifact_utils.get_single_instance(list(artifacts)) if artifacts else None
