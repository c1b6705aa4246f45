"""Variables of any size that take no memory, for what asks for their shapes only."""

from __future__ import annotations

import contextlib
import math
import mmap
import tempfile
import uuid
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf


@contextlib.contextmanager
def valueless_variables(specs: Mapping[str, tf.TensorSpec]) -> Iterator[dict[str, tf.Tensor]]:
    """Makes variables whose values nobody may read.

    They all share the pages of one empty file, none of which is ever read or written. So a state
    that is larger than this machine's memory can be there: TensorFlow looks a variable's shape up in
    its value.

    Args:
        specs: Name of a variable -> its static shape and dtype.

    Yields:
        Name -> handle; valid inside only.
    """
    largest = max((_bytes(spec) for spec in specs.values()), default=0)
    handles: dict[str, tf.Tensor] = {}
    with tempfile.TemporaryFile() as file, tf.device("/CPU:0"):
        file.truncate(max(largest, mmap.PAGESIZE))
        pages = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
        try:
            for name, spec in specs.items():
                handle = tf.raw_ops.VarHandleOp(
                    dtype=spec.dtype,
                    shape=spec.shape,
                    shared_name=f"preflight/{name}/{uuid.uuid4().hex}",
                )
                handles[name] = handle
                tf.raw_ops.AssignVariableOp(resource=handle, value=_value(pages, spec))
            yield handles
        finally:
            for handle in handles.values():
                tf.raw_ops.DestroyResourceOp(resource=handle)


def _value(pages: np.ndarray, spec: tf.TensorSpec) -> tf.Tensor:
    """Returns a tensor that stands on the pages, without a copy of them."""
    if spec.dtype == tf.bool or not _bytes(spec):
        # Bits can't be taken for truth values; such variables are small.
        return tf.zeros(spec.shape, spec.dtype)
    size = spec.dtype.size
    raw = tf.experimental.dlpack.from_dlpack(pages[: _bytes(spec)].__dlpack__())
    if size > 1:
        raw = tf.reshape(raw, [-1, size])
    return tf.reshape(tf.bitcast(raw, spec.dtype), spec.shape)


def _bytes(spec: tf.TensorSpec) -> int:
    return math.prod(spec.shape.as_list()) * spec.dtype.size
