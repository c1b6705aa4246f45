"""Traces a call for cores, emulated or real, and plans what a session runs."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator import _estimator_spec
from tfx_tpu_trainer.estimator._engine import nan_checks, tf_private
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import GraphCopier, ReplicaCopier
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation_plan import EvaluationPlan
from tfx_tpu_trainer.estimator._engine.loops.step_loop import StepLoop
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import Loops
from tfx_tpu_trainer.estimator._engine.prediction import PredictionPlan, select_predictions
from tfx_tpu_trainer.estimator._engine.reporting.gradients import (
    Asked,
    FirstStepOfLoop,
    add_histograms_of_weights,
)
from tfx_tpu_trainer.estimator._engine.reporting.summaries import HostCallHook, leave_out_summaries
from tfx_tpu_trainer.estimator._engine.sessions.run_errors import keep_from_hooks
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate
from tfx_tpu_trainer.estimator._engine.training.training_plan import TrainingPlan
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator.places.host_functions import refuse_captured_tensors
from tfx_tpu_trainer.estimator.places.one_core import OneCoreGraphHook
from tfx_tpu_trainer.estimator.places.outside_compilation import outside_marked, with_effects
from tfx_tpu_trainer.estimator.places.place import (
    Call,
    Hooks,
    Lookups,
    Trace,
    asked_of,
    gradient_hook,
)
from tfx_tpu_trainer.estimator.places.shardings import check_input_partitions
from tfx_tpu_trainer.estimator.places.stateless_random import draw_by_step
from tfx_tpu_trainer.estimator.tpu._run_config import RunConfig
from tfx_tpu_trainer.estimator.tpu._tpu_context import TPUContext, with_padding
from tfx_tpu_trainer.estimator.tpu._tpu_estimator_spec import TPUEstimatorSpec, make_host_scaffold
from tfx_tpu_trainer.estimator.tpu.cores.evaluation_and_prediction import (
    CoreEvaluation,
    check_predictions,
    plan_prediction_on_cores,
)
from tfx_tpu_trainer.estimator.tpu.cores.feed import CoreFeed, FiniteFeed
from tfx_tpu_trainer.estimator.tpu.cores.job_input import GoingOn, JobInput, slices_of, sources_of
from tfx_tpu_trainer.estimator.tpu.cores.run import CoreRun, core_run_of
from tfx_tpu_trainer.estimator.tpu.cores.tpu_system import TPUSystem

v1 = tf.compat.v1
_logger = tf.get_logger()


@dataclasses.dataclass(frozen=True)
class CoreTrace(Trace):
    """A call that was traced for one core.

    Attributes:
        run: How the call runs.
        feed: Returns each core its rows; outside of training a `FiniteFeed`.
        is_padding: In mode `"infer"`, the placeholder that marks the rows of padding.
        embeddings: The tensors between the core and embedding tables, or `None`.
        reading: How the job reads its input, in the saved form; empty outside of training, and on TPUs.
    """

    run: CoreRun
    feed: CoreFeed
    is_padding: tf.Tensor | None
    embeddings: Lookups | None = None
    reading: str = ""

    @property
    def finite_feed(self) -> FiniteFeed:
        """The feed of an evaluation or prediction, whose input ends."""
        assert isinstance(self.feed, FiniteFeed)
        return self.feed


def trace_on_cores(
    run: CoreRun, call: Call, *, prepare: Callable[[Any], Any] | None = None
) -> CoreTrace:
    """Calls the user's functions in the default graph, and model_fn on one replica's placeholders."""
    # `prepare` changes a batch's (features, labels) before it is cut.
    going_on = None
    if run.mode == ModeKeys.TRAIN and run.system is None:
        going_on = GoingOn.from_checkpoint(JobInput.on_cores(run), call.config)
    if going_on is None or going_on.as_it_began:
        sources, slices = sources_of(run, call), slices_of(run, put_together=False)
    else:
        sources = [going_on.read(call, batch_axis=run.batch_axis)]
        slices = slices_of(run, put_together=True)
    if prepare is not None:
        sources = [source.changed(prepare) for source in sources]
    feed: CoreFeed
    if run.mode == ModeKeys.TRAIN:
        feed = CoreFeed(sources, slices, batch_axes=run.batch_axis)
    else:
        feed = FiniteFeed(
            sources,
            slices,
            batch_axes=run.batch_axis,
            batch_size=run.sizes.input_fn,
            padded=run.mode == ModeKeys.PREDICT,
        )
    features, is_padding = feed.features, None
    if run.mode == ModeKeys.PREDICT:
        is_padding = v1.placeholder(tf.bool, [run.sizes.model_fn], name="is_padding")
        features = with_padding(features, is_padding)
    check_input_partitions(
        run.input_partition_dims,
        features=feed.features,
        labels=feed.labels,
        evenly=run.system is not None,
    )
    if v1.get_collection(v1.GraphKeys.QUEUE_RUNNERS):
        _logger.warning(
            "Input pipeline contains one or more QueueRunners. It could be slow and not scalable. "
            "Please consider converting your input pipeline to use `tf.data` instead (see "
            "https://www.tensorflow.org/guide/datasets for instructions.)"
        )
    added = {
        "batch_size": run.sizes.model_fn,
        "use_tpu": True,
        "context": TPUContext(
            run.layout, run.input_mode, job=run.job, device_assignment=run.device_assignment
        ),
    }
    # Summaries from input_fn are on the host and stay; those of model_fn would be read from cores and are left out
    # below.
    of_input = {summary.name for summary in v1.get_collection(v1.GraphKeys.SUMMARIES)}
    # While model_fn is called, TensorFlow's code must find replicas: CrossShardOptimizer reads their number, and
    # divides a mean's loss by it.
    with tf_private.replicas(run.cores), outside_marked():
        spec = _call_for_spec(call, features, feed.labels, added)
    leave_out_summaries(kept=of_input, told=run.mode == ModeKeys.TRAIN)
    template = spec.as_template(mode=run.mode, features=features, labels=feed.labels)
    _check_loss(template)
    template = refuse_captured_tensors(with_effects(template), runs_on="TPU cores")
    if going_on is not None:
        going_on.warn_of_changes(template)
    if run.mode == ModeKeys.TRAIN and call.config.save_input_position:
        draw_by_step(template)
    make_scaffold = v1.train.Scaffold
    if isinstance(spec, TPUEstimatorSpec) and spec.scaffold_fn is not None:
        # Called once, just before its session opens: a saver must also find variables of metrics and host_call, which
        # are made after this trace.
        make_scaffold = functools.partial(
            make_host_scaffold, spec.scaffold_fn, [*feed.placeholders, is_padding]
        )
    template = dataclasses.replace(template, make_scaffold=make_scaffold)
    keep_from_hooks([*feed.placeholders, *([] if is_padding is None else [is_padding])])
    hooks = [hook for source in sources for hook in source.hooks]
    # Summary writers must be opened wherever they were made: in host_call or in model_fn itself.
    hooks.append(HostCallHook([]))
    hooks.append(OneCoreGraphHook(cores=run.cores, sources=feed.first_sources))
    reading = "" if going_on is None else going_on.job.text
    return CoreTrace(template, hooks, run, feed, is_padding, reading=reading)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoreCall:
    """A call on cores, emulated or not."""

    call: Call
    config: RunConfig
    batch_size: int | None  # Rows of a step over all replicas.
    batch_axis: Sequence[int | None] | None  # The axis of each input tensor to split, or `None`.
    loops: Loops  # How many steps of training a session call makes.
    # Traces the call. Defaults to `trace_on_cores`; embeddings wrap it.
    trace: Callable[[CoreRun, Call], CoreTrace] = trace_on_cores

    def trace_on(self, system: TPUSystem | None) -> CoreTrace:
        """Traces the call on a TPU's cores, or on emulated ones without a TPU."""
        run = core_run_of(
            self.call.mode,
            config=self.config,
            global_batch_size=self.batch_size,
            batch_axis=self.batch_axis,
            system=system,
        )
        return self.trace(run, self.call)


@dataclasses.dataclass(frozen=True)
class OnCores(abc.ABC):
    """A `Place` on cores: the base class for emulated and real ones."""

    core_call: CoreCall

    @abc.abstractmethod
    def trace(self) -> CoreTrace:
        """Calls the user's functions as on cores; see `Place`."""

    @abc.abstractmethod
    def watched_gradients(self, trace: CoreTrace, asked: Asked) -> FirstStepOfLoop | None:
        """Returns the gradients to write; `None`, with a log line, if they can't be read."""

    @abc.abstractmethod
    def place_training(self, trace: CoreTrace, gradients: FirstStepOfLoop | None) -> StepLoop:
        """Makes the loop of a session call's steps, which also keeps the gradients to write."""

    @abc.abstractmethod
    def named(self, cores: int) -> str:
        """Describes where a call runs, given the number of replicas."""

    @abc.abstractmethod
    def for_cores(self, trace: CoreTrace, copier: GraphCopier) -> ReplicaCopier:
        """Returns the copier to the cores, given the copier to this host."""

    def trace_to_run(self) -> CoreTrace:
        """Traces a call that will be run here."""
        return self.trace()

    def plan_training(
        self, *, steps: int | None, max_steps: int | None
    ) -> tuple[TrainingPlan, Hooks]:
        """Plans training, with a loop of steps per session call; see `Place`."""
        trace, loops = self.trace_to_run(), self.core_call.loops
        config = self.core_call.config
        asked = asked_of(config)
        gradients = self.watched_gradients(trace, asked) if asked else None
        loop = self.place_training(trace, gradients)
        loop_hook = loops.hook(loop.iterations, steps=steps, max_steps=max_steps)
        hooks = trace.hooks
        if gradients is not None:
            hooks = [*hooks, gradient_hook(gradients, gradients.kept_after(loop.loss), config)]
            if asked.histograms:
                add_histograms_of_weights(trace.template, after=loop.loss)
        # Variables are checked after each loop, but not under BROADCAST, as in the original.
        plan = TrainingPlan(
            template=trace.template,
            train_op=loop.loss if trace.run.broadcast else nan_checks.fail_at_nan_after(loop.loss),
            loss=loop.loss,
            stop_hook=loop_hook,
            steps_per_call=loops.longest,
            end_loop=loop_hook.end_loop,
            ran_on=self.named(trace.run.cores),
            reading=trace.reading,
        )
        return plan, hooks

    def plan_evaluation(self, *, steps: int | None) -> tuple[EvaluationPlan, Hooks]:
        """Plans an evaluation, with all batches in one session call; see `Place`."""
        trace = self.trace_to_run()
        plan = CoreEvaluation(
            trace.template,
            trace.finite_feed,
            cores=trace.run.cores,
            broadcast=trace.run.broadcast,
            steps=steps,
            for_cores=functools.partial(self.for_cores, trace),
        ).plan()
        plan = dataclasses.replace(plan, ran_on=self.named(trace.run.cores))
        return plan, [*trace.hooks, *_variable_check_hooks(trace.run)]

    def plan_prediction(
        self, predict_keys: Sequence[str] | str | None
    ) -> tuple[PredictionPlan, Hooks]:
        """Plans a prediction, with one batch per session call; see `Place`."""
        trace = self.trace_to_run()
        assert trace.is_padding is not None
        check_predictions(trace.template.predictions)
        plan = plan_prediction_on_cores(
            trace.template,
            select_predictions(trace.template.predictions, predict_keys),
            trace.finite_feed,
            trace.is_padding,
            cores=trace.run.cores,
            broadcast=trace.run.broadcast,
            for_cores=functools.partial(self.for_cores, trace),
        )
        return plan, [*trace.hooks, *_variable_check_hooks(trace.run)]


def _variable_check_hooks(run: CoreRun) -> Hooks:
    """Returns the hooks that check once per session that variables are finite."""
    return [] if run.broadcast else [nan_checks.VariableChecksHook()]


def _call_for_spec(call: Call, features: Any, labels: Any, added: dict[str, Any]) -> Any:
    try:
        spec = call.call_model_fn(features, labels, added)
    except _estimator_spec.NoSpecError as error:
        if call.mode == ModeKeys.TRAIN:
            raise
        # As in the original, this is an error about the spec's type.
        _check_spec(error.returned, call.mode)
        raise
    _check_spec(spec, call.mode)
    return spec


def _check_loss(template: ModelTemplate) -> None:
    """Rejects an integer loss, as in the original; a host trains with one, but cores do not."""
    loss = template.loss
    if template.mode == ModeKeys.PREDICT or loss is None or loss.dtype.is_floating:
        return
    raise TypeError(
        "Mismatch between input types and output types for training loop body: loss must be of a "
        f"floating-point type on TPU cores, given: {loss!r}. Cast it: tf.cast(loss, tf.float32)."
    )


def _check_spec(spec: Any, mode: str) -> None:
    if isinstance(spec, TPUEstimatorSpec):
        return
    if mode != ModeKeys.TRAIN:
        raise RuntimeError(
            f"estimator_spec used by TPU {'evaluation' if mode == ModeKeys.EVAL else 'prediction'} "
            f"must have type`TPUEstimatorSpec`. Got {type(spec)}. The metrics and the scaffold of "
            "other specs can't be read from the cores; a head makes one with "
            "create_tpu_estimator_spec."
        )
    if spec.training_chief_hooks:
        raise ValueError(
            "training_chief_hooks returned by EstimatorSpec is not supported in TPUEstimator. If "
            "you want to pass training hooks, please pass via training_hooks."
        )
    _logger.warning(
        "EstimatorSpec.Scaffold is ignored by TPU train/eval. Please use TPUEstimatorSpec."
    )
