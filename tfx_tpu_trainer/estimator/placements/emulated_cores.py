"""A call on emulated TPU cores, which are copies of the model on this host."""

from __future__ import annotations

from tfx_tpu_trainer.estimator._engine.checking.ops_on_emulated_cores import (
    nodes_of_step,
    refuse_ops_not_emulated,
    warn_of_ops_for_hosts,
)
from tfx_tpu_trainer.estimator._engine.checking.shardings import check_shardings
from tfx_tpu_trainer.estimator._engine.checking.train_op_check import check_training_on_cores
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import CoreCopier, GraphCopier
from tfx_tpu_trainer.estimator._engine.loops.step_loop import StepLoop
from tfx_tpu_trainer.estimator._engine.placement.emulated import place_training_on_cores
from tfx_tpu_trainer.estimator._engine.reporting.gradients import (
    Asked,
    FirstStepOfLoop,
    find_gradients,
    log_no_gradients,
)
from tfx_tpu_trainer.estimator.placements.cores import CoreTrace, OnCores


class OnEmulatedCores(OnCores):
    """A `Placement` on emulated cores."""

    def trace(self) -> CoreTrace:
        """Calls the user's functions as on cores, and lets ops pass that can't be emulated."""
        return self.core_call.trace_on(None)

    def trace_to_run(self) -> CoreTrace:
        """Traces a call, and refuses ops that can't be emulated and tensors that can't be cut."""
        trace = self.trace()
        step = nodes_of_step(trace.template)
        refuse_ops_not_emulated(step)
        check_shardings(trace.template, cores=trace.run.layout.num_cores_per_replica)
        warn_of_ops_for_hosts(step)
        return trace

    def watched_gradients(self, trace: CoreTrace, asked: Asked) -> FirstStepOfLoop | None:
        """Finds the gradients of the train_op, which are those of all cores."""
        # What is added for the gradients has sums over cores, which the check looks for.
        check_training_on_cores(trace.template, cores=trace.run.cores)
        gradients = find_gradients(trace.template, replicas=trace.run.cores)
        if not gradients:
            log_no_gradients()
            return None
        return FirstStepOfLoop(gradients, asked)

    def place_training(self, trace: CoreTrace, gradients: FirstStepOfLoop | None) -> StepLoop:
        """Makes the loop of steps of a session call."""
        return place_training_on_cores(
            trace.template,
            trace.feed,
            cores=trace.run.cores,
            broadcast=trace.run.broadcast,
            host_call_every_n_steps=self.core_call.loops.host_call_every_n_steps,
            gradients=gradients,
        )

    def named(self, cores: int) -> str:
        """Returns where a call runs, in words."""
        return f"{cores} emulated TPU core{'' if cores == 1 else 's'}"

    def for_cores(self, trace: CoreTrace, copier: GraphCopier) -> CoreCopier:
        """Returns the same copier: emulated cores are on this host, as all else is."""
        del trace
        return copier
