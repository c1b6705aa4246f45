"""How a model_fn is traced: in which mode, and whether for one host or for several cores.

The caller of a user's model_fn knows where it runs, and the heads and optimizers that model_fn
calls need to know it too. An argument would have to pass through the user's code, whose calls of
`Head.create_estimator_spec` follow the original's API.
"""

import contextlib
import contextvars
from collections.abc import Iterator


class ModeKeys:
    """Names of the modes, with the values of `tf.estimator.ModeKeys`."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


_on_cores: contextvars.ContextVar[bool] = contextvars.ContextVar("on_cores", default=False)


@contextlib.contextmanager
def on_cores() -> Iterator[None]:
    """Makes heads inside return specs that TPU cores, or replicas of a strategy, can run together."""
    # A model_fn that was written for one host then trains on cores: heads and canned estimators wrap v1 and Keras
    # optimizers in a `CrossShardOptimizer`, which sums or averages gradients as the loss does the rows' losses. Metrics
    # become functions of the tensors of all cores, and summaries are left out.
    token = _on_cores.set(True)
    try:
        yield
    finally:
        _on_cores.reset(token)


def is_on_cores() -> bool:
    """Returns whether the caller is inside `on_cores()`."""
    return _on_cores.get()
