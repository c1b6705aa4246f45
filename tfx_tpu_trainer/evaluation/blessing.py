"""ModelBlessing: the artifact that Pusher and the resolvers trust."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import tensorflow as tf

from tfx_tpu_trainer.evaluation.verdict import Verdict

if TYPE_CHECKING:
    from tfx import v1 as tfx

# The stock Evaluator's file and property names; a test holds them against TFX's own constants, which
# are importable only together with all of TFX.
BLESSED_FILE = "BLESSED"
NOT_BLESSED_FILE = "NOT_BLESSED"
BLESSED_PROPERTY = "blessed"
CURRENT_MODEL_PROPERTY = "current_model"
CURRENT_MODEL_ID_PROPERTY = "current_model_id"
BASELINE_MODEL_PROPERTY = "baseline_model"
BASELINE_MODEL_ID_PROPERTY = "baseline_model_id"
COMPONENT_ID_PROPERTY = "component_id"

# Ours: the verdict in words.
VERDICT_PROPERTY = "verdict"


def write_blessing(
    blessing: tfx.dsl.Artifact,
    verdict: Verdict,
    *,
    model: tfx.dsl.Artifact,
    baseline_model: tfx.dsl.Artifact | None = None,
    component_id: str | None = None,
) -> None:
    """Writes the stock Evaluator's blessing, and the verdict's text beside it.

    A verdict without thresholds (`blessed` is None) writes the text only: neither Pusher nor
    LatestBlessedModelStrategy then takes the model for blessed.

    Args:
        blessing: the ModelBlessing artifact; its folder gets `BLESSED` or `NOT_BLESSED`, its custom
            properties what LatestBlessedModelStrategy looks for.
        verdict: the verdict.
        model: the judged Model, with its id in MLMD.
        baseline_model: the Model it was compared with.
        component_id: the id of the component that judges, if known.
    """
    blessing.set_string_custom_property(VERDICT_PROPERTY, verdict.summary())
    if verdict.blessed is None:
        return
    blessing.set_string_custom_property(CURRENT_MODEL_PROPERTY, model.uri)
    blessing.set_int_custom_property(CURRENT_MODEL_ID_PROPERTY, model.id)
    if baseline_model is not None:
        blessing.set_string_custom_property(BASELINE_MODEL_PROPERTY, baseline_model.uri)
        blessing.set_int_custom_property(BASELINE_MODEL_ID_PROPERTY, baseline_model.id)
    if component_id:
        blessing.set_string_custom_property(COMPONENT_ID_PROPERTY, component_id)
    tf.io.gfile.makedirs(blessing.uri)
    file_name, other = BLESSED_FILE, NOT_BLESSED_FILE
    if not verdict.blessed:
        file_name, other = other, file_name
    # An earlier attempt of the same execution may have come to the other verdict.
    stale = os.path.join(blessing.uri, other)
    if tf.io.gfile.exists(stale):
        tf.io.gfile.remove(stale)
    with tf.io.gfile.GFile(os.path.join(blessing.uri, file_name), "w") as file:
        file.write("")
    blessing.set_int_custom_property(BLESSED_PROPERTY, int(verdict.blessed))
