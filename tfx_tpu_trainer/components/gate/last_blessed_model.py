"""LastBlessedModel: finds the model that a gate has blessed last, where there is no resolver to ask."""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

import tensorflow as tf
from tfx import v1 as tfx

from tfx_tpu_trainer.components.evaluation import (
    metric_properties,
    read_eval_metrics,
    set_properties,
)
from tfx_tpu_trainer.components.evaluation._models import last_blessed
from tfx_tpu_trainer.components.trainer import tfx_private

MODEL = "model"
POINTER = "pointer"
FOUND, NONE_YET = "found", "none yet"
"""Custom property of the output, and its value before the first blessing."""

# Not a parameter: what TFX's cache has to look at besides.
_STATE = "pointer_state"

_logger = logging.getLogger(__name__)

_artifacts = tfx.types.standard_artifacts


class LastBlessedModelExecutor(tfx_private.BaseExecutor):
    """Points the output at the model that was blessed last."""

    def Do(
        self,
        input_dict: dict[str, list[tfx.dsl.Artifact]],
        output_dict: dict[str, list[tfx.dsl.Artifact]],
        exec_properties: Mapping[str, Any],
    ) -> None:
        """Sets the output's URI to that of the blessed model; copies nothing.

        Before the first blessing the output stays an empty folder, and says so in its property `found`, which
        EvalMetricsGate takes for no baseline.
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


class LastBlessedModelDriver(tfx_private.BaseDriver, tfx_private.PortableDriver):
    """Lets TFX's cache answer only while the pointer is what it was."""

    def __init__(self, metadata_handle: Any) -> None:
        tfx_private.BaseDriver.__init__(self, metadata_handle)
        tfx_private.PortableDriver.__init__(self, metadata_handle)

    def run(self, execution_info: tfx_private.ExecutionInfo) -> tfx_private.DriverOutput:
        """Adds what the pointer holds to the properties that the cache compares."""
        result = tfx_private.DriverOutput()
        state = _state(execution_info.exec_properties[POINTER])
        result.exec_properties[_STATE].string_value = state
        return result


def _state(pointer: str) -> str:
    try:
        with tf.io.gfile.GFile(pointer, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except tf.errors.NotFoundError:
        # The answer of then may have been an empty folder that is gone now.
        return uuid.uuid4().hex


class LastBlessedModelSpec(tfx_private.ComponentSpec):
    """The parameter and the output of LastBlessedModel."""

    PARAMETERS: ClassVar = {POINTER: tfx_private.ExecutionParameter(type=str)}
    INPUTS: ClassVar[dict[str, Any]] = {}
    OUTPUTS: ClassVar = {MODEL: tfx_private.ChannelParameter(type=_artifacts.Model)}


class LastBlessedModel(tfx.types.BaseComponent):
    """Finds the model that an EvalMetricsGate has blessed last, by the pointer file that the gate writes.

    For Kubeflow Pipelines, whose backend runs no resolvers; locally and on Vertex AI it works as well, where
    a Resolver with LatestBlessedModelStrategy asks ML Metadata. Give both components the same pointer.

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
    EXECUTOR_SPEC = tfx_private.ExecutorClassSpec(LastBlessedModelExecutor)
    DRIVER_CLASS = LastBlessedModelDriver

    is_cacheable = False
    """Kubeflow Pipelines runs no drivers; `compile_pipeline` therefore disables its cache."""

    def __init__(self, *, pointer: str):
        """Declares the component.

        Args:
            pointer: Path of the pointer file, of any file system that TensorFlow knows.

        Raises:
            ValueError: It is not a path of a `.json` file.
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
