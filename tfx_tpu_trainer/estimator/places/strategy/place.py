"""Runs a call under a `tf.distribute` strategy: `RunConfig(train_distribute=..., ...)`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.checkpointing.savers import ObjectScaffold
from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import SUM
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation_plan import EvaluationPlan
from tfx_tpu_trainer.estimator._engine.loops.step_loop import create_iterations
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import Loops
from tfx_tpu_trainer.estimator._engine.prediction import PredictionPlan, select_predictions
from tfx_tpu_trainer.estimator._engine.reporting.gradients import (
    Asked,
    FirstStepOfLoop,
    add_histograms_of_weights,
    find_gradients,
    log_no_gradients,
    log_not_written,
)
from tfx_tpu_trainer.estimator._engine.template import HostFunction, ModelTemplate
from tfx_tpu_trainer.estimator._engine.training.training_plan import TrainingPlan, check_train_op
from tfx_tpu_trainer.estimator._modes import ModeKeys, on_cores
from tfx_tpu_trainer.estimator.places.host import plan_evaluation_on_host
from tfx_tpu_trainer.estimator.places.host_functions import refuse_captured_tensors
from tfx_tpu_trainer.estimator.places.one_core import OneCoreGraphHook
from tfx_tpu_trainer.estimator.places.outside_compilation import outside_marked, with_effects
from tfx_tpu_trainer.estimator.places.place import Call, Hooks, Trace, asked_of, gradient_hook
from tfx_tpu_trainer.estimator.places.refused_ops import (
    check_gradients_are_combined,
    refuse_ops_that_end_the_process,
)
from tfx_tpu_trainer.estimator.places.shardings import (
    check_input_partitions,
    check_shardings,
    input_partitions,
    tiled,
)
from tfx_tpu_trainer.estimator.places.stateless_random import draw_by_step
from tfx_tpu_trainer.estimator.places.strategy import tf_private_strategy
from tfx_tpu_trainer.estimator.places.strategy.feed import (
    StrategyFeed,
    is_elsewhere,
    is_of_tpus,
    spans_processes,
)
from tfx_tpu_trainer.estimator.places.strategy.plan import (
    named_with_replicas,
    place_evaluation_under_strategy,
    place_prediction_under_strategy,
    place_training_under_strategy,
)
from tfx_tpu_trainer.estimator.places.strategy.tables import StrategyTables

v1 = tf.compat.v1

_SCAFFOLD_PARTS = (
    "init_op",
    "init_fn",
    "ready_op",
    "ready_for_local_init_op",
    "local_init_op",
    "summary_op",
    "saver",
)


@dataclasses.dataclass(frozen=True)
class StrategyTrace(Trace):
    """A call that was traced for one replica of a strategy."""

    feed: StrategyFeed
    # The tables of its embeddings, outside of the replicas; `None` if there are none.
    tables: StrategyTables | None


class EmbeddedCall(Protocol):
    """A call whose ids are looked up outside of its model."""

    # The call, with its functions wrapped.
    call: Call

    def update(self) -> HostFunction | None:
        """Returns the function that trains the tables, after the trace."""

    def make_tables(self) -> StrategyTables | None:
        """Makes the tables in the graph of the trace; `None` if there are none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnderStrategy:
    """A `Place` under a `tf.distribute` strategy."""

    # Its input_fn is called once for each worker, with the worker's context; each replica gets one batch of its
    # dataset. Its model_fn is called with one replica's features and labels.
    call: Call
    strategy: tf.distribute.Strategy
    # Added to the params of both functions.
    added: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Whether model_fn is written for strategies: `tf.distribute` shows it the replicas, and its optimizers combine
    # gradients. A model_fn for TPU cores wraps its optimizer in a `CrossShardOptimizer`.
    sees_strategy: bool = True
    # How many steps of training a session call runs; `None` for one.
    loops: Loops | None = None
    # TPU cores of a replica, as in `TPUConfig`; `None` for as many as the strategy has.
    num_cores_per_replica: int | None = None
    # How a replica's input is cut over its cores.
    input_partition_dims: Sequence[Any] | None = None
    # Wraps the call for each trace, if there are embeddings outside of the model.
    embed: Callable[[Call, tf.distribute.Strategy], EmbeddedCall] | None = None

    def trace(self) -> StrategyTrace:
        """Calls model_fn once, on placeholders of one replica."""
        call, strategy = self.call, self.strategy
        cores = self._cores_of_replica()
        embedded = None if self.embed is None else self.embed(call, strategy)
        call = call if embedded is None else embedded.call
        feed = StrategyFeed(
            strategy,
            lambda context: call.call_input_fn(self.added, context),
            repeated=call.mode == ModeKeys.TRAIN,
            saved=call.config.save_input_position,
            on_host=embedded is not None,
        )
        features, labels = feed.make_placeholders()
        labels = None if call.mode == ModeKeys.PREDICT else labels
        inputs = self._cut_input(features, labels)
        replicas = strategy.num_replicas_in_sync
        with contextlib.ExitStack() as stack:
            # For programs for TPUs: a CrossShardOptimizer reads the number of replicas, a head
            # whether there are several. The last one is for programs for strategies.
            stack.enter_context(tf_private.replicas(replicas))
            stack.enter_context(on_cores())
            stack.enter_context(outside_marked())
            if self.sees_strategy:
                traced = tf_private_strategy.TracedStrategy(replicas)
                stack.enter_context(traced.tracing(feed.replica_id))
            spec = call.call_model_fn(*inputs, self.added)
        template = with_effects(spec.as_template(mode=call.mode, features=features, labels=labels))
        if template.loss is not None and template.loss.dtype.is_integer:
            # The mean of the replicas' losses is not an integer.
            template = dataclasses.replace(template, loss=tf.cast(template.loss, tf.float64))
        template = refuse_captured_tensors(
            template, runs_on=f"the replicas of {named_with_replicas(strategy)}"
        )
        check_shardings(template, cores=cores)
        if embedded is not None:
            template = dataclasses.replace(template, table_update=embedded.update())
        if call.mode == ModeKeys.TRAIN and call.config.save_input_position:
            draw_by_step(template)
        if not is_of_tpus(strategy):
            refuse_ops_that_end_the_process(template)
        scaffold = template.make_scaffold()
        given = [part for part in _SCAFFOLD_PARTS if getattr(scaffold, part) is not None]
        if given and not isinstance(scaffold, ObjectScaffold):
            raise ValueError(
                f"A Scaffold with {given} can't be used under {named_with_replicas(strategy)}, a tf.distribute "
                "strategy, whose variables do not belong to a session. Leave scaffold "
                "(scaffold_fn) out, or train without the strategy."
            )
        template = dataclasses.replace(template, make_scaffold=lambda: scaffold)
        tables = None if embedded is None else embedded.make_tables()
        return StrategyTrace(template, [], feed, tables)

    def plan_training(
        self, *, steps: int | None, max_steps: int | None
    ) -> tuple[TrainingPlan, Hooks]:
        """Plans training; see `Place`."""
        trace = self.trace()
        trains = check_train_op(trace.template)
        if self.strategy.num_replicas_in_sync > 1 and trains:
            self._check_replicas_train_together(trace.template.graph)
        asked = asked_of(self.call.config)
        gradients = self._watched_gradients(trace.template, asked) if asked else None
        stop_hook: v1.train.SessionRunHook | None = None
        if self.loops is None:
            iterations, longest, every = None, 1, 1
            if steps is not None or max_steps is not None:
                stop_hook = v1.train.StopAtStepHook(num_steps=steps, last_step=max_steps)
        else:
            iterations = create_iterations()
            longest, every = self.loops.longest, self.loops.host_call_every_n_steps
            stop_hook = self.loops.hook(iterations, steps=steps, max_steps=max_steps)
        placed = place_training_under_strategy(
            trace.template,
            trace.feed,
            iterations=iterations,
            host_call_every_n_steps=every,
            gradients=gradients,
            tables=trace.tables,
        )
        hooks = [*placed.hooks, OneCoreGraphHook(cores=self.strategy.num_replicas_in_sync)]
        if gradients is not None:
            assert placed.gradients is not None
            hooks.append(gradient_hook(gradients, placed.gradients, self.call.config))
            if asked.histograms:
                add_histograms_of_weights(placed.template, after=placed.template.loss)
        plan = TrainingPlan(
            template=placed.template,
            train_op=placed.template.train_op,
            loss=placed.template.loss,
            stop_hook=stop_hook,
            steps_per_call=longest,
            session_creator=placed.session_creator,
            saved_input=placed.saved_input,
            end_loop=placed.end_loop,
            agreed_stop=placed.agreed_stop,
            ran_on=named_with_replicas(self.strategy),
        )
        return plan, hooks

    def plan_evaluation(self, *, steps: int | None) -> tuple[EvaluationPlan, Hooks]:
        """Plans an evaluation, a step of all replicas in each session call; see `Place`."""
        self._check_in_this_process()
        trace = self.trace()
        placed = place_evaluation_under_strategy(trace.template, trace.feed, tables=trace.tables)
        plan = plan_evaluation_on_host(placed.template, steps=steps, batches=placed.batches)
        plan = dataclasses.replace(
            plan,
            make_loop=None,
            session_creator=placed.session_creator,
            ran_on=named_with_replicas(self.strategy),
        )
        return plan, list(placed.hooks)

    def plan_prediction(
        self, predict_keys: Sequence[str] | str | None
    ) -> tuple[PredictionPlan, Hooks]:
        """Plans a prediction, a step of all replicas in each session call; see `Place`."""
        self._check_in_this_process()
        trace = self.trace()
        predictions = select_predictions(trace.template.predictions, predict_keys)
        placed = place_prediction_under_strategy(
            trace.template, predictions, trace.feed, tables=trace.tables
        )
        plan = PredictionPlan(
            placed.template, placed.template.predictions, session_creator=placed.session_creator
        )
        return plan, list(placed.hooks)

    def _watched_gradients(self, template: ModelTemplate, asked: Asked) -> FirstStepOfLoop | None:
        if is_elsewhere(self.strategy) or spans_processes(self.strategy):
            # A TPU would return them in every step, and all processes must make the same sums.
            log_not_written(named_with_replicas(self.strategy))
            return None
        gradients = find_gradients(template, replicas=self.strategy.num_replicas_in_sync)
        if not gradients:
            log_no_gradients()
            return None
        return FirstStepOfLoop(gradients, asked)

    def _check_replicas_train_together(self, graph: tf.Graph) -> None:
        if not self.sees_strategy:
            check_gradients_are_combined(graph)
        elif not any(op.type == SUM for op in graph.get_operations()):
            raise ValueError(
                f"The train_op of model_fn has no sum over the replicas of {named_with_replicas(self.strategy)},"
                " so each would train on its own. Let an optimizer of tf.compat.v1.train or "
                "tf.keras.optimizers.legacy apply the gradients, or sum them with "
                "tf.distribute.get_replica_context().all_reduce('SUM', gradients)."
            )

    def _cores_of_replica(self) -> int:
        cores = tf_private_strategy.cores_per_replica(self.strategy)
        asked = self.num_cores_per_replica
        if asked in (None, cores) or not is_elsewhere(self.strategy):
            # Replicas of other strategies are single devices, as emulated ones are.
            return asked or cores
        raise ValueError(
            f"TPUConfig(num_cores_per_replica={asked}) needs replicas of {asked} cores, and those of "
            f"{named_with_replicas(self.strategy)} have {cores}: make it with TPUStrategy(resolver, "
            "experimental_device_assignment=tf.tpu.experimental.DeviceAssignment.build(topology, "
            "computation_shape=..., num_replicas=...)), or change the number."
        )

    def _cut_input(self, features: Any, labels: Any) -> tuple[Any, Any]:
        """Annotates the input for a TPU's compiler with the way it is cut; the strategy sends it whole."""
        dims = self.input_partition_dims
        cuts = tf_private_strategy.cores_per_replica(self.strategy) > 1
        check_input_partitions(dims, features=features, labels=labels, evenly=cuts)
        counts = input_partitions(dims, features=features, labels=labels) if cuts else {}

        def cut(leaf: Any) -> Any:
            if not isinstance(leaf, tf.Tensor) or leaf.name not in counts:
                return leaf
            return tf_private.with_sharding(leaf, tiled(counts[leaf.name]))

        return tf.nest.map_structure(cut, (features, labels))

    def _check_in_this_process(self) -> None:
        if spans_processes(self.strategy):
            raise ValueError(
                f"{named_with_replicas(self.strategy)} has replicas in other processes, but only training runs "
                "over several processes. Leave eval_distribute out of RunConfig, or add an "
                "evaluator task for train_and_evaluate."
            )
