"""Traces a model for cores together with its embeddings."""

from __future__ import annotations

import dataclasses

from tfx_tpu_trainer.estimator.mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.tpu.core_run import (
    CallInputFn,
    CallModelFn,
    CoreRun,
    CoreTrace,
    trace_on_cores,
)
from tfx_tpu_trainer.estimator.tpu.embedding.checks import refuse_embeddings
from tfx_tpu_trainer.estimator.tpu.embedding.id_features import IdFeatures
from tfx_tpu_trainer.estimator.tpu.embedding.model_call import EmbeddedModel
from tfx_tpu_trainer.estimator.tpu.embedding.plan import plan_embeddings
from tfx_tpu_trainer.estimator.tpu.embedding.spec import EmbeddingConfigSpec


def trace_with_embeddings(
    run: CoreRun,
    spec: EmbeddingConfigSpec | None,
    *,
    call_input_fn: CallInputFn,
    call_model_fn: CallModelFn,
) -> CoreTrace:
    """Calls the user's functions as `trace_on_cores` does, with lookups between the two.

    Args:
        run: How the call runs.
        spec: The embeddings; `None` where there are none.
        call_input_fn: Calls input_fn.
        call_model_fn: Calls model_fn.

    Returns:
        The trace; its template trains the tables too.

    Raises:
        TypeError: If a column of the spec is not one made for TPUs.
        ValueError: If the cores are not emulated, or the features lack what the spec embeds.
        RuntimeError: If the model does not use a column of the spec.
    """
    if spec is None:
        return trace_on_cores(run, call_input_fn=call_input_fn, call_model_fn=call_model_fn)
    if run.system is not None:
        refuse_embeddings(spec, "on TPU hardware")
    plan = plan_embeddings(spec)
    ids = IdFeatures(plan, padded=run.mode == ModeKeys.PREDICT)
    model = EmbeddedModel(plan, ids, run.mode, call_model_fn)
    trace = trace_on_cores(
        run,
        call_input_fn=lambda added: ids.prepare_input(call_input_fn(added)),
        call_model_fn=model,
    )
    template = dataclasses.replace(trace.template, table_update=model.table_update)
    return dataclasses.replace(trace, template=template)
