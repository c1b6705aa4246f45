"""Updates of tables by `tf.compat.v1.train.AdamOptimizer`, in one op instead of some twenty.

From a gradient that holds the looked-up rows of a table, Adam updates the whole table all the same: the moments of all
rows decay, and all rows move. It does so op by op, each of which goes through the table, and as some of them change
rows in place, TensorFlow copies a variable for each that reads it. A gradient of the table's shape it applies by one op
that goes through the table once; on a TPU that is what happens, as `CrossShardOptimizer` sums such gradients only.

| name | why | if it goes away |
|---|---|---|
| `Optimizer._resource_apply_sparse_duplicate_indices` and the methods of `AdamOptimizer` in `_METHODS` | where subclasses say how gradients are applied; nothing public chooses the fused op for a gradient of rows | update op by op |
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

v1 = tf.compat.v1

_METHOD = "_resource_apply_sparse_duplicate_indices"
# What a subclass must have left as it is, so that its updates are Adam's.
_METHODS = (
    "_apply_sparse_shared",
    "_resource_apply_dense",
    "_resource_apply_sparse",
    "_resource_scatter_add",
)

_lock = threading.Lock()
_users = 0


@contextlib.contextmanager
def tables_updated_in_one_op() -> Iterator[None]:
    """Makes Adam apply gradients of rows in one op, in all threads.

    Numbers are those of the ops in its place up to rounding. Subclasses with updates of their own keep them, and so does
    Adam where a program has given it another method.
    """
    global _users
    adam = v1.train.AdamOptimizer
    with _lock:
        # It inherits the method.
        if _METHOD not in vars(adam):
            setattr(adam, _METHOD, _apply_rows)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users and vars(adam).get(_METHOD) is _apply_rows:
                delattr(adam, _METHOD)


def _apply_rows(
    self: v1.train.AdamOptimizer, grad: tf.Tensor, handle: tf.Variable, indices: tf.Tensor
) -> tf.Operation:
    """Stands for the method of `tf.compat.v1.train.Optimizer`."""
    adam = v1.train.AdamOptimizer
    if any(getattr(type(self), name) is not getattr(adam, name) for name in _METHODS):
        return getattr(super(adam, self), _METHOD)(grad, handle, indices)
    rows = handle.shape[0]
    if rows is None:
        rows = tf.shape(handle)[0]
    # A row that was looked up several times has the sum of its gradients, as Adam itself has it.
    summed = tf.math.unsorted_segment_sum(grad, indices, rows)
    return self._resource_apply_dense(summed, handle)
