"""The steps that a `tf.distribute` strategy makes for a session."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._engine.reporting.gradients import FirstStepOfLoop
from tfx_tpu_trainer.estimator._engine.template import HostFunction, ModelTemplate
from tfx_tpu_trainer.estimator.places.host_functions import TracedHostFunction
from tfx_tpu_trainer.estimator.places.replica_cores import cut_variables
from tfx_tpu_trainer.estimator.places.strategy.feed import StrategyFeed, is_elsewhere
from tfx_tpu_trainer.estimator.places.strategy.replica_stages import ReplicaStages
from tfx_tpu_trainer.estimator.places.strategy.session import StrategySession
from tfx_tpu_trainer.estimator.places.strategy.tables import StrategyTables
from tfx_tpu_trainer.estimator.places.strategy.tf_private_strategy import (
    cores_per_replica,
    sum_in_replicas,
)
from tfx_tpu_trainer.estimator.places.strategy.variables import StrategyVariables

v1 = tf.compat.v1


# A session runs a graph; a strategy runs eager functions and owns its variables. The problem is to
# let hooks, savers and step counters go on seeing a session while the strategy makes the steps. So
# a step has two halves:
#
# - In the session's graph stand placeholders, the step's `outputs` (loss, metrics).
#   `StrategySession` answers a fetch of them by calling `run` here, and answers a read of a
#   variable by `value`.
# - In an eager thread the strategy runs a copy of model_fn's graph for each replica.
#   `ReplicaStages` cuts that graph at its sums over replicas: with gradients g0 and g1 of two
#   replicas, the first stage returns g0 and g1, the strategy adds them, and the second stage
#   applies g0 + g1 in both.
#
# What always holds: outside of `run`, the replicas' variables are the truth, and the session's
# variables of the same name are only what it was restored from. A checkpoint is written from
# `value`.


class _ReplicaSteps:
    """What steps of every kind share: the replicas' graph and their variables."""

    def __init__(
        self,
        graph: tf.Graph,
        feed: StrategyFeed,
        fetches: Sequence[tf.Tensor | tf.Operation],
        *,
        tables: StrategyTables | None = None,
    ) -> None:
        self._feed = feed
        self.strategy = feed.strategy
        self._tables = tables
        received = () if tables is None else tables.received
        self._sent = () if tables is None else tables.sent
        self._copier = GraphCopier(graph)
        self._replica = ReplicaStages(
            self._copier, [*fetches, *self._sent], inputs=[*feed.placeholders, *received]
        )
        _check_handles_are_variables(self._replica.handles)
        self.inputs: Sequence[tf.Tensor] = feed.placeholders
        of_tables = () if tables is None else tables.handles
        self._of_tables = frozenset(handle.name for handle in of_tables)
        in_replicas = {handle.name for handle in self._replica.handles}
        if both := sorted(in_replicas & self._of_tables):
            raise ValueError(
                f"model_fn reads {both}, tables of embedding_config_spec: under a tf.distribute "
                "strategy they are no part of the model. Read them with get_variable_value after "
                "training."
            )
        self.handles: Sequence[tf.Tensor] = [*self._replica.handles, *of_tables]
        several = cores_per_replica(self.strategy) > 1
        self._cut = cut_variables(fetches) if several else {}
        self._local_names = frozenset(
            variable.handle.name for variable in v1.local_variables() if hasattr(variable, "handle")
        )

    def start(self, values: Mapping[str, np.ndarray]) -> None:
        self._feed.eager.run(self._start, values)

    def value(self, handle: str) -> np.ndarray:
        if self._tables is not None and handle in self._of_tables:
            return self._feed.eager.run(self._tables.value, handle)
        return self._feed.eager.run(self._variables.value, handle)

    def stop(self) -> None:
        try:
            self._feed.eager.run(self._free)
        finally:
            self._feed.eager.end()

    def _start(self, values: Mapping[str, np.ndarray]) -> None:
        self._variables = StrategyVariables(
            self.strategy, self._replica.handles, values, summed=self._local_names
        )
        if self._tables is not None:
            self._tables.start(values)

    def _free(self) -> None:
        del self._variables
        if self._tables is not None:
            self._tables.stop()

    def _run_replicas(self, element: Any) -> list[Any]:
        """Runs the replicas' graphs; returns the replicas' values of each fetched tensor."""
        if self._tables is None:
            return self.strategy.run(_one_replica(self._replica_step), args=(element,))
        batches = [self._feed.named(batch) for batch in self._feed.batches(element)]
        passed = self._tables.send(self._copier, batches)
        # Ids stay on the host: they may be strings, which no TPU takes.
        needed = [name for name in batches[0] if self._replica.reads(name)]
        parts = [
            [*(batch[name] for name in needed), *tensors]
            for batch, tensors in zip(batches, passed, strict=True)
        ]

        def step(parts: list[tf.Tensor]) -> list[tf.Tensor]:
            return self._step_beside_tables(dict(zip(needed, parts)), parts[len(needed) :])

        results = self.strategy.run(
            _one_replica(step),
            args=(self._feed.distribute(parts),),
            # Ids would be padded to the longest replica's, as if they were rows.
            options=tf.distribute.RunOptions(experimental_enable_dynamic_batch_size=False),
        )
        count = self._tables.returned
        returned = [self._local(values) for values in results[len(results) - count :]]
        of_replicas = list(zip(*returned)) if returned else [()] * len(batches)
        self._tables.finish(self._copier, batches, of_replicas)
        return results[: len(results) - count]

    def _local(self, values: Any) -> tuple[tf.Tensor, ...]:
        """Returns the values of this process's replicas."""
        return self.strategy.experimental_local_results(values)

    def _replica_step(self, element: Any) -> list[tf.Tensor]:
        return self._step(self._feed.named(tf.nest.flatten(element, expand_composites=True)))

    def _step_beside_tables(
        self, batch: dict[str, tf.Tensor], passed: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        assert self._tables is not None
        received = {tensor.name: None for tensor in self._tables.received}
        values = self._step({**batch, **dict(zip(received, self._tables.receive(passed)))})
        sent = len(values) - len(self._sent)
        return [*values[:sent], *self._tables.train(values[sent:])]

    def _step(self, given: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
        """Runs a replica's graph on what is given; returns what was fetched, without operations."""
        context = tf.distribute.get_replica_context()

        def sum_over_replicas(addends: list[tf.Tensor]) -> list[tf.Tensor]:
            # In one call for each type: strategies sum integers on the host and won't mix.
            totals: dict[int, tf.Tensor] = {}
            for dtype in dict.fromkeys(addend.dtype for addend in addends):
                places = [place for place, each in enumerate(addends) if each.dtype == dtype]
                of_type = [addends[place] for place in places]
                totals.update(zip(places, sum_in_replicas(context, of_type), strict=True))
            return [totals[place] for place in range(len(addends))]

        # TPUStrategy traces the replicas once for all: their number is no constant there, and
        # the random numbers of a core differ anyway.
        replica_id = context.replica_id_in_sync_group
        number = int(tf.get_static_value(replica_id) or 0)
        handles = self._variables.local_handles()
        for name, variable in self._cut.items():
            variable.keep(handles[name])
        copies = self._replica.copy(
            {
                **given,
                self._feed.replica_id.name: tf.convert_to_tensor(replica_id),
                **handles,
            },
            sum_over_replicas=sum_over_replicas,
            replica=number,
            unchanged=self._variables.unchanged_by(number),
        )
        # A replica returns tensors only, and what none of them waits for would not run.
        effects = [copy for copy in copies if isinstance(copy, tf.Operation)]
        with tf.control_dependencies(effects):
            return [tf.identity(copy) for copy in copies if not isinstance(copy, tf.Operation)]


class TrainingSteps(_ReplicaSteps):
    """Makes as many training steps as the session's variable asks for, in one function call."""

    def __init__(
        self,
        template: ModelTemplate,
        feed: StrategyFeed,
        *,
        host_call: TracedHostFunction | None,
        iterations: tf.Variable | None,
        host_call_every_n_steps: int,
        gradients: FirstStepOfLoop | None = None,
        tables: StrategyTables | None = None,
    ) -> None:
        self._host_call = host_call
        self._gradients = gradients
        self._watched = () if gradients is None else gradients.tensors
        host_tensors = [] if host_call is None else host_call.tensors
        train_op = template.train_op
        # Its value, if it has one, is none of what a replica returns.
        effect = train_op.op if isinstance(train_op, tf.Tensor) else train_op
        super().__init__(
            template.graph,
            feed,
            [template.loss, *self._watched, *host_tensors, effect],
            tables=tables,
        )
        assert template.loss is not None
        self.outputs: tuple[tf.Tensor, ...] = (
            v1.placeholder(template.loss.dtype, (), name="loss_of_step"),
        )
        self._is_due: tf.Tensor | None = None
        if gradients is not None:
            self._is_due = gradients.is_due.read_value()
            self.outputs += (v1.placeholder(tf.string, (), name="gradients_of_step"),)
        self._iterations = None if iterations is None else iterations.read_value()
        self._host_call_every_n_steps = host_call_every_n_steps
        self._host_dtypes = [tensor.dtype for tensor in host_tensors]
        self._is_cut: tf.Variable | None = None

    def run(self, session: StrategySession) -> Mapping[tf.Tensor, np.ndarray]:
        """Makes the steps of one session call and their host calls; returns the last loss."""
        count = 1 if self._iterations is None else int(session.run(self._iterations))
        is_due = self._is_due is not None and bool(session.run(self._is_due))
        made, outputs, host_tensors, was_cut = self._feed.eager.run(self._make_steps, count, is_due)
        # The steps before an end of the input were made: they count, and so do their host calls.
        if self._host_call is not None:
            for number in range(0, made, self._host_call_every_n_steps):
                values = [tensor[number] for tensor in host_tensors]
                session.run_here(*self._host_call.fed(values))
        if made < count and not was_cut:
            raise tf.errors.OutOfRangeError(None, None, "End of the input.")
        return dict(zip(self.outputs, outputs))

    def with_iterator(self, function: Callable[[tf.Tensor], Any]) -> Any:
        """Calls a function of the iterator's handle, in the eager thread."""
        return self._feed.eager.run(self._call_with_iterator, function)

    def start_input(self) -> None:
        """Begins the input again."""
        self._feed.eager.run(self._start_input)

    def end_loop(self) -> None:
        """Ends the loop that is running after its current step; for another thread to call.

        Without effect where the steps are on TPUs, or are those of other processes too.
        """
        if (is_cut := self._is_cut) is not None:
            self._feed.eager.run_beside(is_cut.assign, True)

    def any_process(self, *flags: bool) -> list[bool]:
        """Tells of each flag whether it is set in any process; to be asked by all of them at once."""
        return self._feed.eager.run(self._ask_all, flags)

    def _start(self, values: Mapping[str, np.ndarray]) -> None:
        super()._start(values)
        if not is_elsewhere(self.strategy):
            with tf.device("/device:CPU:0"):
                self._is_cut = tf.Variable(False, trainable=False)
        self._start_input()
        self._loop = _function_of_its_own(self._steps_in_graph)
        self._sum_of_flags = _function_of_its_own(self._sum_in_graph)

    def _start_input(self) -> None:
        self._iterator = self._feed.iterator()

    def _call_with_iterator(self, function: Callable[[tf.Tensor], Any]) -> Any:
        handle, *_ = tf.nest.flatten(self._iterator, expand_composites=True)
        with tf.device("/device:CPU:0"):
            return function(handle)

    def _free(self) -> None:
        super()._free()
        self._is_cut = None
        del self._iterator, self._loop, self._sum_of_flags

    def _ask_all(self, flags: Sequence[bool]) -> list[bool]:
        return self._sum_of_flags(tf.cast(flags, tf.int32)).numpy().astype(bool).tolist()

    def _sum_in_graph(self, flags: tf.Tensor) -> tf.Tensor:
        of_replicas = self.strategy.run(_one_replica(tf.identity), args=(flags,))
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, of_replicas, axis=None)

    def _make_steps(
        self, count: int, is_due: bool
    ) -> tuple[int, list[np.ndarray], list[np.ndarray], bool]:
        due = [] if self._gradients is None else [tf.constant(is_due)]
        if self._tables is not None:
            # Before: where the input ends with an error, steps have been made all the same.
            self._tables.step()
        made, *outputs, tensors = self._loop(self._iterator, tf.constant(count), *due)
        was_cut = self._is_cut is not None and bool(self._is_cut.numpy())
        values, of_host = ([each.numpy() for each in part] for part in (outputs, tensors))
        return int(made.numpy()), values, of_host, was_cut

    def _steps_in_graph(self, iterator: Any, count: tf.Tensor, *due: tf.Tensor) -> tuple[Any, ...]:
        """Makes the steps; returns their number, the values of `outputs`, and the host call's tensors."""
        # The loop stands in the graph, so that 100 steps cost one call from Python. It must end
        # early in two cases: the input has too few batches left for all replicas (`is_complete`),
        # and another thread cuts the loop (`_is_cut`), but never before its first step: a session
        # call that makes no step would be asked for again without end. `made` counts the steps that
        # were really made, also in these cases. TensorArrays grow with the loop; without a host
        # call there are none.
        arrays = [tf.TensorArray(dtype, size=count) for dtype in self._host_dtypes]

        def one_step(
            going: tf.Tensor,
            made: tf.Tensor,
            loss: tf.Tensor,
            summaries: list[tf.Tensor],
            arrays: list[Any],
        ) -> tuple[Any, ...]:
            draw, is_complete = self._feed.next_step(iterator)

            def make() -> tuple[Any, ...]:
                losses, *tensors = self._run_replicas(draw())
                watched, host_tensors = tensors[: len(self._watched)], tensors[len(self._watched) :]
                # The first replica's are everybody's.
                firsts = [self._local(values)[0] for values in watched]
                kept = [
                    self._gradients.summary(made, firsts, is_due=is_due, kept=summary)
                    for is_due, summary in zip(due, summaries)
                    if self._gradients is not None
                ]
                written = [
                    array.write(made, tf.concat(self._local(parts), axis=0))
                    for array, parts in zip(arrays, host_tensors)
                ]
                mean = self.strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)
                return going, made + 1, mean, kept, written

            if is_complete is None:
                return make()
            return tf.cond(
                is_complete, make, lambda: (tf.constant(False), made, loss, summaries, arrays)
            )

        def goes_on(going: tf.Tensor, made: tf.Tensor, *_: Any) -> tf.Tensor:
            going &= made < count
            return going if self._is_cut is None else going & (~self._is_cut | tf.equal(made, 0))

        no_loss, no_summaries = tf.zeros((), self.outputs[0].dtype), [tf.constant("")] * len(due)
        _, made, loss, summaries, arrays = tf.while_loop(
            goes_on,
            one_step,
            (tf.constant(True), tf.constant(0), no_loss, no_summaries, arrays),
            parallel_iterations=1,
        )
        return made, loss, *summaries, [self._stacked(array, made) for array in arrays]

    def _stacked(self, array: tf.TensorArray, made: tf.Tensor) -> tf.Tensor:
        if not self._feed.ends_unevenly:
            return array.gather(tf.range(made))
        # Of no steps there is no shape that they could have.
        return tf.cond(
            made > 0, lambda: array.gather(tf.range(made)), lambda: tf.zeros([0], array.dtype)
        )


class BatchSteps(_ReplicaSteps):
    """Makes one step of evaluation or prediction for each session call.

    Attributes:
        batches: Stands for the number of batches that a step took; the last of `outputs`.
    """

    def __init__(
        self,
        feed: StrategyFeed,
        *,
        averaged: Sequence[tf.Tensor],
        summed: Sequence[tf.Tensor],
        gathered: Sequence[tf.Tensor],
        effects: Sequence[Any],
        graph: tf.Graph,
        tables: StrategyTables | None = None,
    ) -> None:
        tensors = [*averaged, *summed, *gathered]
        self.batches = v1.placeholder(tf.int64, (), name="batches_of_step")
        updates = [effect.op if isinstance(effect, tf.Tensor) else effect for effect in effects]
        super().__init__(graph, feed, [*tensors, *updates], tables=tables)
        for tensor in gathered:
            if tensor.shape.rank == 0:
                raise RuntimeError(
                    f"The tensor {tensor.name} of a prediction or host function should preserve "
                    "batch size dimension, but it is a scalar: give it one with "
                    "tf.reshape(tensor, [1])."
                )
        self._combine: list[Callable[[Any], Any]] = (
            [_mean] * len(averaged) + [sum] * len(summed) + [np.concatenate] * len(gathered)
        )
        self._on_host = self._copier.copy(
            [Fetch(0, node) for node in [*tensors, *updates]],
            replaced=[{p.name: p for p in feed.placeholders}],
            name="on_host",
            alone=True,
        )
        self._tensor_count = len(tensors)
        self.outputs = (
            *(v1.placeholder(tensor.dtype, _any_batch(tensor.shape)) for tensor in tensors),
            self.batches,
        )

    def run(self, session: StrategySession) -> Mapping[tf.Tensor, np.ndarray]:
        """Makes the next step, on the replicas or on this host; returns its tensors."""
        group = self._feed.eager.run(next, self._groups, None)
        if group is None:
            raise tf.errors.OutOfRangeError(None, None, "End of the input.")
        if len(group) == self.strategy.num_replicas_in_sync:
            parts = self._feed.eager.run(self._on_replicas, group)
        else:
            # A strategy runs all replicas or none: the batches at the end that are too few for
            # them run here, one by one.
            parts = self._on_this_host(session, group[0])
        values = {
            output: combine(values)
            for output, combine, values in zip(self.outputs, self._combine, parts)
        }
        return {**values, self.batches: np.int64(len(group))}

    def value(self, handle: str) -> np.ndarray:
        """Returns a variable's value, with what this host has counted."""
        value = super().value(handle)
        return value + self._counted_here[handle] if handle in self._counted_here else value

    def _start(self, values: Mapping[str, np.ndarray]) -> None:
        super()._start(values)
        self._groups = self._feed.groups()
        self._function = _function_of_its_own(self._run_all)
        self._counted_here: dict[str, np.ndarray] = {}

    def _free(self) -> None:
        super()._free()
        self._groups.close()
        del self._groups, self._function

    def _run_all(self, element: Any) -> list[tuple[tf.Tensor, ...]]:
        return [self._local(values) for values in self._run_replicas(element)]

    def _on_replicas(self, group: list[list[tf.Tensor]]) -> list[list[np.ndarray]]:
        results = self._function(self._feed.distribute(group))
        return [[value.numpy() for value in values] for values in results]

    def _on_this_host(
        self, session: StrategySession, batch: list[tf.Tensor]
    ) -> list[list[np.ndarray]]:
        results = session.run_here(self._on_host, self._feed.host_values(batch))
        counted = session.read_here(sorted(self._local_names & {h.name for h in self.handles}))
        # The step here has read the replicas' counts, with what this host had counted before. They
        # go on without it, so what the session now has beyond theirs is this host's share.
        for name, value in counted.items():
            self._counted_here[name] = value - super().value(name)
        return [[value] for value in results[: self._tensor_count]]


def _one_replica(function: Callable[..., Any]) -> Callable[..., Any]:
    # The graph is imported, not written in Python: there is nothing to convert.
    return tf.autograph.experimental.do_not_convert(function)


def with_tensors(function: HostFunction, tensors: Iterator[tf.Tensor]) -> HostFunction:
    """Returns the same function of other tensors, taken from an iterator."""
    return dataclasses.replace(
        function, tensors=tf.nest.map_structure(lambda _: next(tensors), function.tensors)
    )


def _any_batch(shape: tf.TensorShape) -> tf.TensorShape:
    return tf.TensorShape([None, *shape[1:]]) if shape.rank else shape


def _mean(values: Sequence[np.ndarray]) -> np.ndarray:
    return np.mean(values, axis=0, dtype=np.float64).astype(values[0].dtype)


def _check_handles_are_variables(handles: Sequence[tf.Tensor]) -> None:
    others = [handle.op for handle in handles if handle.op.type != "VarHandleOp"]
    if others:
        raise ValueError(
            "Under a tf.distribute strategy a model can read only variables, but this one also "
            f"reads {[f'{op.name} ({op.type})' for op in others]}. Look tables up in input_fn."
        )


def _function_of_its_own(method: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a tf.function of which TensorFlow does not say that others of the same code were traced as well.

    Each training and evaluation of a process has one, and traces it once.
    """
    # TensorFlow counts tracings by a function's code, which a partial has not.
    return tf.function(functools.partial(method), autograph=False)
