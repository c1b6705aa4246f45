"""The lines of a training's and an evaluation's hooks, number by number."""

from tests.estimator.words import hook_lines
from tests.estimator.words.stacks import Stack
from tfx_tpu_trainer import estimator
from tfx_tpu_trainer._support import progress_views
from tfx_tpu_trainer.estimator import tpu, v1

_TRAINING = """Calling model_fn.
Done calling model_fn.
Saving checkpoints for 0 into model.ckpt.
loss = 2.5, step = 0
loss = 0.0, step = 100 (SECONDS)
loss = 0.0, step = 200 (SECONDS)
Saving checkpoints for 201 into model.ckpt.
Loss for final step: 0.0."""
_BEFORE_EVALUATION = """Calling model_fn.
Done calling model_fn.
Starting evaluation at TIME
Restoring parameters from model.ckpt-201"""
_AFTER_EVALUATION = """Inference Time : SECONDS
Finished evaluation at TIME
Saving dict for global step 201: global_step = 201, loss = 0.0
Saving 'checkpoint_path' summary for global step 201: model.ckpt-201"""


def _evaluation(steps: int, shown: list[int]) -> list[str]:
    between = [f"Evaluation [{step}/{steps}]" for step in shown]
    return [*_BEFORE_EVALUATION.split("\n"), *between, *_AFTER_EVALUATION.split("\n")]


def test_losses_are_said_at_steps_0_100_200_and_evaluations_every_tenth(monkeypatch):
    # The original has no least time between lines.
    monkeypatch.setattr(progress_views, "LINE_SECONDS", 0.0)
    with Stack(estimator, v1, tpu) as stack:
        said = hook_lines.lines(stack)
    assert said == [
        *_TRAINING.split("\n"),
        *_evaluation(3, [1, 2, 3]),
        *_evaluation(25, [*range(2, 25, 2), 25]),
    ]
