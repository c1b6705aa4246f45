"""Runs the steps of a session on a `tf.distribute` strategy."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._engine.evaluating.metric_ops import with_any_rows
from tfx_tpu_trainer.estimator._engine.reporting.gradients import FirstStepOfLoop
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate
from tfx_tpu_trainer.estimator.places.host_functions import TracedHostFunction
from tfx_tpu_trainer.estimator.places.shardings import cut_variables
from tfx_tpu_trainer.estimator.places.strategy.feed import StrategyFeed, is_elsewhere
from tfx_tpu_trainer.estimator.places.strategy.replica_stages import ReplicaStages
from tfx_tpu_trainer.estimator.places.strategy.session import StrategySession
from tfx_tpu_trainer.estimator.places.strategy.tables import StrategyTables
from tfx_tpu_trainer.estimator.places.strategy.tf_private_strategy import (
    cores_per_replica,
    sum_in_replicas,
)
from tfx_tpu_trainer.estimator.places.strategy.variables import (
    StrategyVariables,
    check_are_variables,
)

v1 = tf.compat.v1


# A session runs a graph; a strategy runs eager functions and owns its variables. The problem: hooks,
# savers and step counters must see a session while the strategy runs the steps. So a step has two
# halves:
#
# - The session's graph has placeholders, the step's `outputs` (loss, metrics). `StrategySession`
#   calls `run` for a fetch of them, and `value` for a read of a variable.
# - In an eager thread, the strategy runs a copy of model_fn's graph for each replica.
#   `ReplicaStages` cuts that graph at its sums over replicas: with gradients g0 and g1 of two
#   replicas, the first stage returns g0 and g1, the strategy adds them, and the second stage
#   applies g0 + g1 in both.
#
# The invariant: outside of `run`, the replicas' variables are the truth, and the session's have only
# the values from which it started. A checkpoint is written from `value`.


class _ReplicaSteps:
    """The base class of all steps: the replicas' graph and their variables."""

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
        check_are_variables(self._replica.handles)
        self.inputs: Sequence[tf.Tensor] = feed.placeholders
        of_tables = () if tables is None else tables.handles
        self._of_tables = frozenset(handle.name for handle in of_tables)
        in_replicas = {handle.name for handle in self._replica.handles}
        if both := sorted(in_replicas & self._of_tables):
            raise ValueError(
                f"model_fn reads {both}, tables of embedding_config_spec: under a tf.distribute "
                "strategy they are not in the model. Read them with get_variable_value after "
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
            # Ids would be padded to the length of the longest replica's, as if they were rows.
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
        """Runs a replica's graph on given tensors; returns the fetched tensors, without operations."""
        context = tf.distribute.get_replica_context()

        def sum_over_replicas(addends: list[tf.Tensor]) -> list[tf.Tensor]:
            # One call for each type: strategies sum integers on the host, and do not mix types.
            totals: dict[int, tf.Tensor] = {}
            for dtype in dict.fromkeys(addend.dtype for addend in addends):
                places = [place for place, each in enumerate(addends) if each.dtype == dtype]
                of_type = [addends[place] for place in places]
                totals.update(zip(places, sum_in_replicas(context, of_type), strict=True))
            return [totals[place] for place in range(len(addends))]

        # TPUStrategy traces all replicas at once: the number is not a constant there, and each core draws other random
        # numbers anyway.
        replica_id = context.replica_id_in_sync_group
        number = int(tf.get_static_value(replica_id) or 0)
        handles = self._variables.local_handles()
        for name, variable in self._cut.items():
            variable.keep(handles[name])
        copies = self._replica.copy(
            {**given, self._feed.replica_id.name: tf.convert_to_tensor(replica_id), **handles},
            sum_over_replicas=sum_over_replicas,
            replica=number,
            unchanged=self._variables.unchanged_by(number),
        )
        # A replica returns only tensors, and ops for which none of them waits would not run.
        effects = [copy for copy in copies if isinstance(copy, tf.Operation)]
        with tf.control_dependencies(effects):
            return [tf.identity(copy) for copy in copies if not isinstance(copy, tf.Operation)]


class TrainingSteps(_ReplicaSteps):
    """Runs the number of training steps in the session's variable, in one function call."""

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
        # As an operation: a replica does not return its value.
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
        """Runs the steps of one session call and their host calls; returns the last loss."""
        count = 1 if self._iterations is None else int(session.run(self._iterations))
        is_due = self._is_due is not None and bool(session.run(self._is_due))
        made, outputs, host_tensors, was_cut = self._feed.eager.run(self._make_steps, count, is_due)
        # Steps before the end of the input have run: they count, and so do their host calls.
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
        """Ends the running loop after its current step, unless on TPUs or several processes; thread-safe."""
        if (is_cut := self._is_cut) is not None:
            self._feed.eager.run_beside(is_cut.assign, True)

    def any_process(self, *flags: bool) -> list[bool]:
        """Returns for each flag whether any process sets it; all processes must call this together."""
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
            # Before the loop, since steps have run even if the input ends with an error.
            self._tables.step()
        made, *outputs, tensors = self._loop(self._iterator, tf.constant(count), *due)
        was_cut = self._is_cut is not None and bool(self._is_cut.numpy())
        values, of_host = ([each.numpy() for each in part] for part in (outputs, tensors))
        return int(made.numpy()), values, of_host, was_cut

    def _steps_in_graph(self, iterator: Any, count: tf.Tensor, *due: tf.Tensor) -> tuple[Any, ...]:
        """Runs the steps; returns their number, the values of `outputs`, and the host call's tensors."""
        # The loop is in the graph, so 100 steps cost one call from Python. It ends early in two
        # cases: the input has too few batches left for all replicas (`is_complete`), or another
        # thread cuts the loop (`_is_cut`), but not before its first step: a session call without
        # steps would be repeated endlessly. `made` counts the steps that have run. Only a host call
        # needs TensorArrays, which grow with the loop.
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
                # The same on all replicas.
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
        # Without steps, the shape is unknown.
        return tf.cond(
            made > 0, lambda: array.gather(tf.range(made)), lambda: tf.zeros([0], array.dtype)
        )


class BatchSteps(_ReplicaSteps):
    """Runs one step of evaluation or prediction for each session call."""

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
        # The number of batches in a step; the last of `outputs`.
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
            *(v1.placeholder(tensor.dtype, with_any_rows(tensor.shape)) for tensor in tensors),
            self.batches,
        )

    def run(self, session: StrategySession) -> Mapping[tf.Tensor, np.ndarray]:
        """Runs the next step, on the replicas or on this host; returns its tensors."""
        group = self._feed.eager.run(next, self._groups, None)
        if group is None:
            raise tf.errors.OutOfRangeError(None, None, "End of the input.")
        if len(group) == self.strategy.num_replicas_in_sync:
            parts = self._feed.eager.run(self._on_replicas, group)
        else:
            # A strategy runs all replicas or none: at the end, batches too few for all run here,
            # one by one.
            parts = self._on_this_host(session, group[0])
        values = {
            output: combine(values)
            for output, combine, values in zip(self.outputs, self._combine, parts)
        }
        return {**values, self.batches: np.int64(len(group))}

    def value(self, handle: str) -> np.ndarray:
        """Returns a variable's value, with this host's counts."""
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
        # The step on this host started from the sum of the replicas' counts and this host's earlier
        # counts. The replicas continue from their own, so the difference was counted on this host.
        for name, value in counted.items():
            self._counted_here[name] = value - super().value(name)
        return [[value] for value in results[: self._tensor_count]]


def _one_replica(function: Callable[..., Any]) -> Callable[..., Any]:
    # The graph is imported instead of written in Python, so AutoGraph has nothing to convert.
    return tf.autograph.experimental.do_not_convert(function)


def _mean(values: Sequence[np.ndarray]) -> np.ndarray:
    return np.mean(values, axis=0, dtype=np.float64).astype(values[0].dtype)


def _function_of_its_own(method: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a tf.function without TensorFlow's warning of retracing."""
    # Each training and evaluation of a process traces its own function, once. TensorFlow counts tracings by a
    # function's code, which a partial lacks.
    return tf.function(functools.partial(method), autograph=False)
