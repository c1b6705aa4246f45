"""TpuTrainer: the TFX component."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tfx import v1 as tfx
from tfx.v1.dsl import standard_annotations
from tfx.v1.dsl.experimental import RuntimeParameter

from tfx_tpu_trainer.components.clusters._html_page import RunPage
from tfx_tpu_trainer.components.evaluation._slices import parse_slicing_specs, slicing_specs_to_json
from tfx_tpu_trainer.components.trainer.declared_arguments import (
    check_flag,
    check_inputs,
    check_module_file,
    check_steps,
    custom_config_as_json,
)
from tfx_tpu_trainer.components.trainer.legacy.declared import declared_source
from tfx_tpu_trainer.components.trainer.module_source import source_hash
from tfx_tpu_trainer.components.trainer.parameter_values import execution_value
from tfx_tpu_trainer.components.trainer.tfx_private import (
    ChannelParameter,
    ComponentSpec,
    ExecutionParameter,
    ExecutorClassSpec,
    Placeholder,
    standard_component_specs,
    udf_utils,
)
from tfx_tpu_trainer.components.trainer.trainer_constructor import PARAMETERS, bind, declare
from tfx_tpu_trainer.components.trainer.trainer_executor import TpuTrainerExecutor
from tfx_tpu_trainer.components.trainer.trainer_parameters import TrainSettings
from tfx_tpu_trainer.hardware import TpuSpec


class TpuTrainerSpec(ComponentSpec):
    """Inputs, outputs and parameters of a TpuTrainer."""

    PARAMETERS: ClassVar = {
        "train_args": ExecutionParameter(type=tfx.proto.TrainArgs),
        "eval_args": ExecutionParameter(type=tfx.proto.EvalArgs),
        # TFX replaces module_file by module_path ("name@wheel") when it packages the module.
        "module_path": ExecutionParameter(type=str, optional=True),
        "module_hash": ExecutionParameter(type=str, optional=True),
        "node": ExecutionParameter(type=str, optional=True),
        **{
            name: ExecutionParameter(type=parameter.stored_as, optional=True)
            for name, parameter in PARAMETERS.items()
            if parameter.stored_as
        },
    }
    INPUTS: ClassVar = {
        "examples": ChannelParameter(type=tfx.types.standard_artifacts.Examples),
        "transform_graph": ChannelParameter(type=tfx.types.standard_artifacts.TransformGraph),
        "schema": ChannelParameter(type=tfx.types.standard_artifacts.Schema),
        "raw_examples": ChannelParameter(type=tfx.types.standard_artifacts.Examples, optional=True),
        "statistics": ChannelParameter(
            type=tfx.types.standard_artifacts.ExampleStatistics, optional=True
        ),
        "base_model": ChannelParameter(type=tfx.types.standard_artifacts.Model, optional=True),
        "hyperparameters": ChannelParameter(
            type=tfx.types.standard_artifacts.HyperParameters, optional=True
        ),
    }
    OUTPUTS: ClassVar = {
        "model": ChannelParameter(type=tfx.types.standard_artifacts.Model),
        "model_run": ChannelParameter(type=tfx.types.standard_artifacts.ModelRun),
        "evaluation": ChannelParameter(type=tfx.types.standard_artifacts.ModelEvaluation),
        "page": ChannelParameter(type=RunPage, optional=True),
    }
    TYPE_ANNOTATION = standard_annotations.Train


class TpuTrainer(tfx.types.BaseComponent):
    """Trains a graph-mode `model_fn` with TPUEstimator on Transform's output.

    Use it instead of the stock `Trainer` when the model is an Estimator model_fn, when it runs on TPU cores (or on
    emulated ones), or when its own eval_metrics decide about a push (see `EvalMetricsGate`).

    Outputs: `model` (SavedModel in `Format-Serving`, metrics in `eval_metrics.json`), `model_run`
    (checkpoints, TensorBoard events and the page of the training), `evaluation` (a ModelEvaluation of
    the eval split), `page` (the page again, as Kubeflow Pipelines and Vertex AI show it).

    Examples:
        In a pipeline the channels are outputs of Transform and SchemaGen:

        >>> from tfx import v1 as tfx
        >>> from tfx_tpu_trainer import TpuTrainer
        >>> artifacts = tfx.types.standard_artifacts
        >>> trainer = TpuTrainer(
        ...     examples=tfx.dsl.Channel(type=artifacts.Examples),
        ...     transform_graph=tfx.dsl.Channel(type=artifacts.TransformGraph),
        ...     schema=tfx.dsl.Channel(type=artifacts.Schema),
        ...     module="pipelines.taxi.model",
        ...     label_key="big_tip",
        ...     train_args=tfx.proto.TrainArgs(num_steps=1000),
        ...     train_batch_size=256,
        ...     tpu="v5e:2x4",
        ... )
        >>> sorted(trainer.outputs)
        ['evaluation', 'model', 'model_run', 'page']
        >>> trainer.tpu.num_replicas()
        8

    Every `int` and `str` parameter may be a `RuntimeParameter`, except `module` and `trainer_fn`, whose source is
    hashed when the pipeline is made, and `tpu`. Booleans take `RuntimeParameter(ptype=int)` with 0 or 1, `params`,
    `train_args`, `eval_args`, `slicing_specs` and `warmup_batch_sizes` one with a JSON string.
    """

    SPEC_CLASS = TpuTrainerSpec
    EXECUTOR_SPEC = ExecutorClassSpec(TpuTrainerExecutor)

    def __init__(self, **parameters: Any):
        """Declares a training.

        Args:
            **parameters: {parameters}

        Raises:
            TypeError: There is no such parameter, or an input is missing or of another type.
            ValueError: A parameter doesn't fit; names the value and the fix.
        """
        given = bind(TpuTrainer.__init__, parameters)
        if isinstance(given["tpu"], (RuntimeParameter, Placeholder)):
            raise ValueError(
                f"tpu={given['tpu']!r} can't be a runtime parameter: the slice must be known when "
                "the pipeline is compiled; give its name, such as 'v5e:2x4'"
            )
        settings = {name: given.pop(name) for name in TrainSettings.model_fields}
        settings["params"] = {} if settings["params"] is None else settings["params"]
        settings["slicing_specs"] = _as_json_values(settings["slicing_specs"])
        source = declared_source(
            module_file=given["module_file"],
            module=given["module"],
            trainer_fn=given["trainer_fn"],
            settings=settings,
        )
        checked = _check(settings)
        self._tpu = settings["tpu"] = checked.tpu
        if not isinstance(settings["use_tpu"], (RuntimeParameter, Placeholder)):
            settings["use_tpu"] = checked.use_tpu
        if settings["num_shards"] is None:
            settings["num_shards"] = checked.num_shards
        for name in ("train_args", "eval_args"):
            check_steps(name, given[name])
        check_inputs(given)
        check_module_file(given["module_file"])
        check_flag("restore_tf_estimator", given["restore_tf_estimator"])
        given["restore_tf_estimator"] = execution_value(given["restore_tf_estimator"])
        given["custom_config"] = custom_config_as_json(given["custom_config"])
        if given["eval_args"] is None:
            given["eval_args"] = tfx.proto.EvalArgs()
        spec = self.SPEC_CLASS(
            **given,
            module_hash=source_hash(source.module) if source and source.module else None,
            model=tfx.dsl.Channel(type=tfx.types.standard_artifacts.Model),
            model_run=tfx.dsl.Channel(type=tfx.types.standard_artifacts.ModelRun),
            evaluation=tfx.dsl.Channel(type=tfx.types.standard_artifacts.ModelEvaluation),
            page=tfx.dsl.Channel(type=RunPage),
            **{name: execution_value(value) for name, value in settings.items()},
        )
        super().__init__(spec=spec)
        if given["module_file"] and udf_utils.should_package_user_modules():
            udf_utils.add_user_module_dependency(
                self,
                standard_component_specs.MODULE_FILE_KEY,
                standard_component_specs.MODULE_PATH_KEY,
            )

    @property
    def exec_properties(self) -> dict[str, Any]:
        """The parameters, with the name of this node: Kubeflow's entry point doesn't tell it."""
        return {**super().exec_properties, "node": self.id}

    @property
    def tpu(self) -> TpuSpec | None:
        """The TPU slice that it trains on."""
        return self._tpu

    @property
    def pod_tpu(self) -> TpuSpec | None:
        """The TPU slice on whose nodes its own pod must run."""
        return self._tpu


declare(TpuTrainer.__init__, PARAMETERS.values())


def _as_json_values(specs: Any) -> Any:
    """Returns slicing specs in the form that execution properties store."""
    if isinstance(specs, (RuntimeParameter, Placeholder)):
        return specs
    return tuple(slicing_specs_to_json(parse_slicing_specs(specs)))


def _check(settings: Mapping[str, Any]) -> TrainSettings:
    """Checks the settings as far as they are known when a pipeline is made, and returns those."""
    known, deferred = {}, set()
    for name, value in settings.items():
        if isinstance(value, RuntimeParameter):
            if value.ptype is None:
                raise ValueError(
                    f"{name}: RuntimeParameter {value.name!r} has no type; give it "
                    f"ptype={TrainSettings.execution_types()[name].__name__}"
                )
            value = value.default
            if value is None:
                deferred.add(name)
        elif isinstance(value, Placeholder):
            deferred.add(name)
        known[name] = value
    return TrainSettings.parse(known, deferred=deferred, source="TpuTrainer")
