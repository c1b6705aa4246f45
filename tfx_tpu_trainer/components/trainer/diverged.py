"""A model whose numbers have run away: told before anything of it is published."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.components.evaluation import EvalMetrics

_MOST_NAMES = 5


class ModelDivergedError(RuntimeError):
    """A trained model has metrics or variables that are not finite."""


def check_finite(metrics: EvalMetrics) -> None:
    """Checks that neither the metrics nor the evaluated checkpoint show a diverged model.

    The loss of the last step may be finite and what the step made of the variables not: training
    ends without an error then, and the loss is NaN only when somebody asks the served model.
    """
    found = [f"{name} is {metrics.overall[name]}" for name in metrics.diverged]
    if metrics.checkpoint and tf.io.gfile.exists(f"{metrics.checkpoint}.index"):
        variables = list(_not_finite(metrics.checkpoint))
        shown = ", ".join(variables[:_MOST_NAMES])
        more = len(variables) - _MOST_NAMES
        if variables:
            found.append(
                f"{shown}{f' and {more} more variables' if more > 0 else ''} in {metrics.checkpoint}"
            )
    if found:
        raise ModelDivergedError(
            f"the model has diverged by step {metrics.global_step}, and is not exported: "
            f"{'; '.join(found)}. Lower the learning rate, clip the gradients, or stop earlier "
            "(early_stopping_patience exports the best checkpoint)"
        )


def _not_finite(checkpoint: str) -> Iterator[str]:
    reader = tf.train.load_checkpoint(checkpoint)
    for name, dtype in sorted(reader.get_variable_to_dtype_map().items()):
        if dtype.is_floating or dtype.is_complex:
            # One at a time: a model may fill most of the memory.
            values = reader.get_tensor(name)
            wrong = values.size - np.count_nonzero(np.isfinite(values))
            if wrong:
                yield f"{name} ({wrong:,} of {values.size:,} values are NaN or Inf)"
