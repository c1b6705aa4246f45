"""Names layers that make a training depend on how many cores share its rows: batch statistics and random draws."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import EXCHANGES
from tfx_tpu_trainer.estimator._engine.graph_nodes import functions_of, nodes_called, upstream
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate

v1 = tf.compat.v1
_logger = tf.get_logger()

_DRAWS = re.compile(r"^(Stateless|Parameterized)?(Random|TruncatedNormal|Multinomial)(?!.*Dataset)")
# The op name of tf.nn.moments, which unfused batch norms call; so do layer norms, over other axes.
_MOMENTS = re.compile(r"(?:^|/)moments(_\d+)?/mean$")


def warn_of_per_core_ops(
    template: ModelTemplate, *, replicas: tuple[int, int], rows: tuple[int, int]
) -> None:
    """Logs one line about a training that continues with other replicas, if anything differs.

    Args:
        template: A template of mode `"train"`.
        replicas: The earlier and the current number of copies of the model.
        rows: The earlier and the current number of rows of a step in each copy.
    """
    if replicas[0] == replicas[1] and rows[0] == rows[1]:
        return
    moved = (
        f"This training had {_counted(replicas[0], 'replica')} of {_counted(rows[0], 'row')} and continues with "
        f"{replicas[1]} of {_counted(rows[1], 'row')}"
    )
    causes = []
    if rows[0] != rows[1] and (layers := _layers(template, _takes_statistics)):
        causes.append(
            f"{layers} now normalizes over {_counted(rows[1], 'row')} of a replica instead of {rows[0]}"
        )
    if layers := _layers(template, _draws):
        causes.append(f"{layers} draws other numbers, as each replica draws its own")
    if causes:
        _logger.warning(
            "%s. It no longer equals one that stayed: %s. The rows of each step are the same.",
            moved,
            "; ".join(causes),
        )
    else:
        _logger.info("%s, with the same rows in each step.", moved)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _layers(template: ModelTemplate, wanted: Callable[[tf.Operation, v1.NodeDef], bool]) -> str:
    """Names the layers with certain ops upstream of the loss, unless an exchange between replicas evens them out."""
    graph = template.graph
    exchanged = {
        output.name
        for op in graph.get_operations()
        if op.type in EXCHANGES
        for output in op.outputs
    }
    functions = functions_of(graph.as_graph_def().library)
    found: dict[str, str] = {}
    for op in upstream([graph.as_graph_element(template.loss)], given=exchanged):
        for node in _nodes_of(op, functions):
            if wanted(op, node):
                found.setdefault(_layer(op.name), node.op)
    return ", ".join(f"{name} ({kind})" for name, kind in sorted(found.items()))


def _nodes_of(op: tf.Operation, functions: dict[str, v1.FunctionDef]) -> Iterator[v1.NodeDef]:
    yield op.node_def
    yield from nodes_called([op.node_def], functions)


def _takes_statistics(op: tf.Operation, node: v1.NodeDef) -> bool:
    if node.op.startswith("FusedBatchNorm"):
        # Keras implements layer norm with this op, with rows as the channels of a batch of 1.
        in_channels = node.attr["data_format"].s == b"NCHW" and op.inputs[0].shape[:1] == [1]
        return node.attr["is_training"].b and not in_channels
    if node.op != "Mean" or node.name != op.name or not _MOMENTS.search(op.name):
        return False
    axes = tf.get_static_value(op.inputs[1])
    return axes is not None and 0 in np.ravel(axes)


def _draws(op: tf.Operation, node: v1.NodeDef) -> bool:
    del op
    return bool(_DRAWS.match(node.op))


def _layer(name: str) -> str:
    """Returns an op's layer: "deep/dropout" for "deep/dropout/dropout/random_uniform/RandomUniform"."""
    scopes = name.split("/")[:-1] or [name]
    while len(scopes) > 1 and re.match(
        r"(moments|random_uniform|random_normal)(_\d+)?$", scopes[-1]
    ):
        scopes.pop()
    if len(scopes) > 1 and scopes[-1] in (scopes[-2], "dropout"):
        scopes.pop()
    return "/".join(scopes)
