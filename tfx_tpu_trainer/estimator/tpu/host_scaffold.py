"""Makes a model's scaffold on the host, apart from what runs on the cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1

_OP_FIELDS = (
    "init_op",
    "ready_op",
    "ready_for_local_init_op",
    "local_init_op",
    "summary_op",
)


def make_host_scaffold(
    scaffold_fn: Callable[[], v1.train.Scaffold | None], inputs: Sequence[tf.Tensor | None]
) -> v1.train.Scaffold:
    """Calls scaffold_fn and checks that its result can run without the cores.

    Args:
        scaffold_fn: The user's function.
        inputs: What each core reads its rows from; `None` entries are passed over.

    Returns:
        The scaffold.

    Raises:
        ValueError: If there is none, or an op that it made or names depends on a core's rows.
    """
    graph = v1.get_default_graph()
    known = len(graph.get_operations())
    scaffold = scaffold_fn()
    if scaffold is None:
        raise ValueError(
            "TPUEstimatorSpec.scaffold_fn returns None, which is not allowed: it must return a "
            "tf.compat.v1.train.Scaffold. Leave it out where none is needed. scaffold_fn: "
            f"{scaffold_fn!r}"
        )
    named = [getattr(scaffold, field) for field in _OP_FIELDS]
    nodes = [getattr(node, "op", node) for node in tf.nest.flatten(named)]
    ops = [*graph.get_operations()[known:], *(op for op in nodes if isinstance(op, tf.Operation))]
    on_cores = {tensor.op for tensor in inputs if tensor is not None}
    for op in ops:
        if _depends_on(op, on_cores):
            raise ValueError(
                f"scaffold_fn: op {op.name!r} depends on TPU computation, which is not allowed: "
                "a scaffold runs on the host, without the features and labels of a core."
            )
    return scaffold


def _depends_on(op: tf.Operation, sources: Iterable[tf.Operation]) -> bool:
    sources = set(sources)
    pending: list[Any] = [op]
    seen = {op}
    while pending:
        current = pending.pop()
        if current in sources:
            return True
        before = {*(tensor.op for tensor in current.inputs), *current.control_inputs} - seen
        seen |= before
        pending.extend(before)
    return False
