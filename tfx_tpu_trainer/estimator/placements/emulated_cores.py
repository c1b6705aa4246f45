"""A call on emulated TPU cores, which are copies of the model on this host."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfx_tpu_trainer.engine.checking.ops_on_emulated_cores import (
    refuse_ops_not_emulated,
    warn_of_ops_for_hosts,
)
from tfx_tpu_trainer.engine.copying.graph_copy import CoreCopier, GraphCopier
from tfx_tpu_trainer.engine.evaluating.evaluation_plan import EvaluationPlan
from tfx_tpu_trainer.engine.placement.emulated import place_training_on_cores
from tfx_tpu_trainer.engine.predicting.prediction import PredictionPlan
from tfx_tpu_trainer.engine.training.training import TrainingPlan
from tfx_tpu_trainer.estimator.placements.cores import (
    CoreCall,
    CoreTrace,
    evaluation_of,
    prediction_of,
    training_of,
)
from tfx_tpu_trainer.estimator.placements.placement import Hooks


@dataclasses.dataclass(frozen=True)
class OnEmulatedCores:
    """A `Placement` on emulated cores.

    Attributes:
        core_call: The call.
    """

    core_call: CoreCall

    def trace(self) -> CoreTrace:
        """Calls the user's functions as on cores, and lets ops pass that can't be emulated."""
        return self.core_call.trace_on(None)

    def plan_training(
        self, *, steps: int | None, max_steps: int | None
    ) -> tuple[TrainingPlan, Hooks]:
        """Plans training, a loop of steps in each session call; see `Placement`.

        Raises:
            ValueError: If several replicas train without a sum over them.
        """
        trace, loops = self._trace_to_run(), self.core_call.loops
        loop = place_training_on_cores(
            trace.template,
            trace.feed,
            cores=trace.run.cores,
            broadcast=trace.run.broadcast,
            host_call_every_n_steps=loops.host_call_every_n_steps,
        )
        return training_of(trace, loop, loops, steps=steps, max_steps=max_steps), trace.hooks

    def plan_evaluation(self, *, steps: int | None) -> tuple[EvaluationPlan, Hooks]:
        """Plans an evaluation, all its batches in one session call; see `Placement`."""
        return evaluation_of(self._trace_to_run(), _same_copier, steps=steps)

    def plan_prediction(
        self, predict_keys: Sequence[str] | str | None
    ) -> tuple[PredictionPlan, Hooks]:
        """Plans a prediction, a batch in each session call; see `Placement`."""
        return prediction_of(self._trace_to_run(), _same_copier, predict_keys)

    def _trace_to_run(self) -> CoreTrace:
        trace = self.trace()
        refuse_ops_not_emulated(trace.template)
        warn_of_ops_for_hosts(trace.template)
        return trace


def _same_copier(copier: GraphCopier) -> CoreCopier:
    """Emulated cores are copies on this host, as all else is."""
    return copier
