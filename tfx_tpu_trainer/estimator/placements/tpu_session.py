"""A call on the cores of a TPU, in a session (the runtimes of TPU v2 to v4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from tfx_tpu_trainer.engine.copying.graph_copy import CoreCopier, GraphCopier
from tfx_tpu_trainer.engine.evaluating.evaluation_plan import EvaluationPlan
from tfx_tpu_trainer.engine.placement.session_tpu import TPUCopier, place_training_on_tpu
from tfx_tpu_trainer.engine.predicting.prediction import PredictionPlan
from tfx_tpu_trainer.engine.sessions.tpu_system import TPUSystem, TPUSystemHook
from tfx_tpu_trainer.engine.training.training import TrainingPlan
from tfx_tpu_trainer.estimator.placements.cores import (
    CoreCall,
    CoreTrace,
    evaluation_of,
    prediction_of,
    training_of,
)
from tfx_tpu_trainer.estimator.placements.placement import Hooks

# Steps that the host stacks for a TPU at a time, where the loop's length is a time.
_STEPS_OF_A_TIMED_TRANSFER = 1000


@dataclasses.dataclass(frozen=True)
class OnTPU:
    """A `Placement` on a TPU's cores. The TPU says how many there are, and must be there.

    Attributes:
        core_call: The call.
        find_system: Finds the TPU.
    """

    core_call: CoreCall
    find_system: Callable[[], TPUSystem]

    def trace(self) -> CoreTrace:
        """Calls the user's functions for the cores that the TPU has.

        Raises:
            RuntimeError: If there is no TPU at the master.
        """
        system = self.find_system()
        trace = self.core_call.trace_on(system)
        system_hook = TPUSystemHook(master=system.master, job=system.job)
        return dataclasses.replace(trace, hooks=[system_hook, *trace.hooks])

    def plan_training(
        self, *, steps: int | None, max_steps: int | None
    ) -> tuple[TrainingPlan, Hooks]:
        """Plans training, a loop of steps in each session call; see `Placement`.

        Raises:
            ValueError: If several replicas train without a sum over them.
        """
        trace, loops = self.trace(), self.core_call.loops
        loop = place_training_on_tpu(
            trace.template,
            trace.feed,
            cores=trace.run.cores,
            broadcast=trace.run.broadcast,
            host_call_every_n_steps=loops.host_call_every_n_steps,
            iterations_per_loop=min(loops.longest, _STEPS_OF_A_TIMED_TRANSFER),
        )
        return training_of(trace, loop, loops, steps=steps, max_steps=max_steps), trace.hooks

    def plan_evaluation(self, *, steps: int | None) -> tuple[EvaluationPlan, Hooks]:
        """Plans an evaluation, all its batches in one session call; see `Placement`."""
        return evaluation_of(self.trace(), _tpu_copier, steps=steps)

    def plan_prediction(
        self, predict_keys: Sequence[str] | str | None
    ) -> tuple[PredictionPlan, Hooks]:
        """Plans a prediction, a batch in each session call; see `Placement`."""
        return prediction_of(self.trace(), _tpu_copier, predict_keys)


def _tpu_copier(copier: GraphCopier) -> CoreCopier:
    return TPUCopier(copier.graph)
