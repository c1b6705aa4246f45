"""Metrics as custom properties of artifacts, so that MLMD queries and Vertex's page can compare runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tfx_tpu_trainer.evaluation.eval_metrics import EvalMetrics, number_to_json

if TYPE_CHECKING:
    from tfx import v1 as tfx

METRIC_PREFIX = "eval_"
GLOBAL_STEP = "global_step"
NUM_EXAMPLES = "num_examples"
CHECKPOINT = "evaluated_checkpoint"
SECONDS = "evaluation_seconds"


def metric_properties(metrics: EvalMetrics) -> dict[str, float | int | str]:
    """Names the custom properties that describe an evaluation.

    Args:
        metrics: the evaluation.

    Returns:
        `eval_<metric>` for each metric, `global_step`, `num_examples`, `evaluated_checkpoint` and
        `evaluation_seconds`, without those that are unknown. A metric that is not finite is the text
        "NaN", "Infinity" or "-Infinity": MLMD fails to store such a double, and the run with it. MLMD's
        databases keep six digits of a double; `eval_metrics.json` has them all.
    """
    properties: dict[str, float | int | str] = {
        f"{METRIC_PREFIX}{name}": number_to_json(value) for name, value in metrics.overall.items()
    }
    known = {
        GLOBAL_STEP: metrics.global_step,
        NUM_EXAMPLES: metrics.num_examples,
        CHECKPOINT: metrics.checkpoint,
        SECONDS: metrics.seconds,
    }
    return properties | {name: value for name, value in known.items() if value is not None}


def set_properties(artifact: tfx.dsl.Artifact, properties: Mapping[str, float | int | str]) -> None:
    """Sets custom properties of an artifact, each with the MLMD type of its value.

    Args:
        artifact: a TFX artifact; changed in place.
        properties: name -> value; see `metric_properties`.
    """
    for name, value in properties.items():
        if isinstance(value, str):
            artifact.set_string_custom_property(name, value)
        elif isinstance(value, int):
            artifact.set_int_custom_property(name, value)
        else:
            artifact.set_float_custom_property(name, value)
