"""A call on this host: of an Estimator, and of a TPUEstimator with `use_tpu=False`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.copying.draws_by_step import draw_by_step
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation_plan import EvaluationPlan
from tfx_tpu_trainer.estimator._engine.evaluating.host_evaluation import plan_evaluation_on_host
from tfx_tpu_trainer.estimator._engine.feeding.input_pipeline import InputTensors, as_input_tensors
from tfx_tpu_trainer.estimator._engine.placement.host import check_runs_in_cluster, place_on_host
from tfx_tpu_trainer.estimator._engine.predicting.prediction import PredictionPlan
from tfx_tpu_trainer.estimator._engine.reporting.gradients import add_to_summaries
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate
from tfx_tpu_trainer.estimator._engine.training.training_plan import (
    TrainingPlan,
    plan_training_on_host,
)
from tfx_tpu_trainer.estimator._mode_keys import ModeKeys
from tfx_tpu_trainer.estimator._predicted_rows import select_predictions
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator.placements.placement import Call, Hooks, Trace, asked_of

v1 = tf.compat.v1
_logger = tf.get_logger()


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnHost:
    """A `Placement` on this host, whole batches at a time.

    Attributes:
        call: The call.
        input_context: What input_fn may know of other workers; `None` where there are none.
        warns_of_endless_input: Whether a prediction whose input nothing ends is told of. Defaults
            to `True`.
    """

    call: Call
    input_context: tf.distribute.InputContext | None = None
    warns_of_endless_input: bool = True

    def trace(self) -> Trace:
        """Calls input_fn and model_fn, and makes the template runnable here."""
        mode = self.call.mode
        inputs = as_input_tensors(self.call.call_input_fn({}, self.input_context))
        if mode == ModeKeys.PREDICT and self.warns_of_endless_input:
            _warn_of_endless_input(inputs)
        if mode != ModeKeys.TRAIN:
            inputs = inputs.with_hidden_batches()
        labels = None if mode == ModeKeys.PREDICT else inputs.labels
        spec = self.call.call_model_fn(inputs.features, labels, {})
        template = spec.as_template(mode=mode, features=inputs.features, labels=labels)
        step = None
        if mode == ModeKeys.TRAIN:
            step = _random_draws_by_step(template, self.call.config)
        template, placement_hooks = place_on_host(template, read_before_changes=step)
        return Trace(template, [*inputs.hooks, *placement_hooks])

    def plan_training(
        self, *, steps: int | None, max_steps: int | None
    ) -> tuple[TrainingPlan, Hooks]:
        """Plans training, a step in each session call that hooks must see; see `Placement`.

        Raises:
            ValueError: If the model sums over cores, and another process runs it.
        """
        trace = self.trace()
        if self.call.config.cluster_spec.jobs and self.call.config.master:
            check_runs_in_cluster(trace.template.graph)
        if asked := asked_of(self.call.config):
            add_to_summaries(trace.template, asked)
        plan = plan_training_on_host(trace.template, steps=steps, max_steps=max_steps)
        return plan, trace.hooks

    def plan_evaluation(self, *, steps: int | None) -> tuple[EvaluationPlan, Hooks]:
        """Plans an evaluation, a batch in each session call that hooks must see; see `Placement`."""
        trace = self.trace()
        return plan_evaluation_on_host(trace.template, steps=steps), trace.hooks

    def plan_prediction(
        self, predict_keys: Sequence[str] | str | None
    ) -> tuple[PredictionPlan, Hooks]:
        """Plans a prediction, a batch in each session call that hooks must see; see `Placement`."""
        trace = self.trace()
        predictions = select_predictions(trace.template.predictions, predict_keys)
        return PredictionPlan(trace.template, predictions), trace.hooks


def _random_draws_by_step(template: ModelTemplate, config: RunConfig) -> tf.Tensor | None:
    """Makes random ops draw by the global step where a training that resumes needs it, or XLA does.

    Returns:
        The global step as the ops read it; see `draw_by_step`.
    """
    if not (config.save_input_position or config.jit_compile):
        return None
    # TensorFlow refuses unseeded ops while ops have to be deterministic, and is to go on doing so.
    unseeded = bool(config.jit_compile) and not tf_private.is_op_determinism_enabled()
    return draw_by_step(template, unseeded=unseeded)


def _warn_of_endless_input(inputs: InputTensors) -> None:
    flat = tf.nest.flatten(inputs.features)
    ends = inputs.iterator is not None or any(
        isinstance(leaf, tf.Tensor) and leaf.op.type == "IteratorGetNext" for leaf in flat
    )
    if not ends and not v1.get_collection(v1.GraphKeys.QUEUE_RUNNERS):
        _logger.warning(
            "Input graph does not use tf.data.Dataset or contain a QueueRunner. That means "
            "predict yields forever. This is probably a mistake."
        )
