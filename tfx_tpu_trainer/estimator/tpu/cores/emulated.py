"""Runs a call on emulated TPU cores, which are copies of the model on this host."""

from collections.abc import Sequence

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import EXCHANGES
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier, ReplicaCopier
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream
from tfx_tpu_trainer.estimator._engine.loops.step_loop import StepLoop, build_step_loop
from tfx_tpu_trainer.estimator._engine.reporting.gradients import (
    Asked,
    FirstStepOfLoop,
    find_gradients,
    log_no_gradients,
)
from tfx_tpu_trainer.estimator.places.host_functions import trace_host_function
from tfx_tpu_trainer.estimator.places.ops_on_tpu import nodes_of_step
from tfx_tpu_trainer.estimator.places.refused_ops import (
    check_training_on_cores,
    refuse_ops_not_emulated,
    warn_of_ops_for_hosts,
)
from tfx_tpu_trainer.estimator.places.shardings import check_shardings
from tfx_tpu_trainer.estimator.tpu.cores.trace import CoreTrace, OnCores


class OnEmulatedCores(OnCores):
    """A `Place` on emulated cores."""

    def trace(self) -> CoreTrace:
        """Calls the user's functions as on cores, and allows ops that can't be emulated."""
        return self.core_call.trace_on(None)

    def trace_to_run(self) -> CoreTrace:
        """Traces a call; rejects ops that can't be emulated and tensors that can't be split."""
        trace = self.trace()
        step = nodes_of_step(trace.template)
        refuse_ops_not_emulated(step)
        check_shardings(trace.template, cores=trace.run.layout.num_cores_per_replica)
        warn_of_ops_for_hosts(step)
        return trace

    def watched_gradients(self, trace: CoreTrace, asked: Asked) -> FirstStepOfLoop | None:
        """Finds the gradients of the train_op, summed over all cores."""
        # Checked first, since the nodes that watch gradients contain sums over cores: with them, a model without any
        # sum would pass this check.
        check_training_on_cores(trace.template, cores=trace.run.cores)
        gradients = find_gradients(trace.template, replicas=trace.run.cores)
        if not gradients:
            log_no_gradients()
            return None
        return FirstStepOfLoop(gradients, asked)

    def place_training(self, trace: CoreTrace, gradients: FirstStepOfLoop | None) -> StepLoop:
        """Makes the loop of a session call's steps."""
        every = self.core_call.loops.host_call_every_n_steps
        return place_training_on_cores(trace, gradients, host_call_every_n_steps=every)

    def named(self, cores: int) -> str:
        """Describes where a call runs."""
        return f"{cores} emulated TPU core{'' if cores == 1 else 's'}"

    def for_cores(self, trace: CoreTrace, copier: GraphCopier) -> ReplicaCopier:
        """Returns the same copier: emulated cores are on this host."""
        del trace
        return copier


def place_training_on_cores(
    trace: CoreTrace, gradients: FirstStepOfLoop | None, *, host_call_every_n_steps: int
) -> StepLoop:
    """Makes a loop of training steps over emulated cores."""
    # Each core has its own copy of the model on its own rows; variables are shared, gradients are combined where the
    # model sums over replicas, and only the first core's train_op runs, since all cores have its gradients.
    template, feed, cores = trace.template, trace.feed, trace.run.cores
    check_training_on_cores(template, cores=cores)
    host_call = trace_host_function(template.host_call, cores=cores, broadcast=trace.run.broadcast)
    table_update = trace_host_function(
        template.table_update, cores=cores, broadcast=False, full=False
    )
    copier = GraphCopier(template.graph)
    turns = ends_of_turns(
        copier, [template.train_op, template.loss], inputs=feed.placeholders, cores=cores
    )

    # Only the first core's train_op is fetched: it reads each gradient's CrossReplicaSum, which the copier turns into
    # the sum over all copies, so every core's backward pass runs. A variable `w` on two cores becomes `w -= rate *
    # (g0 + g1)`, once. Fetching the second core's train_op, too, would apply the same sum again. Invariant: `copies`
    # has the order of `fetches`, and each part below is sliced by position: [train_op, loss of each core, tensors of
    # the tables, tensors of host_call, watched gradients].
    def step(number: tf.Tensor) -> tf.Tensor:
        fetches = [Fetch(0, template.train_op)]
        fetches += [Fetch(core, template.loss) for core in range(cores)]
        table_fetches = [] if table_update is None else table_update.fetches()
        fetches += table_fetches
        fetches += [] if host_call is None else host_call.fetches()
        watched = () if gradients is None else gradients.tensors
        # Watched gradients are already summed, so the first core's apply to all cores.
        fetches += [Fetch(0, tensor) for tensor in watched]
        copies = copier.copy(fetches, replaced=feed.read(copier), name="cores", ends_of_turns=turns)
        effects = [copies[0]]
        end = cores + 1 + len(table_fetches)
        if gradients is not None:
            copies, of_gradients = copies[: -len(watched)], copies[-len(watched) :]
            effects.append(gradients.keep(number, of_gradients))
        if table_update is not None:
            slices = table_update.gathered(copies[cores + 1 : end])
            effects.append(table_update.run(copier, slices, name="table_update"))
        if host_call is not None:
            gathered = host_call.gathered(copies[end:])

            def call_host() -> tf.Tensor:
                with tf.control_dependencies([host_call.run(copier, gathered, name="host_call")]):
                    return tf.constant(True)

            due = tf.equal(number % host_call_every_n_steps, 0)
            effects.append(tf.cond(due, call_host, lambda: tf.constant(False)))
        with tf.control_dependencies(effects):
            return tf.add_n(copies[1 : cores + 1]) / cores

    return build_step_loop(step, loss_dtype=template.loss_dtype)


# Bytes of gradients that concurrent cores may hold beyond one core's; above that, cores take turns. Concurrency is
# faster, by 8 % for eight cores of BERT-base on two processors.
_MOST_BYTES_AT_ONCE = 1 << 30


def ends_of_turns(
    copier: GraphCopier,
    nodes: Sequence[tf.Tensor | tf.Operation],
    *,
    inputs: Sequence[tf.Tensor],
    cores: int,
) -> list[tf.Tensor]:
    """Chooses what a core must have computed before the next one begins."""
    # Cores that run at the same time hold as many gradients as there are cores: 0.44 GB each for BERT-base. In turns,
    # each core's gradients are added to the sum as soon as they exist.
    # A core's turn ends with its gradients, which are added to those before: core 1 begins once core 0's are there, and
    # only their sum is kept. Without this rule TensorFlow would start all cores at once.
    given = {tensor.name for tensor in inputs}
    sums = [op for op in upstream(nodes, given=given) if op.type in EXCHANGES]
    summed = [op.inputs[0] for op in sums if op.inputs[0].name not in given]
    sizes = [tensor.shape.num_elements() or 0 for tensor in summed]
    held = sum(size * tensor.dtype.size for size, tensor in zip(sizes, summed))
    if (cores - 1) * held <= _MOST_BYTES_AT_ONCE:
        return []
    before = list(upstream(summed, given=given))
    # Turns would deadlock if core 0 waited for a value of core 1 (a batch norm over cores). An op that changes a
    # variable runs on the first core for all, and ops that wait for it wait in every copy; there, too, turns must not
    # set the order.
    if any(copier.reads_other_replicas(op) or copier.is_change(op) for op in before):
        return []
    return summed
