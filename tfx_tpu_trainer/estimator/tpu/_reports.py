"""What the training of a TPUEstimator reports: its speed and its loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tfx_tpu_trainer.estimator._engine.evaluating.evaluation_plan import EvaluationPlan
from tfx_tpu_trainer.estimator._engine.predicting.prediction import PredictionPlan
from tfx_tpu_trainer.estimator._engine.reporting.log_hooks import LossLogHook, ThroughputHook
from tfx_tpu_trainer.estimator._engine.training.training_plan import TrainingPlan
from tfx_tpu_trainer.estimator.places.place import Hooks, Placement, Trace
from tfx_tpu_trainer.estimator.tpu._run_config import RunConfig
from tfx_tpu_trainer.estimator.tpu._tpu_config import parse_iterations_per_loop


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reported:
    """A `Placement` whose training reports how it goes.

    Attributes:
        placement: The place.
        period: How often, as arguments of the hooks that report.
        config: The configuration of the run.
        batch_size: Rows of a step over all replicas, or `None`.
        on_host: Whether it is this host, where the training logs its loss itself.
    """

    placement: Placement
    period: Mapping[str, Any]
    config: RunConfig
    batch_size: int | None
    on_host: bool

    def trace(self) -> Trace:
        """Traces the call where it runs."""
        return self.placement.trace()

    def plan_training(
        self, *, steps: int | None, max_steps: int | None
    ) -> tuple[TrainingPlan, Hooks]:
        """Plans training where it runs, with hooks that report; see `Placement`."""
        plan, hooks = self.placement.plan_training(steps=steps, max_steps=max_steps)
        throughput = ThroughputHook(
            **self.period,
            steps_per_call=plan.steps_per_call,
            batch_size=self.batch_size,
            output_dir=self.config.model_dir if self.config.save_summary_steps else None,
        )
        if self.on_host:
            # Its steps may be made in loops, of which the training itself knows the loss.
            plan = dataclasses.replace(plan, log_loss_every=self.period["every_n_steps"])
        else:
            hooks = [*hooks, self._loss_log(plan)]
        return plan, [*hooks, throughput]

    def plan_evaluation(self, *, steps: int | None) -> tuple[EvaluationPlan, Hooks]:
        """Plans an evaluation where it runs; see `Placement`."""
        return self.placement.plan_evaluation(steps=steps)

    def plan_prediction(
        self, predict_keys: Sequence[str] | str | None
    ) -> tuple[PredictionPlan, Hooks]:
        """Plans a prediction where it runs; see `Placement`."""
        return self.placement.plan_prediction(predict_keys)

    def _loss_log(self, plan: TrainingPlan) -> LossLogHook:
        period = self.period
        loop = parse_iterations_per_loop(self.config.tpu_config.iterations_per_loop)
        if loop.unit == "count":
            # The original's period is one of global steps for the rates, one of calls for the loss.
            period = {"every_n_calls": period["every_n_steps"]}
        return LossLogHook(
            plan.loss, steps_per_call=plan.steps_per_call, shows_step_reached=True, **period
        )
