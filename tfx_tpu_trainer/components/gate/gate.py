"""EvalMetricsGate: blesses a model by the metrics that its trainer measured."""

from __future__ import annotations

from typing import ClassVar

from tensorflow_model_analysis.proto import config_pb2
from tfx import v1 as tfx
from tfx.v1.dsl import standard_annotations

from tfx_tpu_trainer.components.evaluation import check_eval_config
from tfx_tpu_trainer.components.gate.gate_executor import (
    BASELINE_MODEL,
    BLESSING,
    CANDIDATE_EVALUATION,
    EVAL_CONFIG,
    EVALUATION,
    MODEL,
    EvalMetricsGateExecutor,
)
from tfx_tpu_trainer.components.gate.last_blessed_model import POINTER, check_pointer
from tfx_tpu_trainer.components.trainer import tfx_private
from tfx_tpu_trainer.components.trainer.declared_arguments import check_channel

_artifacts = tfx.types.standard_artifacts


class EvalMetricsGateSpec(tfx_private.ComponentSpec):
    """Inputs, outputs and the parameter of EvalMetricsGate.

    The trainer's evaluation is `candidate_evaluation` here, because a ComponentSpec can't use one name
    for an input and an output.
    """

    PARAMETERS: ClassVar = {
        EVAL_CONFIG: tfx_private.ExecutionParameter(type=config_pb2.EvalConfig),
        POINTER: tfx_private.ExecutionParameter(type=str, optional=True),
    }
    INPUTS: ClassVar = {
        MODEL: tfx_private.ChannelParameter(type=_artifacts.Model),
        CANDIDATE_EVALUATION: tfx_private.ChannelParameter(type=_artifacts.ModelEvaluation),
        BASELINE_MODEL: tfx_private.ChannelParameter(type=_artifacts.Model, optional=True),
    }
    OUTPUTS: ClassVar = {
        EVALUATION: tfx_private.ChannelParameter(type=_artifacts.ModelEvaluation),
        BLESSING: tfx_private.ChannelParameter(type=_artifacts.ModelBlessing),
    }
    TYPE_ANNOTATION = standard_annotations.Evaluate


class EvalMetricsGate(tfx.types.BaseBeamComponent):
    """Compares a model's eval_metrics with thresholds and a baseline, and blesses it or not.

    Goes between TpuTrainer and Pusher and replaces the stock Evaluator's validation: no second pass over the data, no
    Beam. The rules are the stock Evaluator's; the verdict in words is the custom property `verdict` of the blessing.

    Examples:
        In a pipeline the channels are outputs of the trainer:

        >>> from tfx import v1 as tfx
        >>> from tensorflow_model_analysis.proto import config_pb2
        >>> from tfx_tpu_trainer import EvalMetricsGate
        >>> at_least = config_pb2.GenericValueThreshold(lower_bound={"value": 0.7})
        >>> threshold = config_pb2.MetricThreshold(value_threshold=at_least)
        >>> gate = EvalMetricsGate(
        ...     model=tfx.dsl.Channel(type=tfx.types.standard_artifacts.Model),
        ...     evaluation=tfx.dsl.Channel(type=tfx.types.standard_artifacts.ModelEvaluation),
        ...     eval_config=config_pb2.EvalConfig(
        ...         metrics_specs=[config_pb2.MetricsSpec(thresholds={"accuracy": threshold})]
        ...     ),
        ... )
        >>> sorted(gate.outputs)
        ['blessing', 'evaluation']

    Outputs: `evaluation` (ModelEvaluation: the metrics, the baseline's and the differences) and `blessing`
    (ModelBlessing; empty if eval_config has no thresholds to check).
    """

    # No Beam runs here. Being a Beam component comes with the Evaluator's executor class, on which the
    # Kubeflow V2 entry point insists.
    SPEC_CLASS = EvalMetricsGateSpec
    EXECUTOR_SPEC = tfx_private.BeamExecutorSpec(EvalMetricsGateExecutor)

    def __init__(
        self,
        *,
        model: tfx.types.BaseChannel,
        evaluation: tfx.types.BaseChannel,
        eval_config: config_pb2.EvalConfig,
        baseline_model: tfx.types.BaseChannel | None = None,
        pointer: str | None = None,
    ):
        """Declares the component.

        Args:
            model: channel of the Model to judge, from TpuTrainer.
            evaluation: channel of its ModelEvaluation, from TpuTrainer. Metrics come from the model's
                own `eval_metrics.json`, and from here for a model without that file (stock Trainer and
                Evaluator).
            eval_config: thresholds by metric name: `thresholds` hold for the whole eval split and for
                every slice that TpuTrainer measured, `per_slice_thresholds` for some of them. Without
                any, no blessing is written, as with the stock Evaluator.
            baseline_model: channel of the Model to compare with, usually from a Resolver with
                LatestBlessedModelStrategy or from a LastBlessedModel. While it gives no model, change
                thresholds are not checked.
            pointer: path of a `.json` file that names the model whenever one is blessed, for a
                LastBlessedModel. Defaults to None: no such file.

        Raises:
            TypeError: an argument of the wrong type, or a channel of another artifact type.
            ValueError: thresholds that could only fail or never be checked: see `check_eval_config`; or a
                pointer that is not a path of a `.json` file.
        """
        for name, channel in {"model": model, "evaluation": evaluation}.items():
            if channel is None:
                raise ValueError(f"EvalMetricsGate: {name} is None; give trainer.outputs[{name!r}]")
        check_channel("EvalMetricsGate", MODEL, model, _artifacts.Model, "trainer.outputs['model']")
        check_channel(
            "EvalMetricsGate",
            EVALUATION,
            evaluation,
            _artifacts.ModelEvaluation,
            "trainer.outputs['evaluation']",
        )
        if baseline_model is not None:
            source = "the `model` output of a Resolver or of a LastBlessedModel"
            check_channel(
                "EvalMetricsGate", BASELINE_MODEL, baseline_model, _artifacts.Model, source
            )
        check_eval_config(eval_config)
        spec = EvalMetricsGateSpec(
            model=model,
            candidate_evaluation=evaluation,
            baseline_model=baseline_model,
            eval_config=eval_config,
            pointer=None if pointer is None else check_pointer("EvalMetricsGate", pointer),
            evaluation=tfx.dsl.Channel(type=_artifacts.ModelEvaluation),
            blessing=tfx.dsl.Channel(type=_artifacts.ModelBlessing),
        )
        super().__init__(spec=spec)
