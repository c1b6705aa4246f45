"""One training from start to end: checked, trained, evaluated, exported, written to artifacts."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import uuid
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.component import preconditions
from tfx_tpu_trainer.component.estimators import (
    make_estimator,
    model_params,
    run_config,
    seeded,
)
from tfx_tpu_trainer.component.evaluated_training import EvaluatedTraining
from tfx_tpu_trainer.component.hosts import ONLY_HOST, Host, outside_of_cluster
from tfx_tpu_trainer.component.results import all_or_nothing, write_metrics
from tfx_tpu_trainer.component.resume import CheckpointFolder, StillOursListener
from tfx_tpu_trainer.component.serving_step import ServingStep
from tfx_tpu_trainer.component.sliced_input import SlicedInput
from tfx_tpu_trainer.component.train_request import TrainRequest
from tfx_tpu_trainer.component.trainer_parameters import TrainSettings
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.schedule.tasks import start_server
from tfx_tpu_trainer.evaluation import EvalMetrics
from tfx_tpu_trainer.evaluation.learning_curve import Goal, LearningCurve, write_learning_curve
from tfx_tpu_trainer.inputs import TransformedInput, TransformServing
from tfx_tpu_trainer.inputs.user_module import UserModule

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """A request with everything it needs resolved: ready to run.

    Attributes:
        request: What was asked for.
        host: This process's part in it.
        estimator: The estimator that evaluates and exports, in this process alone. Its folder is
            `checkpoint_folder`, or else the ModelRun artifact's.
        train_input_fn: Input function for training.
        eval_input_fn: Input function for evaluation.
        serving_input_receiver_fn: Receiver for the export.
        host_estimator: The same estimator on the host, where it predicts what an exported model
            has to answer.
        estimator_at: Gives the estimator that trains on from a step, in the same folder, with the
            other hosts where there are some.
        sliced: The slices to measure and the input that they are found in, or `None`.
        checkpoint_folder: Where checkpoints are until the training has ended, so that another
            attempt finds them; `None` trains in the ModelRun artifact.
    """

    request: TrainRequest
    host: Host
    estimator: tpu.TPUEstimator
    train_input_fn: Callable[..., tf.data.Dataset]
    eval_input_fn: Callable[..., tf.data.Dataset]
    serving_input_receiver_fn: Callable[[], Any]
    host_estimator: tpu.TPUEstimator
    estimator_at: Callable[[int], tpu.TPUEstimator]
    sliced: SlicedInput | None = None
    checkpoint_folder: CheckpointFolder | None = None

    @classmethod
    def prepare(
        cls,
        request: TrainRequest,
        module: UserModule,
        *,
        host: Host = ONLY_HOST,
        checkpoint_folder: CheckpointFolder | None = None,
    ) -> Training:
        """Resolves defaults and checks what can be checked without training.

        Args:
            request: What is asked for.
            module: The user's module.
            host: This process's part. Defaults to that of the only host.
            checkpoint_folder: Where to keep checkpoints until the training has ended. Defaults to
                `None`: the ModelRun artifact.

        Returns:
            The training.

        Raises:
            ValueError: Something would go wrong later on; names the value and the fix.
        """
        settings, fn_args = request.settings, request.fn_args
        preconditions.check_in_cluster(settings, in_cluster=host.in_cluster)
        default_input = module.input_fn is None
        preconditions.check_label(
            request.transform_graph_path,
            settings.label_key,
            wanted=default_input and module.takes_labels,
        )
        preconditions.check_base_model(request.base_model)
        if host.is_chief:
            if default_input:
                _check_rows(request)
            preconditions.check_writable(request.model.uri, request.model_run.uri)
            if checkpoint_folder:
                preconditions.check_writable(
                    checkpoint_folder.path, called="checkpoint folder (setting checkpoint_root)"
                )
        receiver_fn = module.serving_receiver_for(fn_args) or TransformServing(
            transform_graph_path=request.transform_graph_path, label_key=settings.label_key
        )
        preconditions.check_receiver(receiver_fn)
        eval_input_fn = module.input_fn_for("eval", fn_args) or _eval_input(request).eval_fn()
        model_dir = checkpoint_folder.path if checkpoint_folder else request.model_run.uri
        with outside_of_cluster():
            sliced = SlicedInput.find(
                request,
                module,
                eval_input_fn,
                params=model_params(request, module),
                config=run_config(settings, model_dir=model_dir),
            )
        if sliced is not None:
            model_fn = sliced.slicing.model_fn(module.model_fn)
            module = dataclasses.replace(module, model_fn=model_fn)
        of_cores = ("master", "num_shards", "num_cores_per_replica")
        on_host = settings.model_copy(update={"use_tpu": False, **dict.fromkeys(of_cores)})

        def estimator_at(step: int) -> tpu.TPUEstimator:
            alone = contextlib.nullcontext() if host.in_cluster else outside_of_cluster()
            with alone:
                return make_estimator(request, module, seeded(settings, step), model_dir)

        with outside_of_cluster():
            estimator = make_estimator(request, module, settings, model_dir)
            host_estimator = make_estimator(request, module, on_host, model_dir)
        return cls(
            request=request,
            host=host,
            estimator=estimator,
            host_estimator=host_estimator,
            train_input_fn=module.input_fn_for("train", fn_args)
            or _train_input(request, host).train_fn(),
            eval_input_fn=eval_input_fn,
            serving_input_receiver_fn=receiver_fn,
            estimator_at=estimator_at,
            sliced=sliced,
            checkpoint_folder=checkpoint_folder,
        )

    def run(self, *, training_ended: Callable[[], None] = lambda: None) -> EvalMetrics:
        """Does the part of the only host, or of the chief of several.

        Trains, evaluates the last or the best checkpoint, exports it and fills the artifacts. On a
        failure nothing stays behind in the folders of the model and of its evaluation; checkpoints
        and events stay where they are.

        Args:
            training_ended: Called between training and evaluation. Defaults to nothing.

        Returns:
            The metrics.
        """
        request = self.request
        with all_or_nothing(request):
            with preconditions.missing_label_explained(request.settings.label_key):
                curve, checkpoint_path = self._train()
                training_ended()
                metrics = self._metrics_of(checkpoint_path, curve)
            if self.checkpoint_folder:
                self.checkpoint_folder.check_still_ours()
                self.checkpoint_folder.publish(request.model_run.uri)
                metrics, curve = self._in_model_run(metrics, curve)
            if curve is not None:
                write_learning_curve(request.model.uri, curve)
            self._export(metrics.checkpoint)
            write_metrics(request, metrics)
        if self.checkpoint_folder:
            self.checkpoint_folder.remove()
        return metrics

    def _train(self) -> tuple[LearningCurve | None, str | None]:
        """Trains; gives what evaluations on the way have found, and the checkpoint to export."""
        request, settings = self.request, self.request.settings
        start, listeners = 0, []
        if self.checkpoint_folder:
            start = self.checkpoint_folder.take_up()
            listeners.append(StillOursListener(self.checkpoint_folder))
        if not settings.evaluates_in_training:
            estimator = self.estimator_at(start)
            # The others wait for it. It lives as long as this process trains.
            server = start_server(estimator.config) if self.host.in_cluster else None
            estimator.train(
                self.train_input_fn, max_steps=request.train_steps, saving_listeners=listeners
            )
            del server
            return None, self.estimator.latest_checkpoint()
        training = EvaluatedTraining(
            estimator_at=self.estimator_at,
            train_input_fn=self.train_input_fn,
            eval_input_fn=self.eval_input_fn,
            max_steps=request.train_steps,
            eval_steps=request.eval_steps,
            every_steps=settings.eval_every_steps,
            every_secs=settings.eval_every_secs,
            goal=_goal(settings),
            saving_listeners=listeners,
        )
        curve = training.run()
        return curve, training.chosen_checkpoint(curve)

    def _metrics_of(self, checkpoint_path: str | None, curve: LearningCurve | None) -> EvalMetrics:
        if curve is None:
            return self._evaluate(checkpoint_path)
        if self.sliced is not None:
            return self._evaluate(checkpoint_path, name="exported")
        chosen = curve.best or curve.points[-1]
        return dataclasses.replace(chosen.metrics, checkpoint=checkpoint_path)

    def _in_model_run(
        self, metrics: EvalMetrics, curve: LearningCurve | None
    ) -> tuple[EvalMetrics, LearningCurve | None]:
        """Names the checkpoints by the place where they stay."""
        assert self.checkpoint_folder is not None
        before, after = self.checkpoint_folder.path, self.request.model_run.uri
        if curve is not None:
            curve = curve.with_checkpoints_moved(before, after)
            write_learning_curve(after, curve)
        return metrics.with_checkpoint_moved(before, after), curve

    def _evaluate(self, checkpoint_path: str | None, name: str | None = None) -> EvalMetrics:
        sliced = self.sliced
        result = self.estimator.evaluate_result(
            sliced.input_fn() if sliced else self.eval_input_fn,
            steps=self.request.eval_steps,
            checkpoint_path=checkpoint_path,
            name=name,
        )
        return sliced.slicing.metrics_of(result) if sliced else EvalMetrics.from_result(result)

    def _export(self, checkpoint_path: str | None) -> None:
        # Beside its final place, so that a server or Pusher never sees half of a model.
        staging = os.path.join(self.request.model.uri, f".export-{uuid.uuid4().hex}")
        exported = tf.compat.as_str_any(
            self.estimator.export_saved_model(
                staging, self.serving_input_receiver_fn, checkpoint_path=checkpoint_path
            )
        )
        ServingStep(
            request=self.request,
            receiver_fn=self.serving_input_receiver_fn,
            host_estimator=self.host_estimator,
        ).run(exported, checkpoint_path)
        tf.io.gfile.rename(exported, self.request.serving_model_dir)
        tf.io.gfile.rmtree(staging)


def _goal(settings: TrainSettings) -> Goal | None:
    if settings.best_metric is None:
        return None
    return Goal(
        metric=settings.best_metric,
        mode=settings.best_metric_mode,
        patience=settings.early_stopping_patience,
    )


def _train_input(request: TrainRequest, host: Host = ONLY_HOST) -> TransformedInput:
    files = request.fn_args.train_files
    if host.readers > 1:
        _logger.info("Reads part %d of %d of the training input.", host.reader + 1, host.readers)
    return dataclasses.replace(_input(request, files), shard=(host.reader, host.readers))


def _eval_input(request: TrainRequest) -> TransformedInput:
    return _input(request, request.fn_args.eval_files)


def _input(request: TrainRequest, files: list[str]) -> TransformedInput:
    return TransformedInput(
        transform_graph_path=request.transform_graph_path,
        file_patterns=tuple(files),
        dataset_factory=request.fn_args.data_accessor.tf_dataset_factory,
        label_key=request.settings.label_key,
        shuffle_seed=request.settings.tf_random_seed,
    )


def _check_rows(request: TrainRequest) -> None:
    # eval_fn goes through a split once with a short last batch: that is what is to be counted.
    preconditions.check_rows(
        _train_input(request).eval_fn(),
        batch_size=request.settings.train_batch_size,
        split=request.train_splits,
        training=True,
    )
    preconditions.check_rows(
        _eval_input(request).eval_fn(),
        batch_size=request.settings.rows_per_eval_batch,
        split=request.eval_splits,
        training=False,
    )
