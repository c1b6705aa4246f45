"""Checks that several replicas train one model together, by gradients that are summed over all of them."""

from __future__ import annotations

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import SUM
from tfx_tpu_trainer.estimator._engine.graph_nodes import all_nodes, upstream
from tfx_tpu_trainer.estimator._engine.source_lines import source_line
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate
from tfx_tpu_trainer.estimator._engine.training.training_plan import check_train_op
from tfx_tpu_trainer.estimator.places.outside_compilation import is_outside, python_of_gradient


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
