"""Traces a model for cores together with its embeddings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.placements.core_run import CoreRun
from tfx_tpu_trainer.estimator.placements.cores import CoreTrace, trace_on_cores
from tfx_tpu_trainer.estimator.placements.placement import Call
from tfx_tpu_trainer.estimator.tpu.embedding.checks import refuse_embeddings
from tfx_tpu_trainer.estimator.tpu.embedding.id_features import IdFeatures
from tfx_tpu_trainer.estimator.tpu.embedding.model_call import EmbeddedModel
from tfx_tpu_trainer.estimator.tpu.embedding.plan import plan_embeddings
from tfx_tpu_trainer.estimator.tpu.embedding.spec import EmbeddingConfigSpec


def trace_with_embeddings(spec: EmbeddingConfigSpec, run: CoreRun, call: Call) -> CoreTrace:
    """Traces a call as `trace_on_cores` does, with lookups between its two functions.

    Args:
        spec: The embeddings.
        run: How the call runs.
        call: The call.

    Returns:
        The trace; its template trains the tables too.

    Raises:
        TypeError: If a column of the spec is not one made for TPUs.
        ValueError: If the cores are not emulated, or the features lack what the spec embeds.
        RuntimeError: If the model does not use a column of the spec.
    """
    if run.system is not None:
        refuse_embeddings(spec, "on TPU hardware")
    plan = plan_embeddings(spec)
    ids = IdFeatures(plan, padded=run.mode == ModeKeys.PREDICT)
    model = EmbeddedModel(plan, ids, run.mode, call.call_model_fn)

    def call_input_fn(
        added: Mapping[str, Any], input_context: tf.distribute.InputContext | None = None, /
    ) -> Any:
        return ids.prepare_input(call.call_input_fn(added, input_context))

    embedded = dataclasses.replace(call, call_input_fn=call_input_fn, call_model_fn=model)
    trace = trace_on_cores(run, embedded)
    template = dataclasses.replace(trace.template, table_update=model.table_update)
    return dataclasses.replace(trace, template=template)
