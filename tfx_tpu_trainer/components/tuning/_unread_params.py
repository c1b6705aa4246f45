"""The check of a search space before its first trial: the model's graphs are built, and must read all of its params."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.messages import failures_are_named
from tfx_tpu_trainer.components.tuning._param_reads import UnreadParamError, explain_unread
from tfx_tpu_trainer.components.tuning._tune_job import TuneJob
from tfx_tpu_trainer.estimator import ModeKeys
from tfx_tpu_trainer.estimator.extending import as_input_tensors, call_input_fn

# Each takes as long as building the graphs of a training and of an evaluation.
_MOST_VARIATIONS = 20


def check_params_are_read(job: TuneJob, folder: str) -> None:
    """Builds the graphs of the default trial and, where params are left over, of some others."""
    names = set(job.space.default_params)
    module = sys.modules.get(job.module.name)
    if module is None:
        _build(job, job.space.default_params, folder)
    else:
        with failures_are_named(module):
            _build(job, job.space.default_params, folder)
    for params in itertools.islice(job.space.variations(), _MOST_VARIATIONS):
        if not job.reads.unread(names | set(params)):
            continue
        try:
            _build(job, params, folder)
        except Exception:
            # The trial with these values will say it, if there is one.
            continue
        names |= set(params)
    # On cores a model may read more than here: the first trial tells.
    if not job.settings.use_tpu:
        check_all_read(job, names)


def check_all_read(job: TuneJob, names: Mapping[str, Any] | set[str]) -> None:
    """Checks that each of some params has been read."""
    if unread := job.reads.unread(names):
        raise UnreadParamError(explain_unread(unread, job.reads.seen, of_search=names))


def _build(job: TuneJob, params: Mapping[str, Any], folder: str) -> None:
    estimator = job.estimator(params, folder, on_host=True)
    config = estimator.config
    given = {**estimator.params, "batch_size": job.settings.train_batch_size}
    with tf.Graph().as_default():
        tf.compat.v1.train.create_global_step()
        returned = call_input_fn(
            job.train_input_fn(), mode=ModeKeys.TRAIN, params=given, config=config
        )
        inputs = as_input_tensors(returned)
        estimator.model_fn(inputs.features, inputs.labels, ModeKeys.TRAIN, config)
    estimator.build_graphs(eval_input_fn=job.eval_input_fn, eval_steps=job.fn_args.eval_steps)
