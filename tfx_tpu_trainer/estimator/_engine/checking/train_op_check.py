"""Tells whether a train_op trains, and whether its gradients are those of all cores."""

from __future__ import annotations

from collections.abc import Collection

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.checking.source_lines import source_line
from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import SUM
from tfx_tpu_trainer.estimator._engine.copying.outside_compilation import (
    is_outside,
    python_of_gradient,
)
from tfx_tpu_trainer.estimator._engine.copying.variable_changes import CHANGES, VariableChanges
from tfx_tpu_trainer.estimator._engine.graph_nodes import all_nodes, upstream
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate

v1 = tf.compat.v1
_logger = tf.get_logger()

# What may change a variable out of sight.
_HIDDEN_CHANGES = (
    "LookupTableImport",
    "LookupTableInsert",
    "PyFunc",
    "EagerPyFunc",
    "SendTPUEmbeddingGradients",
)


def check_train_op(template: ModelTemplate) -> bool:
    """Warns of a train_op that changes no variable but counters, where there is something to train.

    Dry runs have such a train_op on purpose, so training goes on. Others lost their optimizer's op
    on the way: the run would go through all its steps and change nothing.
    """
    trainable = {variable.op.name for variable in v1.trainable_variables()}
    graph_def = template.graph.as_graph_def()
    changes = VariableChanges(graph_def.library, changes=(*CHANGES, *_HIDDEN_CHANGES))
    # Each op's own `node_def` would be a message made anew, sent as bytes and read again.
    changing = {node.name for node in graph_def.node if changes.made_by(node)}
    made = [op for op in upstream([template.train_op]) if op.name in changing and not _counts(op)]
    if not made and trainable:
        _logger.warning(
            "train_op %r changes no variable except the global step, although the model has %d "
            "trainable ones: training will not change them. %s",
            getattr(template.train_op, "name", None),
            len(trainable),
            _likely_cause(template.graph, changing, trainable),
        )
    changed = {_variable_of(op) for op in made}
    return bool(trainable) and (None in changed or not trainable.isdisjoint(changed))


def check_training_on_cores(
    template: ModelTemplate, *, cores: int, only_outside: bool = False
) -> None:
    """Checks a train_op, and that several cores that train do it together.

    Args:
        template: A template of mode `"train"`.
        cores: Number of replicas.
        only_outside: Whether Python is looked for in `outside_compilation` alone, as for a preflight, which reports
            any other as an op that no TPU runs. Defaults to `False`.

    Raises:
        ValueError: If several cores train without a sum over replicas, or with the gradient of a
            `tf.py_function`.
    """
    if check_train_op(template) and cores > 1:
        check_gradients_are_combined(template.graph)
        _check_no_gradient_of_python(template, cores=cores, only_outside=only_outside)


def check_gradients_are_combined(graph: tf.Graph) -> None:
    """Refuses training on several replicas that never sums over them."""
    if not any(node.op == SUM for node in all_nodes(graph.as_graph_def())):
        raise ValueError(
            "CrossShardOptimizer must be used for model training on TPUs: the graph has no "
            "CrossReplicaSum, so each core would train on its own. Wrap the optimizer: "
            "tf.compat.v1.tpu.CrossShardOptimizer(optimizer)."
        )


def _check_no_gradient_of_python(
    template: ModelTemplate, *, cores: int, only_outside: bool
) -> None:
    """Refuses the gradient of a `tf.py_function`, which TensorFlow keeps in mind for one call at a time.

    The calls of several cores in one process would take each other's.
    """
    for op in upstream([template.train_op]):
        forward = python_of_gradient(op)
        if forward is not None and (is_outside(forward.node_def) or not only_outside):
            raise ValueError(
                f"The gradient of tf.py_function {forward.name!r} can't be computed on {cores} cores: "
                "TensorFlow remembers one call of a function, and each core has its own. Write the "
                "gradient with tf.custom_gradient, calling tf.numpy_function in both directions. "
                f"({source_line(forward) or 'its source line is not known'})"
            )


def _likely_cause(graph: tf.Graph, changing: Collection[str], trainable: Collection[str]) -> str:
    unused = [
        op.name
        for op in graph.get_operations()
        if op.name in changing and _variable_of(op) in trainable and not _initializes(op)
    ]
    if unused:
        return (
            f"The graph has {unused[-1]!r}, which would change one, but train_op does not run it: "
            "return the result of the optimizer's minimize() or apply_gradients(), alone or in a "
            "tf.group with the rest."
        )
    return (
        "The graph has no op of an optimizer: return the result of an optimizer's minimize() or "
        "apply_gradients(), such as tf.compat.v1.train.AdamOptimizer's; a dry run needs none."
    )


def _counts(op: tf.Operation) -> bool:
    """Tells whether an op changes a counter: the global step, or an optimizer's own."""
    variable = op.inputs[0].op if op.inputs else None
    return (
        variable is not None
        and variable.type == "VarHandleOp"
        and variable.get_attr("dtype").is_integer
        and not variable.get_attr("shape").dim
    )


def _variable_of(op: tf.Operation) -> str | None:
    """Returns the name of the variable that an op takes first; `None` where it takes another input."""
    first = op.inputs[0].op if op.inputs else None
    return first.name if first is not None and first.type == "VarHandleOp" else None


def _initializes(op: tf.Operation) -> bool:
    # TensorFlow names a resource variable's initializer after the variable.
    return op.name == f"{_variable_of(op)}/Assign"
