"""A call on the cores of a TPU, in a session (the runtimes of TPU v2 to v4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tfx_tpu_trainer.estimator._engine.checking.shardings import check_shardings
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import CoreCopier, GraphCopier
from tfx_tpu_trainer.estimator._engine.loops.step_loop import StepLoop
from tfx_tpu_trainer.estimator._engine.placement.replica_cores import ReplicaCores
from tfx_tpu_trainer.estimator._engine.placement.session_tpu import TPUCopier, place_training_on_tpu
from tfx_tpu_trainer.estimator._engine.reporting.gradients import (
    Asked,
    FirstStepOfLoop,
    log_not_written,
)
from tfx_tpu_trainer.estimator._engine.sessions.tpu_system import TPUSystem, TPUSystemHook
from tfx_tpu_trainer.estimator.placements.cores import CoreTrace, OnCores
from tfx_tpu_trainer.estimator.placements.input_partitions import input_partitions

# Steps that the host stacks for a TPU at a time, where the loop's length is a time.
_STEPS_OF_A_TIMED_TRANSFER = 1000


@dataclasses.dataclass(frozen=True)
class OnTPU(OnCores):
    """A `Placement` on a TPU's cores. The TPU says how many there are, and must be there.

    Attributes:
        find_system: Finds the TPU.
    """

    find_system: Callable[[], TPUSystem]

    def trace(self) -> CoreTrace:
        """Calls the user's functions for the cores that the TPU has.

        Raises:
            RuntimeError: If there is no TPU at the master.
            ValueError: If a tensor that the model shards does not divide among a replica's cores.
        """
        system = self.find_system()
        trace = self.core_call.trace_on(system)
        check_shardings(trace.template, cores=trace.run.layout.num_cores_per_replica)
        system_hook = TPUSystemHook(master=system.master, job=system.job)
        return dataclasses.replace(trace, hooks=[system_hook, *trace.hooks])

    def watched_gradients(self, trace: CoreTrace, asked: Asked) -> FirstStepOfLoop | None:
        """Says that they stay on the TPU."""
        del asked
        log_not_written(self.named(trace.run.cores))
        return None

    def place_training(self, trace: CoreTrace, gradients: FirstStepOfLoop | None) -> StepLoop:
        """Makes the loop of steps of a session call."""
        del gradients
        loops = self.core_call.loops
        return place_training_on_tpu(
            trace.template,
            trace.feed,
            cores=trace.run.cores,
            broadcast=trace.run.broadcast,
            host_call_every_n_steps=loops.host_call_every_n_steps,
            iterations_per_loop=min(loops.longest, _STEPS_OF_A_TIMED_TRANSFER),
            replica_cores=_replica_cores(trace),
        )

    def named(self, cores: int) -> str:
        """Returns where a call runs, in words."""
        return f"{cores} TPU core{'' if cores == 1 else 's'}"

    def for_cores(self, trace: CoreTrace, copier: GraphCopier) -> CoreCopier:
        """Returns what copies onto the TPU's cores."""
        return TPUCopier(copier, _replica_cores(trace))


def _replica_cores(trace: CoreTrace) -> ReplicaCores:
    partitions = input_partitions(
        trace.run.input_partition_dims, features=trace.feed.features, labels=trace.feed.labels
    )
    return ReplicaCores(trace.run.device_assignment, partitions)
