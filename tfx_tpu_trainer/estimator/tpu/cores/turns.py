"""Whether emulated cores run one after the other, so that one core's gradients are held at a time."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import EXCHANGES
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import GraphCopier
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream

# Cores side by side are faster, by 8 % for eight of BERT-base on two processors.
_MOST_BYTES_AT_ONCE = 1 << 30


def ends_of_turns(
    copier: GraphCopier,
    nodes: Sequence[tf.Tensor | tf.Operation],
    *,
    inputs: Sequence[tf.Tensor],
    cores: int,
) -> list[tf.Tensor]:
    """Chooses what a core must have made before the next one begins.

    Cores that run side by side hold as many gradients as there are cores: of BERT-base 0.44 GB each.
    In turns, each core's gradients are added to those before as soon as they are there.
    """
    # A core's turn ends with the gradients that it adds to those of the cores before: core 1 begins once core 0's are
    # there, and their sum is all that is held of both. Without the rule TensorFlow would start all cores at once.
    given = {tensor.name for tensor in inputs}
    sums = [op for op in upstream(nodes, given=given) if op.type in EXCHANGES]
    summed = [op.inputs[0] for op in sums if op.inputs[0].name not in given]
    sizes = [tensor.shape.num_elements() or 0 for tensor in summed]
    held = sum(size * tensor.dtype.size for size, tensor in zip(sizes, summed))
    if (cores - 1) * held <= _MOST_BYTES_AT_ONCE:
        return []
    before = list(upstream(summed, given=given))
    if any(copier.reads_other_replicas(op) or copier.is_change(op) for op in before):
        return []
    return summed
