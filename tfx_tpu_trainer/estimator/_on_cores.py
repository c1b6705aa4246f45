"""A context in which heads and optimizers know that they are traced for several cores or replicas.

It is the only context of its kind. The caller of a user's model_fn knows the place, and the heads
and optimizers that model_fn calls must know it too. An argument would have to go through the
user's code, whose calls of `Head.create_estimator_spec` are those of the original's API.
"""

import contextlib
import contextvars
from collections.abc import Iterator

_on_cores: contextvars.ContextVar[bool] = contextvars.ContextVar("on_cores", default=False)


@contextlib.contextmanager
def on_cores() -> Iterator[None]:
    """Makes heads inside give what TPU cores, or replicas of a strategy, can run together.

    A model_fn that was written for one host trains on cores when it is called in here: heads and canned estimators wrap
    every optimizer in a `CrossShardOptimizer`, v1 and Keras ones alike, so that gradients are combined as the rows'
    losses were, summed or averaged. Metrics become functions of what all cores computed, and summaries are left out.
    """
    token = _on_cores.set(True)
    try:
        yield
    finally:
        _on_cores.reset(token)


def is_on_cores() -> bool:
    """Tells whether the caller is inside of `on_cores()`."""
    return _on_cores.get()
