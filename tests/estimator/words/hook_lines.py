"""What TensorFlow's hooks and loops say on the way of a short training and evaluation.

Runs on both stacks. The original's lines, which `test_words.py` expects, come of

    PYTHONPATH=. /tmp/original/bin/python -m tests.estimator.words.hook_lines

where /tmp/original is the environment that `record_original.py` describes. The original reads the
step beside its update, so a loss that is ready too soon may go with the next step's number.
"""

import logging
import re
from typing import Any

import tensorflow as tf

from tests.estimator.words import outcomes
from tests.estimator.words.stacks import Stack

_EARLIER = re.compile(r"^(loss =|Calling m|Done calling m|Restoring|Starting ev|Evaluation \[)")
_LATER = re.compile(r"^(Inference Time|Finished ev|Saving (dict|'ch)|Loss for final|Saving check)")
_VARYING = (
    (re.compile(r"/\S*/model\.ckpt"), "model.ckpt"),
    (re.compile(r" \(\d+\.\d+ sec\)"), " (SECONDS)"),
    (re.compile(r"\d{4}-\d\d-\d\d[T-][\d:]+"), "TIME"),
    (re.compile(r"\d+\.\d+s"), "SECONDS"),
)


def _model_fn(stack: Stack) -> Any:
    """The model of the cases, whose loss takes longer than the step's update."""

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        slow = tf.random.uniform([300, 300], seed=1)
        for _ in range(3):
            slow = slow @ slow / 300.0
        x = features["x"] + 0.0 * tf.reduce_max(slow)
        return stack.spec({"x": x}, labels, mode)

    return model_fn


def lines(stack: Stack) -> list[str]:
    """Returns the lines of 201 steps and of two evaluations, without what varies."""
    heard, logger = outcomes.Heard(), tf.get_logger()
    before = logger.level, logger.propagate, logger.handlers
    logger.propagate, logger.handlers = False, [heard]
    logger.setLevel(logging.INFO)
    try:
        estimator = stack.estimator(_model_fn(stack))
        estimator.train(stack.input_fn, steps=201)
        estimator.evaluate(stack.input_fn, steps=3)
        estimator.evaluate(stack.input_fn, steps=25)
    finally:
        level, logger.propagate, logger.handlers = before
        logger.setLevel(level)
    said = [record.getMessage() for record in heard.records]
    said = [line for line in said if _EARLIER.match(line) or _LATER.match(line)]
    for pattern, same in _VARYING:
        said = [pattern.sub(same, line) for line in said]
    return said


if __name__ == "__main__":
    v1 = tf.compat.v1.estimator
    with Stack(tf.estimator, v1, v1.tpu) as original:
        print("\n".join(lines(original)))
