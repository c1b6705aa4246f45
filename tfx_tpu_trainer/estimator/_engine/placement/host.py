"""The host placement: the template's nodes run where they were traced, on this machine.

Shared by training, evaluation and prediction with `use_tpu=False`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.checking.ops_on_emulated_cores import (
    refuse_ops_that_end_the_process,
)
from tfx_tpu_trainer.estimator._engine.checkpointing.graph_files import OneCoreGraphHook
from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import SUM
from tfx_tpu_trainer.estimator._engine.copying.one_core import addend, bypass_sums
from tfx_tpu_trainer.estimator._engine.copying.variable_changes import VariableChanges
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream
from tfx_tpu_trainer.estimator._engine.reporting.summary_hooks import HostCallHook
from tfx_tpu_trainer.estimator._engine.template import HostFunction, ModelTemplate

v1 = tf.compat.v1


def place_on_host(
    template: ModelTemplate, *, read_before_changes: tf.Tensor | None = None
) -> tuple[ModelTemplate, list[v1.train.SessionRunHook]]:
    """Makes a template runnable on one host.

    Sums over cores become what they are on one core, so that a model_fn with a
    `CrossShardOptimizer` trains here too: TensorFlow has no CPU kernel for `CrossReplicaSum`.
    The host_call, if there is one, is called and runs with every step. What it needs of a variable
    is read before the step changes it, as everywhere else, unless the model says otherwise.

    Args:
        template: The template. Its graph must be the default one and not have run yet; it is
            changed in place.
        read_before_changes: A reading of a variable that comes before the step changes it.
            Defaults to `None`.

    Returns:
        The template to run, and the hooks that the session needs for it.

    Raises:
        ValueError: It has an op at which TensorFlow itself would end the process here.
    """
    refuse_ops_that_end_the_process(template)
    hooks: list[v1.train.SessionRunHook] = []
    if any(op.type == SUM for op in template.graph.get_operations()):
        # They stay in the graph, unread, and in no file of it.
        hooks.append(OneCoreGraphHook(cores=1))
    bypass_sums(template.graph)
    template = dataclasses.replace(
        template,
        loss=_without_sums(template.loss),
        predictions=_without_sums(template.predictions),
        eval_metrics=_with_addends(template.eval_metrics),
        eval_metric_ops=_without_sums(template.eval_metric_ops),
        host_call=_with_addends(template.host_call),
    )
    if read_before_changes is not None:
        _let_reads_come_first(template.graph, [read_before_changes], train_op=template.train_op)
    if template.host_call is None:
        return template, hooks
    fetched = template.host_call()
    # What host_call made was not there at the first look.
    refuse_ops_that_end_the_process(dataclasses.replace(template, predictions=fetched))
    if template.train_op is not None:
        _let_reads_come_first(template.graph, fetched, train_op=template.train_op)
    return template, [*hooks, HostCallHook(fetched)]


def check_runs_in_cluster(graph: tf.Graph) -> None:
    """Checks that a graph placed on the host can be sent to another process's session.

    Sums that are passed by are still nodes of it, and a distributed session wants a kernel for each
    node.

    Args:
        graph: The graph.

    Raises:
        ValueError: It has a sum over cores.
    """
    for op in graph.get_operations():
        if op.type == SUM:
            raise ValueError(
                f"{op.name!r} is a sum over TPU cores (CrossReplicaSum), which can't run in the "
                "processes of a TF_CONFIG cluster: wrap the optimizer in CrossShardOptimizer only "
                "if params['use_tpu'] is true."
            )


def _let_reads_come_first(graph: tf.Graph, fetched: Any, *, train_op: Any) -> None:
    """Makes a step's changes of variables wait for what reads them and does not wait for a change.

    In a session either may come first. Functions order them: see `reads_before_changes`.

    Args:
        graph: The graph of both.
        fetched: Nested structure of what reads.
        train_op: What changes.
    """
    kinds = (tf.Operation, tf.Tensor, tf.Variable)
    flat = tf.nest.flatten(fetched, expand_composites=True)
    wanted = [graph.as_graph_element(node) for node in flat if isinstance(node, kinds)]
    needed = set(upstream(wanted))
    of_step = set(upstream([graph.as_graph_element(train_op)]))
    if any(op.type == "Enter" for op in needed):
        # No op outside of a loop of TensorFlow 1 can wait for one inside.
        return
    changes = VariableChanges(graph.as_graph_def().library)
    changing, waiting = [], set[tf.Operation]()
    readers: dict[str, list[tf.Operation]] = {}
    for op in graph.get_operations():
        if op not in needed and op not in of_step:
            continue
        if changes.made_by(op.node_def):
            changing.append(op)
            waiting.add(op)
        elif not waiting.isdisjoint([*(tensor.op for tensor in op.inputs), *op.control_inputs]):
            waiting.add(op)
        elif op in needed:
            for handle in _handles(op):
                readers.setdefault(handle, []).append(op)
    for op in changing:
        reads = [read for handle in _handles(op) for read in readers.get(handle, ())]
        if op in of_step and reads:
            done = [end for read in reads for end in _ends(read)]
            tf_private.replace_control_inputs(op, [*op.control_inputs, *done])


def _ends(op: tf.Operation) -> list[tf.Operation]:
    """Returns what to wait for so that an operation's reads are done.

    A call or a conditional is taken apart when it runs, and what waits for it alone need not wait
    for the reads in it; what waits for its results does.
    """
    if op.type == "ReadVariableOp":
        return [op]
    return [tf.identity(result).op for result in op.outputs if result.dtype != tf.resource]


def _handles(op: tf.Operation) -> list[str]:
    return [tensor.name for tensor in op.inputs if tensor.dtype == tf.resource]


def _without_sums(structure: Any) -> Any:
    """Replaces the sums that a template names itself: what is made of them comes later."""
    return tf.nest.map_structure(addend, structure)


def _with_addends(function: HostFunction | None) -> HostFunction | None:
    if function is None:
        return None
    return dataclasses.replace(function, tensors=_without_sums(function.tensors))
