"""Refuses a train_op that trains nothing."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from tfx_tpu_trainer.engine.copying.variable_changes import CHANGES, VariableChanges
from tfx_tpu_trainer.engine.template import ModelTemplate

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


def check_train_op(template: ModelTemplate) -> None:
    """Refuses a train_op that changes no variable but the global step.

    Keras optimizers of today, used as if they were v1 ones, give such an op in a graph: the run
    would go through all its steps and change nothing. A model with hooks of its own may train in
    them, so there it is only a warning.

    Args:
        template: A template of mode `"train"`.

    Raises:
        ValueError: If there is something to train and train_op does not.
    """
    if not v1.trainable_variables() or _changes_a_variable(template):
        return
    name = getattr(template.train_op, "name", None)
    message = (
        f"train_op {name!r} changes no variable but the global step, though there are "
        f"{len(v1.trainable_variables())} trainable ones. The optimizer{_optimizer_name()} "
        "updates nothing in a graph, as Keras optimizers do: use one of tf.compat.v1.train, "
        "tf.compat.v1.train.AdamOptimizer for instance, and return what its minimize() gives; "
        "or one of tf.keras.optimizers.legacy, and what its apply_gradients() gives."
    )
    if template.hooks or template.chief_hooks:
        _logger.warning("%s The model's hooks are expected to do it.", message)
        return
    raise ValueError(message)


def _changes_a_variable(template: ModelTemplate) -> bool:
    library = template.graph.as_graph_def().library
    changes = VariableChanges(library, changes=(*CHANGES, *_HIDDEN_CHANGES))
    return any(
        changes.made_by(op.node_def) and not _counts(op) for op in _upstream(template.train_op)
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


def _upstream(node: tf.Tensor | tf.Operation) -> Iterator[tf.Operation]:
    """Goes through all that runs when a node does."""
    pending = [node if isinstance(node, tf.Operation) else node.op]
    seen = set(pending)
    while pending:
        op = pending.pop()
        yield op
        for before in (*(tensor.op for tensor in op.inputs), *op.control_inputs):
            if before not in seen:
                seen.add(before)
                pending.append(before)


def _optimizer_name() -> str:
    """Names the optimizer by the scope of its slots: `" 'Adam'"`; or nothing."""
    trainable = {variable.op.name for variable in v1.trainable_variables()}
    leaves = {name.rpartition("/")[2] for name in trainable}
    for variable in v1.global_variables():
        scope, _, rest = variable.op.name.partition("/")
        if variable.op.name not in trainable and any(leaf in rest for leaf in leaves):
            return f" {scope!r}"
    return ""
