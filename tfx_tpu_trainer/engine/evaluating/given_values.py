"""Evaluation of values that no checkpoint has."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine.evaluating.evaluation_plan import EvaluationPlan

v1 = tf.compat.v1


def with_values(plan: EvaluationPlan, values: Mapping[str, Any]) -> EvaluationPlan:
    """Returns a plan whose session starts from values that are given, and not from a checkpoint.

    Must be called with the plan's graph as the default one.

    Args:
        plan: An evaluation whose scaffold has no init_fn.
        values: Name of a variable -> its value. Variables that are not named are initialized;
            names that the graph does not have are passed over.

    Returns:
        The plan.
    """
    fed, assigned = {}, []
    for variable in v1.global_variables():
        if variable.name in values:
            placeholder = v1.placeholder(variable.dtype.base_dtype, variable.shape)
            fed[placeholder] = values[variable.name]
            assigned.append(v1.assign(variable, placeholder))
    assign = tf.group(*assigned)
    make_scaffold = plan.template.make_scaffold

    def load(scaffold: v1.train.Scaffold, session: v1.Session) -> None:
        del scaffold
        session.run(assign, feed_dict=fed)

    def make_loading_scaffold() -> v1.train.Scaffold:
        return v1.train.Scaffold(init_fn=load, copy_from_scaffold=make_scaffold())

    template = dataclasses.replace(plan.template, make_scaffold=make_loading_scaffold)
    return dataclasses.replace(plan, template=template)
