"""Blesses models by their trainer's metrics (EvalMetricsGate); finds the last blessed one (LastBlessedModel)."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import tensorflow as tf
from absl import logging as absl_logging
from google.protobuf import json_format
from tensorflow_model_analysis.proto import config_pb2
from tfx import v1 as tfx
from tfx.v1.dsl import standard_annotations

from tfx_tpu_trainer.components import _tfx_private
from tfx_tpu_trainer.components.evaluation import (
    EVAL_METRICS_FILE,
    EvalMetrics,
    check_eval_config,
    metric_properties,
    read_eval_metrics,
    read_model_evaluation,
    set_properties,
    write_blessing,
    write_model_evaluation,
)
from tfx_tpu_trainer.components.evaluation._blessing import Failure, Verdict
from tfx_tpu_trainer.components.evaluation._eval_config import metrics_with_change_thresholds
from tfx_tpu_trainer.components.evaluation._eval_metrics import GLOBAL_STEP
from tfx_tpu_trainer.components.evaluation._models import BlessedModel, last_blessed, point_to
from tfx_tpu_trainer.components.trainer.artifacts import PAGE, TRAINING, tell_result
from tfx_tpu_trainer.components.trainer.declared_arguments import check_channel
from tfx_tpu_trainer.components.trainer.tracking import track_verdict
from tfx_tpu_trainer.serving import ALIKE, read_serving_check

MODEL = "model"
CANDIDATE_EVALUATION = "candidate_evaluation"
BASELINE_MODEL = "baseline_model"
EVAL_CONFIG = "eval_config"
EVALUATION = "evaluation"
# The Kubeflow V2 entry point looks up this key.
BLESSING = "blessing"
POINTER = "pointer"
REQUIRE_ALIKE = "require_alike_answers"
FOUND, NONE_YET = "found", "none yet"
"""Custom property of LastBlessedModel's output, and its value before the first blessing."""

# Not a parameter; TFX's cache compares it in addition.
_STATE = "pointer_state"

_logger = logging.getLogger(__name__)
_artifacts = tfx.types.standard_artifacts

_Artifacts = Mapping[str, Sequence[tfx.dsl.Artifact]]


class EvalMetricsGateExecutor(_tfx_private.EvaluatorExecutor):
    """Judges a model by its metrics.

    It is a subclass of the Evaluator's executor only because the entry point of Kubeflow V2 and Vertex AI gives a
    blessing its models' resource names only after an executor of that class.
    """

    def Do(
        self,
        input_dict: dict[str, list[tfx.dsl.Artifact]],
        output_dict: dict[str, list[tfx.dsl.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Writes both outputs; raises ValueError if the model's metrics or an artifact are missing."""
        self._log_startup(input_dict, output_dict, exec_properties)
        model = _only(input_dict, MODEL)
        baseline_model = _baseline(input_dict)
        evaluation, blessing = _only(output_dict, EVALUATION), _only(output_dict, BLESSING)
        eval_config = json_format.Parse(exec_properties[EVAL_CONFIG], config_pb2.EvalConfig())

        metrics = _candidate_metrics(model, _only(input_dict, CANDIDATE_EVALUATION))
        baseline = None if baseline_model is None else read_eval_metrics(baseline_model.uri)
        if baseline_model and baseline and (reason := _unfit(baseline, eval_config)):
            # No model is better than an infinite value or comparable with NaN: no model would be blessed again.
            _logger.warning(
                "EvalMetricsGate: ignored the baseline model %s: its %s.",
                baseline_model.uri,
                reason,
            )
            baseline_model = baseline = None
        verdict = write_model_evaluation(
            evaluation.uri,
            metrics,
            eval_config=eval_config,
            baseline=baseline,
            model_location=model.uri,
            baseline_location="" if baseline_model is None else baseline_model.uri,
        )
        if exec_properties.get(REQUIRE_ALIKE):
            verdict = _with_alike_answers(verdict, model.uri)
        set_properties(evaluation, metric_properties(metrics))
        write_blessing(
            blessing,
            verdict,
            model=model,
            baseline_model=baseline_model,
            component_id=exec_properties.get("current_component_id"),
        )
        # Written after the blessing: if a gate is killed in between, no later run compares with its blessed model, but
        # the pointer never names an unblessed one.
        if verdict.blessed and (pointer := exec_properties.get(POINTER)):
            training = model.get_string_custom_property(TRAINING) or None
            point_to(pointer, BlessedModel.now(model.uri, metrics, training))
        track_verdict(model, verdict)
        tell_result(
            "EvalMetricsGate",
            verdict.summary(),
            metrics=metrics,
            baseline=baseline,
            page=model.get_string_custom_property(PAGE),
            level=absl_logging.INFO if verdict.blessed else absl_logging.WARNING,
        )


def _with_alike_answers(verdict: Verdict, model_uri: str) -> Verdict:
    """Rejects a model unless its serving check has shown that both metagraphs give the same answers."""
    report = read_serving_check(model_uri)
    found = [check for check in report.checks if check.name == ALIKE] if report else []
    if [check.outcome for check in found] == ["passed"]:
        return verdict
    said = ": ".join((found[0].outcome, found[0].detail)) if found else "its serving check lacks it"
    failure = Failure(
        metric=ALIKE,
        message=f"{ALIKE}: {said}",
        bound="passed",
        value=None,
        baseline_value=None,
    )
    return dataclasses.replace(verdict, blessed=False, failures=(failure, *verdict.failures))


def _baseline(inputs: _Artifacts) -> tfx.dsl.Artifact | None:
    """Returns the baseline; a LastBlessedModel outputs an artifact even if it found none."""
    if not inputs.get(BASELINE_MODEL):
        return None
    baseline = _only(inputs, BASELINE_MODEL)
    return None if baseline.get_string_custom_property(FOUND) == NONE_YET else baseline


def _unfit(baseline: EvalMetrics, config: config_pb2.EvalConfig) -> str:
    """Describes the metrics that make a baseline unusable; '' if there are none."""
    compared = metrics_with_change_thresholds(config)
    undefined = [name for name in compared if math.isnan(baseline.overall.get(name, 0.0))]
    names = dict.fromkeys((*baseline.diverged, *undefined))
    return " and its ".join(f"{name} is {baseline.overall[name]}" for name in names)


def _candidate_metrics(model: tfx.dsl.Artifact, evaluation: tfx.dsl.Artifact) -> EvalMetrics:
    metrics = read_eval_metrics(model.uri)
    if metrics is not None:
        return metrics
    metrics = read_model_evaluation(evaluation.uri)
    if metrics is None:
        raise ValueError(
            f"No metrics were found for the model at {model.uri}: it has no {EVAL_METRICS_FILE}, "
            f"and the evaluation at {evaluation.uri} has no scalar metric over the whole data. "
            "Give EvalMetricsGate the model and evaluation outputs of one TpuTrainer."
        )
    if evaluation.has_custom_property(GLOBAL_STEP):
        step = evaluation.get_int_custom_property(GLOBAL_STEP)
        metrics = dataclasses.replace(metrics, global_step=step)
    return metrics


def _only(artifacts: _Artifacts, key: str) -> tfx.dsl.Artifact:
    found = artifacts.get(key, ())
    if len(found) != 1:
        raise ValueError(f"EvalMetricsGate needs one artifact for {key!r}, got {len(found)}.")
    return found[0]


class EvalMetricsGateSpec(_tfx_private.ComponentSpec):
    """Inputs, outputs and the parameter of EvalMetricsGate.

    The trainer's evaluation is `candidate_evaluation` here, because a ComponentSpec can't use one name
    for an input and an output.
    """

    PARAMETERS: ClassVar = {
        EVAL_CONFIG: _tfx_private.ExecutionParameter(type=config_pb2.EvalConfig),
        POINTER: _tfx_private.ExecutionParameter(type=str, optional=True),
        REQUIRE_ALIKE: _tfx_private.ExecutionParameter(type=int, optional=True),
    }
    INPUTS: ClassVar = {
        MODEL: _tfx_private.ChannelParameter(type=_artifacts.Model),
        CANDIDATE_EVALUATION: _tfx_private.ChannelParameter(type=_artifacts.ModelEvaluation),
        BASELINE_MODEL: _tfx_private.ChannelParameter(type=_artifacts.Model, optional=True),
    }
    OUTPUTS: ClassVar = {
        EVALUATION: _tfx_private.ChannelParameter(type=_artifacts.ModelEvaluation),
        BLESSING: _tfx_private.ChannelParameter(type=_artifacts.ModelBlessing),
    }
    TYPE_ANNOTATION = standard_annotations.Evaluate


class EvalMetricsGate(tfx.types.BaseBeamComponent):
    """Compares a model's eval_metrics with thresholds and a baseline, and blesses it or not.

    It goes between TpuTrainer and Pusher and replaces the stock Evaluator's validation, without a second pass over the
    data and without Beam. The rules are the stock Evaluator's; the verdict in words is the custom property `verdict` of
    the blessing.

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

    # No Beam runs here. It is a Beam component because the Kubeflow V2 entry point insists on the Evaluator's executor
    # class.
    SPEC_CLASS = EvalMetricsGateSpec
    EXECUTOR_SPEC = _tfx_private.BeamExecutorSpec(EvalMetricsGateExecutor)

    def __init__(
        self,
        *,
        model: tfx.types.BaseChannel,
        evaluation: tfx.types.BaseChannel,
        eval_config: config_pb2.EvalConfig,
        baseline_model: tfx.types.BaseChannel | None = None,
        pointer: str | None = None,
        require_alike_answers: bool = False,
    ):
        """Declares the component.

        Args:
            model: channel of the Model to judge, from TpuTrainer.
            evaluation: channel of its ModelEvaluation, from TpuTrainer. Metrics come from the model's own
                `eval_metrics.json`; only for a model without that file (stock Trainer and Evaluator) from here.
            eval_config: thresholds by metric name: `thresholds` apply to the whole eval split and to every slice that
                TpuTrainer measured, `per_slice_thresholds` to some of them. Without any, no blessing is written, as
                with the stock Evaluator.
            baseline_model: channel of the Model to compare with, usually from a Resolver with
                LatestBlessedModelStrategy or from a LastBlessedModel. As long as it has no model, change thresholds are
                not checked.
            pointer: path of a `.json` file that names the model whenever one is blessed, for a
                LastBlessedModel. Defaults to None: no file is written.
            require_alike_answers: whether to bless only models whose metagraphs for CPU and TPU hosts have given the
                same answers in TpuTrainer's serving check. Defaults to False: a difference fails the training already,
                unless `serving_check` is "warn" or "off".

        Raises:
            TypeError: an argument of the wrong type, or a channel of another artifact type.
            ValueError: thresholds that can only fail or are never checked, see `check_eval_config`; or a pointer that
                is not a path of a `.json` file.
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
            # Left out if it isn't requested, so earlier cache entries remain valid.
            require_alike_answers=1 if require_alike_answers else None,
            evaluation=tfx.dsl.Channel(type=_artifacts.ModelEvaluation),
            blessing=tfx.dsl.Channel(type=_artifacts.ModelBlessing),
        )
        super().__init__(spec=spec)


class LastBlessedModelExecutor(_tfx_private.BaseExecutor):
    """Points the output to the last blessed model."""

    def Do(
        self,
        input_dict: dict[str, list[tfx.dsl.Artifact]],
        output_dict: dict[str, list[tfx.dsl.Artifact]],
        exec_properties: Mapping[str, Any],
    ) -> None:
        """Sets the output's URI to that of the blessed model; copies nothing.

        Before the first blessing the output stays an empty folder, marked by its property `found`, which
        EvalMetricsGate treats as no baseline.
        """
        self._log_startup(input_dict, output_dict, exec_properties)
        (model,) = output_dict[MODEL]
        pointer = exec_properties[POINTER]
        found = last_blessed(pointer)
        if found is None:
            tf.io.gfile.makedirs(model.uri)
            model.set_string_custom_property(FOUND, NONE_YET)
            _logger.info("No model has been blessed yet: the pointer %s does not exist", pointer)
            return
        metrics = read_eval_metrics(found.uri)
        if metrics is not None:
            set_properties(model, metric_properties(metrics))
        model.set_string_custom_property(FOUND, found.time)
        model.uri = found.uri
        _logger.info("The last blessed model, of %s, is %s", found.time, found.uri)


class LastBlessedModelDriver(_tfx_private.BaseDriver, _tfx_private.PortableDriver):
    """Lets TFX use its cache only while the pointer is unchanged."""

    # TFX requires a component's driver to subclass the first class; its portable launcher calls `run` of the second.
    def __init__(self, metadata_handle: Any) -> None:
        _tfx_private.BaseDriver.__init__(self, metadata_handle)
        _tfx_private.PortableDriver.__init__(self, metadata_handle)

    def run(self, execution_info: _tfx_private.ExecutionInfo) -> _tfx_private.DriverOutput:
        """Adds the pointer's content to the properties that the cache compares."""
        result = _tfx_private.DriverOutput()
        state = _state(execution_info.exec_properties[POINTER])
        result.exec_properties[_STATE].string_value = state
        return result


def _state(pointer: str) -> str:
    try:
        with tf.io.gfile.GFile(pointer, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except tf.errors.NotFoundError:
        # The cached result may be an empty folder that no longer exists.
        return uuid.uuid4().hex


class LastBlessedModelSpec(_tfx_private.ComponentSpec):
    """The parameter and the output of LastBlessedModel."""

    PARAMETERS: ClassVar = {POINTER: _tfx_private.ExecutionParameter(type=str)}
    INPUTS: ClassVar[dict[str, Any]] = {}
    OUTPUTS: ClassVar = {MODEL: _tfx_private.ChannelParameter(type=_artifacts.Model)}


class LastBlessedModel(tfx.types.BaseComponent):
    """Finds the model that an EvalMetricsGate has blessed last, by the pointer file that the gate writes.

    It is for Kubeflow Pipelines, whose backend runs no resolvers. It also works locally and on Vertex AI, where a
    Resolver with LatestBlessedModelStrategy can query ML Metadata instead. Give both components the same pointer.

    Examples:
        >>> from tfx import v1 as tfx
        >>> from tensorflow_model_analysis.proto import config_pb2
        >>> from tfx_tpu_trainer import EvalMetricsGate, LastBlessedModel
        >>> pointer = "gs://bucket/taxi/blessed.json"
        >>> baseline = LastBlessedModel(pointer=pointer)
        >>> artifacts = tfx.types.standard_artifacts
        >>> gate = EvalMetricsGate(
        ...     model=tfx.dsl.Channel(type=artifacts.Model),
        ...     evaluation=tfx.dsl.Channel(type=artifacts.ModelEvaluation),
        ...     eval_config=config_pb2.EvalConfig(),
        ...     baseline_model=baseline.outputs["model"],
        ...     pointer=pointer,
        ... )
        >>> list(baseline.outputs)
        ['model']

    Output: `model` (Model), at the URI of the blessed model; before the first blessing an empty folder, which the gate
        treats as no baseline. Its result never comes from a cache that is older than the last blessing.
    """

    SPEC_CLASS = LastBlessedModelSpec
    EXECUTOR_SPEC = _tfx_private.ExecutorClassSpec(LastBlessedModelExecutor)
    DRIVER_CLASS = LastBlessedModelDriver

    is_cacheable = False
    """Kubeflow Pipelines runs no drivers; `compile_pipeline` therefore disables its cache."""

    def __init__(self, *, pointer: str):
        """Declares the component.

        Args:
            pointer: Path of the pointer file, in any file system that TensorFlow supports.

        Raises:
            ValueError: If it is not the path of a `.json` file.
        """
        super().__init__(
            spec=LastBlessedModelSpec(
                pointer=check_pointer("LastBlessedModel", pointer),
                model=tfx.dsl.Channel(type=_artifacts.Model),
            )
        )


def check_pointer(component: str, pointer: Any) -> str:
    """Checks the path of a pointer file."""
    if not isinstance(pointer, str) or not pointer.endswith(".json") or "/" not in pointer:
        raise ValueError(
            f"{component}: pointer={pointer!r} is not the path of a .json file; give one in the "
            "pipeline's own folder, such as 'gs://bucket/taxi/blessed.json'"
        )
    return pointer
