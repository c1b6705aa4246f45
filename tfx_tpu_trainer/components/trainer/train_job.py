"""Defines TrainJob: everything that TFX passes to an executor about a training, as typed values."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tfx import v1 as tfx

from tfx_tpu_trainer.components._tfx_private import (
    artifact_utils,
    standard_component_specs,
)
from tfx_tpu_trainer.components.clusters._html_page import RunPage
from tfx_tpu_trainer.components.trainer import preconditions
from tfx_tpu_trainer.components.trainer.declared_arguments import (
    check_num_steps,
    custom_config_from_json,
    steps_from_json,
)
from tfx_tpu_trainer.components.trainer.module_source import ModuleSource
from tfx_tpu_trainer.components.trainer.settings import TrainSettings

_logger = logging.getLogger(__name__)

CUSTOM_CONFIG_SETTINGS = "tpu_trainer"
"""Key of the stock Trainer's custom_config with our settings."""

# Properties that are not settings: other arguments of a TpuTrainer, and those added by TFX and the components.
_OTHER_PROPERTIES = frozenset(
    {"current_component_id", "module_hash", "module_path", "node", "run_fn", "vertex_job"}
    | {"module_file", "module", "trainer_fn", "restore_tf_estimator", "custom_config"}
    | {"train_args", "eval_args"}
)

# A stock Trainer whose entry point passes no node name.
_UNKNOWN_NODE = "Trainer"

Artifacts = Mapping[str, Sequence[tfx.dsl.Artifact]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainJob:
    """What to train, from which data, and where the results go."""

    settings: TrainSettings
    source: ModuleSource  # The location of the user's module.
    restore_tf_estimator: bool  # Whether a legacy module finds `tf.estimator` while it is in use.
    node: str  # The component's name in its pipeline.
    pipeline: str  # The pipeline's name; "" if unknown.
    pipeline_run: str  # The pipeline run's name; "" if unknown.
    orchestrated_by_tfx: bool  # Whether TFX's own launcher runs the job, and chose the URIs.
    inputs: Artifacts  # Input artifacts by key.
    train_steps: int  # The global step at which training ends.
    eval_steps: int | None  # Batches to evaluate; `None` is the whole split.
    train_splits: tuple[str, ...]
    eval_splits: tuple[str, ...]
    train_files: tuple[str, ...]
    eval_files: tuple[str, ...]
    # File patterns of the eval splits' raw examples; empty if the trainer lacks this input.
    raw_eval_files: tuple[str, ...]
    # Reads files of the input's format as a Dataset.
    dataset_factory: Callable[..., tf.data.Dataset]
    transform_graph_path: str  # Folder of the TransformGraph artifact.
    base_model: str | None  # A SavedModel with initial values, or `None`.
    # Values of the HyperParameters artifact; they override all other params.
    hyperparameters: Mapping[str, Any]
    # The component's values for the user's functions.
    custom_config: Mapping[str, Any] | None
    model: tfx.dsl.Artifact  # The Model artifact to fill.
    model_run: tfx.dsl.Artifact  # The ModelRun artifact: checkpoints and events.
    evaluation: tfx.dsl.Artifact | None  # The ModelEvaluation artifact; `None` in a stock Trainer.
    # The RunPage artifact; `None` in a stock Trainer, or a pipeline compiled by an older version.
    page: RunPage | None
    serving_model_dir: str  # Where the SavedModel goes, inside `model`'s folder.
    eval_model_dir: str  # Where a legacy module's evaluation export goes, inside `model`'s folder.
    # TFX's FnArgs, only for the functions of the user's module.
    fn_args: tfx.components.FnArgs
    # File name -> text of the user's module, read before the training, during which it may be edited.
    source_texts: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_execution(
        cls,
        inputs: Artifacts,
        outputs: Artifacts,
        exec_properties: Mapping[str, Any],
        *,
        read_fn_args: Callable[..., tfx.components.FnArgs],
        pipeline_info: Any = None,
        pipeline_node: Any = None,
        pipeline_run: str | None = None,
    ) -> TrainJob:
        """Reads what TFX passes to an executor."""
        examples, raw_examples = inputs.get("examples") or [], inputs.get("raw_examples") or []
        train_splits = _splits(exec_properties, "train")
        eval_splits = _splits(exec_properties, "eval")
        custom_config_from_json(exec_properties.get(standard_component_specs.CUSTOM_CONFIG_KEY))
        preconditions.check_examples(examples)
        preconditions.check_splits(examples, train_splits, "train")
        preconditions.check_splits(examples, eval_splits, "eval")
        preconditions.check_splits(raw_examples, eval_splits, "eval")
        preconditions.check_only_file(inputs.get("schema") or [], "schema")
        preconditions.check_hyperparameters(inputs.get("hyperparameters") or [])
        fn_args = read_fn_args(inputs, outputs, exec_properties)
        if not fn_args.transform_graph_path:
            raise ValueError(
                "transform_graph is missing; give transform_graph="
                "transform.outputs['transform_graph'] of a Transform component"
            )
        _tell_unknown(exec_properties)
        restore = exec_properties.get("restore_tf_estimator")
        node = exec_properties.get("node") or (pipeline_node and pipeline_node.node_info.id)
        return cls(
            settings=settings_from(exec_properties),
            source=ModuleSource.from_exec_properties(exec_properties),
            restore_tf_estimator=True if restore is None else bool(restore),
            node=node or _UNKNOWN_NODE,
            pipeline=pipeline_info.id if pipeline_info else "",
            pipeline_run=pipeline_run or "",
            orchestrated_by_tfx=pipeline_node is not None,
            inputs=inputs,
            train_steps=fn_args.train_steps,
            eval_steps=fn_args.eval_steps,
            train_splits=train_splits,
            eval_splits=eval_splits,
            train_files=tuple(fn_args.train_files),
            eval_files=tuple(fn_args.eval_files),
            raw_eval_files=tuple(
                f"{artifact_utils.get_split_uri([artifact], split)}/*"
                for artifact in raw_examples
                for split in eval_splits
            ),
            dataset_factory=fn_args.data_accessor.tf_dataset_factory,
            transform_graph_path=fn_args.transform_graph_path,
            base_model=fn_args.base_model,
            hyperparameters=_hyperparameter_values(fn_args.hyperparameters),
            custom_config=fn_args.custom_config,
            model=artifact_utils.get_single_instance(outputs["model"]),
            model_run=artifact_utils.get_single_instance(outputs["model_run"]),
            evaluation=_optional(outputs.get("evaluation")),
            page=_optional(outputs.get("page")),
            serving_model_dir=fn_args.serving_model_dir,
            eval_model_dir=fn_args.eval_model_dir,
            fn_args=fn_args,
        )


def settings_from(exec_properties: Mapping[str, Any]) -> TrainSettings:
    """Finds the settings among execution properties."""
    custom = custom_config_from_json(
        exec_properties.get(standard_component_specs.CUSTOM_CONFIG_KEY)
    )
    if custom is not None and CUSTOM_CONFIG_SETTINGS in custom:
        return TrainSettings.parse(
            custom[CUSTOM_CONFIG_SETTINGS], source=f"custom_config[{CUSTOM_CONFIG_SETTINGS!r}]"
        )
    # A component's properties also hold the module's location, the steps and the splits.
    names = TrainSettings.execution_types()
    return TrainSettings.parse({k: v for k, v in exec_properties.items() if k in names})


def _tell_unknown(exec_properties: Mapping[str, Any]) -> None:
    """Warns of unknown properties: those of a newer version have no effect."""
    unknown = sorted(set(exec_properties) - set(TrainSettings.model_fields) - _OTHER_PROPERTIES)
    if unknown:
        _logger.warning(
            "Ignored the unknown execution properties %s: install in the image the version of "
            "tfx_tpu_trainer that compiled the pipeline.",
            ", ".join(unknown),
        )


def _splits(exec_properties: Mapping[str, Any], mode: str) -> tuple[str, ...]:
    """Reads the splits to train on or to evaluate; defaults to the split named after the mode."""
    name = f"{mode}_args"
    message = steps_from_json(name, exec_properties.get(name))
    check_num_steps(name, message.num_steps)
    return tuple(message.splits) or (mode,)


def _hyperparameter_values(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the values in keras-tuner's HyperParameters, or plain ones, by name."""
    if not config:
        return {}
    return dict(config.get("values", config))


def _optional(artifacts: Sequence[tfx.dsl.Artifact] | None) -> Any:
    return artifact_utils.get_single_instance(list(artifacts)) if artifacts else None
