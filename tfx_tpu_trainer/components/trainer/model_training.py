"""Trains, evaluates and exports a module's model_fn or Keras model with TPUEstimator."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf
import tensorflow_transform as tft

from tfx_tpu_trainer._support.progress import TRACE, expecting, phase
from tfx_tpu_trainer.components.evaluation import EvalMetrics
from tfx_tpu_trainer.components.evaluation._learning_curve import Goal, LearningCurve
from tfx_tpu_trainer.components.inputs import RowCache, TransformServing, train_on_current_rows
from tfx_tpu_trainer.components.trainer import preconditions
from tfx_tpu_trainer.components.trainer.early_stopping import EvaluatedTraining
from tfx_tpu_trainer.components.trainer.estimators import (
    make_estimator,
    model_params,
    run_config,
    seeded,
    strategies,
)
from tfx_tpu_trainer.components.trainer.hosts import (
    ALONE,
    EVALUATE_EVERY_SECONDS,
    ONLY_HOST,
    ChiefWatch,
    Host,
    help_chief,
)
from tfx_tpu_trainer.components.trainer.resume import (
    CheckpointFolder,
    LastSaved,
    StillOursListener,
    check_before_writing,
)
from tfx_tpu_trainer.components.trainer.rows import (
    RowLimit,
    check_default_input,
    check_input_ends,
    eval_input,
    failures_explained,
    row_cache_for,
    rows_of,
    train_input,
)
from tfx_tpu_trainer.components.trainer.serving_step import ServingStep, check_raw_examples
from tfx_tpu_trainer.components.trainer.settings import TrainSettings
from tfx_tpu_trainer.components.trainer.slicing import SlicedInput
from tfx_tpu_trainer.components.trainer.tpu_checks import check_tpu_graph, run_preflight
from tfx_tpu_trainer.components.trainer.train_job import TrainJob
from tfx_tpu_trainer.components.trainer.training import (
    Exported,
    Results,
    Training,
    writable_working_folder,
)
from tfx_tpu_trainer.components.user_module._module import UserModule, with_keras_model
from tfx_tpu_trainer.estimator import EvalSpec, ModeKeys, TrainSpec, tpu
from tfx_tpu_trainer.estimator.extending import (
    MetaGraph,
    OpenEvaluation,
    RowSample,
    RowSampler,
    call_input_fn,
    emulates,
    log_not_saved,
    remove_first_values,
    remove_positions,
    session_master,
    start_server,
)
from tfx_tpu_trainer.serving import Finding

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A trained model."""

    checkpoint_path: str | None  # The checkpoint to export: the best one, or else the last one.
    curve: LearningCurve | None = None  # Evaluations during training; `None` if there were none.
    # The rows of that checkpoint's evaluation; `None` if this process did not run it.
    rows: RowSample | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelTraining(Training[TrainedModel]):
    """A training of a module's model_fn or Keras model."""

    estimator: tpu.TPUEstimator  # Evaluates and exports, only in this process.
    train_input_fn: Callable[..., tf.data.Dataset]
    eval_input_fn: Callable[..., tf.data.Dataset]
    serving_input_receiver_fn: Callable[[], Any]
    # The same estimator on the host, which predicts the answers that the exported model must give.
    host_estimator: tpu.TPUEstimator
    # Returns the same estimator with other settings.
    estimator_with: Callable[[TrainSettings], tpu.TPUEstimator]
    # Returns the estimator that continues from a step, in the same folder and with the other hosts.
    estimator_at: Callable[[int], tpu.TPUEstimator]
    # Measures the exported model, with its slices.
    evaluation: OpenEvaluation
    # Evaluates during training, without slices: these are measured once, at the end.
    evaluation_on_the_way: OpenEvaluation
    # Why another attempt has to read the training's input from its beginning; `""` if it continues with the next rows.
    input_not_saved: str
    # The slices to measure and their input, or `None`.
    sliced: SlicedInput | None = None
    # The row limit of an evaluation that reads the module's own input; `None`: no limit.
    row_limit: RowLimit | None = None
    # Keeps the training's parsed rows; `None` parses them in each epoch.
    row_cache: RowCache | None = None
    # Samples the evaluations' rows; `None` if this process does not see them.
    sampler: RowSampler | None = None
    # The result of compiling the exported graph for TPU hosts; `None` if there is none yet.
    compiled: Finding | None = None
    # The exported graphs, as traced before the training.
    meta_graphs: tuple[MetaGraph, ...] = ()

    @property
    def params(self) -> Mapping[str, Any]:
        """The params of model_fn, except the vocabularies' sizes, which depend on the data."""
        params = self.estimator.params
        return {name: value for name, value in params.items() if name != "vocabulary_sizes"}

    @property
    def batch_size(self) -> int:
        """Rows per training step, over all cores."""
        return self.job.settings.train_batch_size

    @classmethod
    def prepare(
        cls,
        job: TrainJob,
        module: UserModule,
        *,
        host: Host = ONLY_HOST,
        checkpoint_folder: CheckpointFolder | None = None,
    ) -> ModelTraining:
        """Resolves defaults, and checks as much as possible without training."""
        settings, fn_args = job.settings, job.fn_args
        preconditions.check_in_cluster(settings, in_cluster=host.in_cluster)
        default_input = module.input_fn is None
        preconditions.check_transform_graph(job.transform_graph_path)
        preconditions.check_label(
            job.transform_graph_path,
            settings.label_key,
            wanted=default_input and module.takes_labels,
        )
        preconditions.check_base_model(job.base_model)
        rows = rows_of(job) if default_input else ()
        if host.is_chief and rows:
            check_default_input(job, rows)
        if host.is_chief:
            check_raw_examples(job)
        model_dir = writable_working_folder(job, host, checkpoint_folder)
        config = run_config(settings, model_dir=model_dir, tf_config=ALONE)
        module = with_keras_model(
            module,
            model_params(job, module),
            features=tft.TFTransformOutput(job.transform_graph_path).transformed_feature_spec()
            if default_input
            else None,
            label_key=settings.label_key,
            config=config,
            warm_start_from=job.base_model,
        )
        receiver_fn = module.serving_receiver_for(fn_args) or TransformServing(
            transform_graph_path=job.transform_graph_path,
            label_key=settings.label_key,
            not_served=module.not_served,
        )
        preconditions.check_receiver(receiver_fn, transform_graph_path=job.transform_graph_path)
        eval_input_fn = module.input_fn_for("eval", fn_args) or eval_input(job).eval_fn()
        row_limit = None if default_input else RowLimit.of(job)
        if row_limit is not None and host.is_chief:
            params = {**model_params(job, module), "batch_size": settings.rows_per_eval_batch}
            check_input_ends(
                lambda: _call_early(eval_input_fn, params, config), called="eval_args.num_steps"
            )
        with failures_explained(rows):
            sliced = SlicedInput.find(
                job,
                module,
                eval_input_fn,
                params=model_params(job, module),
                config=config,
                row_limit=row_limit,
            )
        on_this_host = not session_master(config.evaluation_master)
        sampler = RowSampler() if on_this_host and not strategies(settings) else None
        if sampler is not None:
            model_fn = sampled_model_fn(module.model_fn, sampler)
            module = dataclasses.replace(module, model_fn=model_fn)
        if sliced is not None:
            model_fn = sliced.slicing.model_fn(module.model_fn, on_this_host=on_this_host)
            module = dataclasses.replace(module, model_fn=model_fn)
        of_cores = ("master", "num_shards", "num_cores_per_replica")
        on_host = settings.model_copy(update={"use_tpu": False, **dict.fromkeys(of_cores)})

        input_not_saved = _why_input_is_not_saved(settings, host, default_input=default_input)
        goes_on = not input_not_saved
        row_cache = row_cache_for(job, host, checkpoints=model_dir) if default_input else None

        def estimator_with(others: TrainSettings) -> tpu.TPUEstimator:
            return make_estimator(job, module, others, model_dir, tf_config=ALONE)

        # Exact resume: if checkpoints hold the input's position, the part of a training that begins at a step reads the
        # next rows. Otherwise it reads the input from its beginning, and the same seed would draw the rows of step 0
        # again; so the seed changes with the step. Each part gets a new estimator, since a RunConfig is immutable.
        def estimator_at(step: int) -> tpu.TPUEstimator:
            return make_estimator(
                job,
                module,
                settings if goes_on else seeded(settings, step),
                model_dir,
                tf_config=None if host.in_cluster else ALONE,
                save_input_position=goes_on,
            )

        estimator = estimator_with(settings)
        open_evaluation = functools.partial(
            OpenEvaluation,
            estimator,
            steps=job.eval_steps,
            hooks=_limiting(row_limit),
            keeps_session=True,
        )
        evaluation = open_evaluation(sliced.input_fn() if sliced else eval_input_fn)
        return cls(
            job=job,
            host=host,
            estimator=estimator,
            evaluation=evaluation,
            evaluation_on_the_way=open_evaluation(eval_input_fn) if sliced else evaluation,
            host_estimator=estimator_with(on_host),
            train_input_fn=module.input_fn_for("train", fn_args)
            or train_input(job, host, row_cache).train_fn(),
            eval_input_fn=eval_input_fn,
            serving_input_receiver_fn=receiver_fn,
            estimator_with=estimator_with,
            estimator_at=estimator_at,
            input_not_saved=input_not_saved,
            sliced=sliced,
            checkpoint_folder=checkpoint_folder,
            rows=rows,
            row_limit=row_limit,
            row_cache=row_cache,
            sampler=sampler,
        )

    def checked_before_training(self) -> ModelTraining:
        """Builds the graphs that come after the training; compiles its steps if the settings request it."""
        # A module mended after days of training starts over, since its source is part of a checkpoint's identity.
        settings, training = self.job.settings, self._exporting(export_to_tpu=False)
        with failures_explained(self.rows), phase(TRACE):
            if self._evaluates_here:
                self.evaluation.trace()
            meta_graphs = (
                training.estimator.build_graphs(self.serving_input_receiver_fn)
                if settings.export_to_cpu
                else ()
            )
        if settings.export_to_tpu is not False:
            for_tpu = self._exporting(export_to_tpu=True, export_to_cpu=False).estimator
            checked = check_tpu_graph(for_tpu, self.serving_input_receiver_fn, settings)
            if checked is not None:
                meta_graphs = (*meta_graphs, checked.meta_graph)
                training = dataclasses.replace(self, compiled=checked.finding)
        run_preflight(
            self.job,
            self.estimator,
            train_input_fn=self.train_input_fn,
            eval_input_fn=self.sliced.input_fn() if self.sliced else self.eval_input_fn,
        )
        return dataclasses.replace(training, meta_graphs=meta_graphs)

    def _exporting(self, **graphs: bool) -> ModelTraining:
        """Returns the same training with other exported graphs."""
        settings = self.job.settings.model_copy(update=graphs)
        return dataclasses.replace(
            self,
            job=dataclasses.replace(self.job, settings=settings),
            estimator=self.estimator_with(settings),
        )

    def help_chief(self, watch: ChiefWatch) -> None:
        """Trains, evaluates or serves variables, according to this task of the cluster."""
        with failures_explained(self.rows):
            help_chief(
                self.host.role,
                self.estimator_at(0),
                TrainSpec(self.train_input_fn, max_steps=self.job.train_steps),
                EvalSpec(
                    self.eval_input_fn,
                    steps=self.job.eval_steps,
                    hooks=_limiting(self.row_limit),
                    start_delay_secs=0,
                    throttle_secs=EVALUATE_EVERY_SECONDS,
                ),
                watch,
            )

    def train(self) -> TrainedModel:
        """Trains to the last step, or until the goal's patience ends."""
        job, settings = self.job, self.job.settings
        start, listeners = 0, []
        if self.input_not_saved:
            log_not_saved(self.input_not_saved)
        if self.checkpoint_folder:
            start = self.checkpoint_folder.take_up()
            listeners.append(StillOursListener(self.checkpoint_folder))
        if not settings.evaluates_in_training:
            estimator = self.estimator_at(start)
            # The others wait for this server, which runs as long as this process trains.
            server = start_server(estimator.config) if self.host.in_cluster else None
            last_saved = LastSaved()
            with expecting(last_step=job.train_steps, next_evaluation=lambda: "after the training"):
                train_on_current_rows(
                    lambda hooks: estimator.train(
                        self.train_input_fn,
                        hooks=hooks,
                        max_steps=job.train_steps,
                        saving_listeners=[*listeners, last_saved],
                    ),
                    self.row_cache,
                    batch_size=settings.train_batch_size,
                )
            del server
            self._forget_input()
            return TrainedModel(last_saved.path(self.estimator.model_dir))
        best: list[RowSample | None] = [None]

        def keep_rows() -> None:
            best[0] = self._rows()

        training = EvaluatedTraining(
            estimator_at=self.estimator_at,
            train_input_fn=self.train_input_fn,
            evaluation=self.evaluation_on_the_way,
            max_steps=job.train_steps,
            every_steps=settings.eval_every_steps,
            every_secs=settings.eval_every_secs,
            goal=_goal(settings),
            saving_listeners=listeners,
            before_writing=check_before_writing(self.checkpoint_folder),
            on_best=keep_rows,
            row_cache=self.row_cache,
            batch_size=settings.train_batch_size,
            keeps_session=self._evaluates_here,
        )
        curve = training.run()
        self.evaluation_on_the_way.close()
        self._forget_input()
        rows = best[0] if curve.best else self._rows()
        return TrainedModel(training.chosen_checkpoint(curve), curve, rows)

    def evaluate(self, trained: TrainedModel) -> Results:
        """Evaluates the checkpoint, unless the learning curve has its metrics and no slices are requested."""
        curve = trained.curve
        if curve is None:
            metrics = self._metrics_of(trained.checkpoint_path)
            return Results(metrics=metrics, rows=self._rows())
        if self.sliced is not None:
            metrics, rows = self._metrics_of(trained.checkpoint_path, name="exported"), self._rows()
        else:
            rows = trained.rows
            chosen = curve.best or curve.points[-1]
            metrics = dataclasses.replace(chosen.metrics, checkpoint=trained.checkpoint_path)
        return Results(metrics=metrics, curve=curve, rows=rows)

    def export(
        self, trained: TrainedModel, checkpoint_path: str | None, folder: str
    ) -> Iterator[Exported]:
        """Exports the metagraphs that the settings request."""
        with phase("export"):
            exported = self.estimator.export_graphs(
                folder, self.meta_graphs, checkpoint_path=checkpoint_path
            )
        yield Exported(
            path=tf.compat.as_str_any(exported),
            final=self.job.serving_model_dir,
            serving_step=ServingStep(
                job=self.job,
                receiver_fn=self.serving_input_receiver_fn,
                host_estimator=self.host_estimator,
                compiled=self.compiled,
            ),
        )

    def _forget_input(self) -> None:
        """Removes the input's positions, which no attempt needs any more: they contain rows, and would be published."""
        if self.row_cache:
            self.row_cache.release()
        check_before_writing(self.checkpoint_folder)()
        remove_positions(self.estimator.model_dir)
        remove_first_values(self.estimator.model_dir)

    @property
    def _evaluates_here(self) -> bool:
        """Whether sessions of this process can evaluate, without a TPU or a strategy."""
        config = self.estimator.config
        master = session_master(config.evaluation_master)
        return (
            not master
            and config.eval_distribute is None
            and (
                not self.job.settings.use_tpu or emulates(config.evaluation_master or config.master)
            )
        )

    def _rows(self) -> RowSample | None:
        """Returns rows of the last evaluation."""
        return self.sampler.taken() if self.sampler else None

    def _metrics_of(self, checkpoint_path: str | None, name: str | None = None) -> EvalMetrics:
        result = self.evaluation.evaluate(checkpoint_path, name=name)
        self.evaluation.close()
        if self.sliced:
            return self.sliced.slicing.metrics_of(result)
        return EvalMetrics.from_result(result)


def _limiting(row_limit: RowLimit | None) -> list[tf.compat.v1.train.SessionRunHook]:
    return [] if row_limit is None else [row_limit.hook()]


def sampled_model_fn(model_fn: Callable[..., Any], sampler: RowSampler) -> Callable[..., Any]:
    """Wraps a model_fn to sample the rows that its eval_metrics get."""

    @functools.wraps(model_fn)
    def sampled(features: Any, **rest: Any) -> Any:
        spec = model_fn(features, **rest)
        if not isinstance(spec, tpu.TPUEstimatorSpec) or spec.eval_metrics is None:
            return spec
        metric_fn, tensors = spec.eval_metrics
        return spec._replace(eval_metrics=(sampler.metric_fn(metric_fn), tensors))

    return sampled


def _call_early(input_fn: Callable[..., Any], params: Mapping[str, Any], config: Any) -> Any:
    """Calls an input function before there is an estimator, which may pass more params than these."""
    try:
        return call_input_fn(input_fn, mode=ModeKeys.EVAL, params=params, config=config)
    except Exception as error:  # Any error will come up again in the evaluation.
        _logger.info("Can't tell yet whether the evaluation's input ends: %s", error)
        return None


def _why_input_is_not_saved(settings: TrainSettings, host: Host, *, default_input: bool) -> str:
    if settings.save_input_position is False:
        return "save_input_position=False"
    if not default_input and settings.save_input_position is None:
        return (
            "the input_fn is the module's own, and its Python code may hold state that no "
            "checkpoint saves; save_input_position=True saves its dataset"
        )
    if host.in_cluster:
        return (
            "the workers of a cluster with parameter servers step asynchronously, so no "
            "checkpoint records which of their rows it has seen"
        )
    if strategies(settings):
        return "a TPUStrategy reads the input itself"
    return ""


def _goal(settings: TrainSettings) -> Goal | None:
    if settings.best_metric is None:
        return None
    return Goal(
        metric=settings.best_metric,
        mode=settings.best_metric_mode,
        patience=settings.early_stopping_patience,
    )
