"""Private names of TensorFlow with which a proof gives random ops the same seeds on both sides.

`tensorflow.python.framework.random_seed.get_seed`: TensorFlow makes an op's seed from the number of ops in the graph,
which differs between versions. Its own modules call the function through this module, so replacing the public alias,
`tf.compat.v1.random.get_seed`, would have no effect.
"""

import contextlib
import weakref
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.framework import random_seed


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Numbers each graph's random ops in the order in which the program makes them."""
    original = random_seed.get_seed
    made: weakref.WeakKeyDictionary[tf.Graph, int] = weakref.WeakKeyDictionary()

    def get_seed(op_seed: int | None) -> tuple[int, int]:
        if op_seed is not None:
            return original(op_seed)
        graph = tf.compat.v1.get_default_graph()
        made[graph] = made.get(graph, 0) + 1
        return original(made[graph])

    vars(random_seed)["get_seed"] = get_seed
    try:
        yield
    finally:
        vars(random_seed)["get_seed"] = original
