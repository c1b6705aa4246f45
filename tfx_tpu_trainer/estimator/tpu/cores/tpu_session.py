"""Runs a call on a TPU's cores in a session (the runtimes of TPU v2 to v4).

A session call makes its steps in transfers. For each, the host draws the batches of several
steps and stacks them, and one program on the cores loops over the stack:

- The variables are on the host's side of a session. The program fetches them when it starts
  and brings them back when it ends, so many steps must share one program.
- The batches and the tensors for the host are plain inputs and outputs of the program. With
  infeed and outfeed queues they would overlap with the steps, but a host that stops feeding (the
  input ends, an op fails) leaves the cores waiting for a batch that never comes, and only a
  restart frees them. Here an input that ends is an ordinary end of the session.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier, ReplicaCopier
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream
from tfx_tpu_trainer.estimator._engine.loops.step_loop import StepLoop, create_iterations
from tfx_tpu_trainer.estimator._engine.reporting.gradients import (
    Asked,
    FirstStepOfLoop,
    log_not_written,
)
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate
from tfx_tpu_trainer.estimator.places.host_functions import TracedHostFunction, trace_host_function
from tfx_tpu_trainer.estimator.places.refused_ops import check_training_on_cores
from tfx_tpu_trainer.estimator.places.shardings import (
    ONE_CORE,
    CutVariable,
    ReplicaCores,
    check_shardings,
    cut_variables,
    input_partitions,
)
from tfx_tpu_trainer.estimator.tpu.cores.feed import CoreFeed
from tfx_tpu_trainer.estimator.tpu.cores.tpu_system import TPUSystem, TPUSystemHook
from tfx_tpu_trainer.estimator.tpu.cores.trace import CoreTrace, OnCores

v1 = tf.compat.v1

# Steps that the host stacks per transfer if the loop's length is a time.
_STEPS_OF_A_TIMED_TRANSFER = 1000


@dataclasses.dataclass(frozen=True)
class OnTPU(OnCores):
    """A `Place` on a TPU's cores. The TPU, which must exist, determines their number."""

    find_system: Callable[[], TPUSystem]

    def trace(self) -> CoreTrace:
        """Calls the user's functions for the TPU's cores."""
        system = self.find_system()
        trace = self.core_call.trace_on(system)
        check_shardings(trace.template, cores=trace.run.layout.num_cores_per_replica)
        system_hook = TPUSystemHook(master=system.master, job=system.job)
        return dataclasses.replace(trace, hooks=[system_hook, *trace.hooks])

    def watched_gradients(self, trace: CoreTrace, asked: Asked) -> FirstStepOfLoop | None:
        """Logs that gradients stay on the TPU."""
        del asked
        log_not_written(self.named(trace.run.cores))
        return None

    def place_training(self, trace: CoreTrace, gradients: FirstStepOfLoop | None) -> StepLoop:
        """Makes the loop of a session call's steps."""
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
        """Describes where a call runs."""
        return f"{cores} TPU core{'' if cores == 1 else 's'}"

    def for_cores(self, trace: CoreTrace, copier: GraphCopier) -> ReplicaCopier:
        """Returns the copier to the TPU's cores."""
        return TPUCopier(copier, _replica_cores(trace))


def _replica_cores(trace: CoreTrace) -> ReplicaCores:
    partitions = input_partitions(
        trace.run.input_partition_dims, features=trace.feed.features, labels=trace.feed.labels
    )
    return ReplicaCores(trace.run.device_assignment, partitions)


# Memory of a core for one transfer's stacked batches.
_BYTES_PER_TRANSFER = 256 << 20


def place_training_on_tpu(
    template: ModelTemplate,
    feed: CoreFeed,
    *,
    cores: int,
    broadcast: bool,
    host_call_every_n_steps: int,
    iterations_per_loop: int,
    replica_cores: ReplicaCores = ONE_CORE,
) -> StepLoop:
    """Makes a loop of training steps on the cores of a TPU."""
    check_training_on_cores(template, cores=cores)
    host_call = trace_host_function(template.host_call, cores=cores, broadcast=broadcast)
    loop = _TransferLoop(
        template,
        feed,
        cores=cores,
        host_call=host_call,
        host_call_every_n_steps=host_call_every_n_steps,
        transfer_steps=_steps_of_a_transfer(feed, at_most=iterations_per_loop),
        replica_cores=replica_cores,
    )
    iterations = create_iterations()
    # A function, so loops use control flow v2 even if the program switched it off.
    loss = tf.function(loop.run, autograph=False)(iterations.read_value(), iterations.read_value)
    return StepLoop(iterations, loss)


class TPUCopier:
    """A `ReplicaCopier` onto the cores of a TPU, where a `GraphCopier` copies onto this host."""

    # Evaluation and prediction on a TPU use it for what they do on emulated cores with full batches.

    def __init__(self, copier: GraphCopier, replica_cores: ReplicaCores = ONE_CORE) -> None:
        self._copier = copier
        self._replica_cores = replica_cores

    def copy(
        self, fetches: Sequence[Fetch], *, replaced: Sequence[Mapping[str, tf.Tensor]], name: str
    ) -> list[tf.Tensor]:
        """Runs one replica per core and returns their tensors."""
        # Every core's program has the same list of outputs: it returns all nodes that any fetch names, and the result
        # is selected by each fetch's core.
        names = list(replaced[0])
        nodes = {fetch.node.name: fetch.node for fetch in fetches}
        cut = cut_variables(nodes.values()) if self._replica_cores.several else {}
        reads = [op for op in upstream(nodes.values()) if op.type == "ReadVariableOp"]

        def one_core(*values: tf.Tensor) -> list[tf.Tensor]:
            given = {
                name: self._replica_cores.annotated(name, value)
                for name, value in zip(names, values)
            }
            for read in reads:
                if (variable := cut.get(read.inputs[0].name)) is not None:
                    given[read.outputs[0].name] = variable.read(_here(variable))
            copies = self._copier.copy_replica(list(nodes.values()), replaced=given, name=name)
            return [tf.identity(copy) for copy in copies]

        rows = [[self._replica_cores.cut(name, fed[name]) for name in names] for fed in replaced]
        results = self._replica_cores.replicate(one_core, rows)
        places = {node: index for index, node in enumerate(nodes)}
        return [results[fetch.replica][places[fetch.node.name]] for fetch in fetches]


class _TransferLoop:
    """Loops over transfers on the host, around the cores' loop over steps."""

    # Ten steps in transfers of at most four: the host draws and stacks four batches per core, one program makes four
    # steps, and the host's tensors come back as stacks of four. Then four more, then two. XLA compiles programs for
    # static shapes only, so the last stacks also have four places, two of them zeros, and the number of steps is
    # an input: the program is compiled once. Invariant: the host reads a step's tensors (`_call_host`) from the stacks
    # at the step's index in its transfer, never beyond `steps`.

    def __init__(
        self,
        template: ModelTemplate,
        feed: CoreFeed,
        *,
        cores: int,
        host_call: TracedHostFunction | None,
        host_call_every_n_steps: int,
        transfer_steps: int,
        replica_cores: ReplicaCores,
    ) -> None:
        self._feed = feed
        self._cores = cores
        self._host_call = host_call
        self._host_call_every_n_steps = host_call_every_n_steps
        self._transfer_steps = transfer_steps
        self._replica_cores = replica_cores
        self._copier = GraphCopier(template.graph)
        assert template.loss is not None
        self._loss_dtype = template.loss.dtype
        self._host_tensors = [] if host_call is None else host_call.tensors
        self._placeholders = feed.placeholders
        self._nodes = [template.loss, *self._host_tensors, template.train_op]

    def run(self, count: tf.Tensor, read_count: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Makes `count` steps, or fewer if the variable is reduced meanwhile; returns the last loss."""

        def one_transfer(done: tf.Tensor, loss: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            del loss
            steps = tf.minimum(count - done, self._transfer_steps)
            stacked = self._draw(steps)
            inputs = [[steps, *tensors] for tensors in stacked]
            results = self._replica_cores.replicate(self._on_one_core, inputs)
            effects = self._call_host(done, steps, [core[1:] for core in results])
            with tf.control_dependencies(effects):
                return done + steps, tf.add_n([core[0] for core in results]) / self._cores

        # The condition reads the variable in each iteration instead of `count`: to stop politely, another thread sets
        # it to 1 while this loop runs (`LoopHook.end_loop`), and the loop ends after the current transfer.
        start = (tf.constant(0), tf.zeros((), self._loss_dtype))
        return tf.while_loop(
            lambda done, loss: done < read_count(), one_transfer, start, parallel_iterations=1
        )[1]

    def _draw(self, steps: tf.Tensor) -> list[list[tf.Tensor]]:
        """Stacks several steps' batches on the host; the rest of each stack is zeros."""
        arrays = [self._array(tensor) for _ in range(self._cores) for tensor in self._placeholders]

        def one_batch(number: tf.Tensor, arrays: list[Any]) -> tuple[tf.Tensor, list[Any]]:
            fed = self._feed.read(self._copier)
            tensors = [core[p.name] for core in fed for p in self._placeholders]
            written = [array.write(number, t) for array, t in zip(arrays, tensors)]
            return number + 1, written

        _, arrays = tf.while_loop(
            lambda number, arrays: number < steps,
            one_batch,
            (tf.constant(0), arrays),
            parallel_iterations=1,
        )
        # Core by core, and within a core in the order of the placeholders. Unwritten entries of a TensorArray are
        # zeros, so a short transfer's stacks have the static size, too.
        width = len(self._placeholders)
        stacks = [
            self._replica_cores.cut(placeholder.name, array.stack(), stacked=True)
            for placeholder, array in zip(self._placeholders * self._cores, arrays)
        ]
        return [stacks[start : start + width] for start in range(0, len(stacks), width)]

    def _on_one_core(self, steps: tf.Tensor, *stacked: tf.Tensor) -> list[tf.Tensor]:
        """Defines one replica's program: a loop over a transfer's steps."""

        def one_step(
            number: tf.Tensor, loss: tf.Tensor, arrays: list[Any]
        ) -> tuple[tf.Tensor, tf.Tensor, list[Any]]:
            del loss
            rows = {
                p.name: self._replica_cores.annotated(p.name, tf.gather(t, number))
                for p, t in zip(self._placeholders, stacked)
            }
            *tensors, train_op = self._copier.copy_replica(self._nodes, replaced=rows)
            # A loop's body returns tensors; an op that none of them waits for would not run.
            with tf.control_dependencies([train_op]):
                loss, *host_tensors = [tf.identity(tensor) for tensor in tensors]
            written = [array.write(number, t) for array, t in zip(arrays, host_tensors)]
            return number + 1, loss, written

        cut = cut_variables(self._nodes) if self._replica_cores.several else {}
        with tf.control_dependencies([each.keep(_here(each)) for each in cut.values()]):
            start = (
                tf.constant(0),
                tf.zeros((), self._loss_dtype),
                [self._array(tensor) for tensor in self._host_tensors],
            )
            _, loss, arrays = tf.while_loop(
                lambda number, loss, arrays: number < steps, one_step, start, parallel_iterations=1
            )
        return [loss, *(array.stack() for array in arrays)]

    def _call_host(
        self, done: tf.Tensor, steps: tf.Tensor, stacked: list[list[tf.Tensor]]
    ) -> list[tf.Tensor]:
        """Runs the host call for the due steps of a transfer."""
        if self._host_call is None:
            return []
        host_call = self._host_call
        order = {tensor.name: index for index, tensor in enumerate(self._host_tensors)}

        def call(number: tf.Tensor) -> tf.Tensor:
            copies = [
                stacked[fetch.replica][order[fetch.node.name]][number]
                for fetch in host_call.fetches()
            ]
            gathered = host_call.gathered(copies)
            with tf.control_dependencies([host_call.run(self._copier, gathered, name="host_call")]):
                return tf.constant(True)

        def one_step(number: tf.Tensor) -> tf.Tensor:
            due = tf.equal((done + number) % self._host_call_every_n_steps, 0)
            called = tf.cond(due, lambda: call(number), lambda: tf.constant(False))
            with tf.control_dependencies([called]):
                return number + 1

        return tf.while_loop(
            lambda number: number < steps, one_step, [tf.constant(0)], parallel_iterations=1
        )

    def _array(self, tensor: tf.Tensor) -> tf.TensorArray:
        # The size is static, like all shapes in a core's program.
        return tf.TensorArray(tensor.dtype, size=self._transfer_steps, element_shape=tensor.shape)


def _here(variable: CutVariable) -> tf.Tensor:
    """Returns a variable's handle in the graph under construction."""
    return tf_private.capture(v1.get_default_graph(), variable.variable.outputs[0])


def _steps_of_a_transfer(feed: CoreFeed, *, at_most: int) -> int:
    step_bytes = sum(math.prod(p.shape.as_list()) * p.dtype.size for p in feed.placeholders)
    return max(1, min(at_most, _BYTES_PER_TRANSFER // max(1, step_bytes)))
