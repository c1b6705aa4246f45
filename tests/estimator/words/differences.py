"""Where ours says something else, and why."""

from __future__ import annotations

# Case -> why ours differs.
CASES: dict[str, str] = {
    "estimator.evaluate_checkpoint_that_is_missing": "TensorFlow's NotFoundError, with the "
    "checkpoints that there are; the original hands on the Saver's ValueError",
    "estimator.predict_checkpoint_that_is_missing": "as in evaluate",
    "hooks.in_memory_with_a_saver": "found only when the evaluation's session is made",
    "hooks.in_memory_with_an_init_fn": "the evaluation runs it",
}
