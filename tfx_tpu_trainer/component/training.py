"""One training from start to end: checked, trained, evaluated, exported, written to artifacts."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.component import preconditions
from tfx_tpu_trainer.component.evaluated_training import EvaluatedTraining
from tfx_tpu_trainer.component.serving_step import ServingStep
from tfx_tpu_trainer.component.settings import TrainSettings
from tfx_tpu_trainer.component.sliced_input import SlicedInput
from tfx_tpu_trainer.component.train_request import TrainRequest
from tfx_tpu_trainer.component.user_module import UserModule
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.evaluation import (
    EvalMetrics,
    metric_properties,
    set_properties,
    write_eval_metrics,
    write_model_evaluation,
)
from tfx_tpu_trainer.evaluation.learning_curve import Goal, write_learning_curve
from tfx_tpu_trainer.inputs import (
    TransformedInput,
    TransformServing,
    vocabulary_sizes,
)

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """A request with everything it needs resolved: ready to run.

    Attributes:
        request: What was asked for.
        estimator: The estimator; its folder is the ModelRun artifact's.
        train_input_fn: Input function for training.
        eval_input_fn: Input function for evaluation.
        serving_input_receiver_fn: Receiver for the export.
        host_estimator: The same estimator on the host, where it predicts what an exported model
            has to answer.
        estimator_at: Gives the estimator that trains on from a step, in the same folder.
        sliced: The slices to measure and the input that they are found in, or `None`.
    """

    request: TrainRequest
    estimator: tpu.TPUEstimator
    train_input_fn: Callable[..., tf.data.Dataset]
    eval_input_fn: Callable[..., tf.data.Dataset]
    serving_input_receiver_fn: Callable[[], Any]
    host_estimator: tpu.TPUEstimator
    estimator_at: Callable[[int], tpu.TPUEstimator]
    sliced: SlicedInput | None = None

    @classmethod
    def prepare(cls, request: TrainRequest, module: UserModule) -> Training:
        """Resolves defaults and checks what can be checked without training.

        Args:
            request: What is asked for.
            module: The user's module.

        Returns:
            The training.

        Raises:
            ValueError: Something would go wrong later on; names the value and the fix.
        """
        settings, fn_args = request.settings, request.fn_args
        default_input = module.input_fn is None
        preconditions.check_label(
            request.transform_graph_path,
            settings.label_key,
            wanted=default_input and module.takes_labels,
        )
        if default_input:
            _check_rows(request)
        preconditions.check_base_model(request.base_model)
        preconditions.check_writable(request.model.uri, request.model_run.uri)
        receiver_fn = module.serving_receiver_for(fn_args) or TransformServing(
            transform_graph_path=request.transform_graph_path, label_key=settings.label_key
        )
        preconditions.check_receiver(receiver_fn)
        eval_input_fn = module.input_fn_for("eval", fn_args) or _eval_input(request).eval_fn()
        sliced = SlicedInput.find(
            request,
            module,
            eval_input_fn,
            params=model_params(request, module),
            config=_run_config(settings, model_dir=request.model_run.uri),
        )
        if sliced is not None:
            model_fn = sliced.slicing.model_fn(module.model_fn)
            module = dataclasses.replace(module, model_fn=model_fn)
        of_cores = ("master", "num_shards", "num_cores_per_replica")
        on_host = settings.model_copy(update={"use_tpu": False, **dict.fromkeys(of_cores)})
        return cls(
            request=request,
            estimator=_estimator(request, module, settings),
            host_estimator=_estimator(request, module, on_host),
            train_input_fn=module.input_fn_for("train", fn_args)
            or _train_input(request).train_fn(),
            eval_input_fn=eval_input_fn,
            serving_input_receiver_fn=receiver_fn,
            estimator_at=lambda step: _estimator(request, module, _seeded(settings, step)),
            sliced=sliced,
        )

    def run(self) -> EvalMetrics:
        """Trains, evaluates the last or the best checkpoint, exports it and fills the artifacts.

        On a failure nothing stays behind in the folders of the model and of its evaluation;
        checkpoints and events stay in model_run.

        Returns:
            The metrics.
        """
        request = self.request
        written = [request.model.uri, *([request.evaluation.uri] if request.evaluation else [])]
        with _emptied_on_failure(*written):
            with preconditions.missing_label_explained(request.settings.label_key):
                metrics = self._train_and_evaluate()
            self._export(metrics.checkpoint)
            write_eval_metrics(request.model.uri, metrics)
            properties = metric_properties(metrics)
            set_properties(request.model, properties)
            if request.evaluation:
                write_model_evaluation(
                    request.evaluation.uri, metrics, model_location=request.model.uri
                )
                set_properties(request.evaluation, properties)
        _logger.info("Model written to %s", request.serving_model_dir)
        return metrics

    def _train_and_evaluate(self) -> EvalMetrics:
        request, settings = self.request, self.request.settings
        if not settings.evaluates_in_training:
            self.estimator.train(self.train_input_fn, max_steps=request.train_steps)
            return self._evaluate(None)
        training = EvaluatedTraining(
            estimator_at=self.estimator_at,
            train_input_fn=self.train_input_fn,
            eval_input_fn=self.eval_input_fn,
            max_steps=request.train_steps,
            eval_steps=request.eval_steps,
            every_steps=settings.eval_every_steps,
            every_secs=settings.eval_every_secs,
            goal=_goal(settings),
        )
        curve = training.run()
        write_learning_curve(request.model.uri, curve)
        checkpoint_path = training.chosen_checkpoint(curve)
        if self.sliced is not None:
            return self._evaluate(checkpoint_path, name="exported")
        chosen = curve.best or curve.points[-1]
        return dataclasses.replace(chosen.metrics, checkpoint=checkpoint_path)

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


def model_params(request: TrainRequest, module: UserModule) -> dict[str, Any]:
    """Gathers the params that model_fn gets besides those of the engine.

    Args:
        request: What is asked for.
        module: The user's module.

    Returns:
        `vocabulary_sizes` (name -> entries of Transform's vocabularies), then the module's own
        params, the component's, and the HyperParameters artifact's: later ones win.
    """
    return {
        "vocabulary_sizes": vocabulary_sizes(request.transform_graph_path),
        **module.params_for(request.fn_args),
        **request.settings.params,
        **request.hyperparameters,
    }


def _estimator(
    request: TrainRequest, module: UserModule, settings: TrainSettings
) -> tpu.TPUEstimator:
    return tpu.TPUEstimator(
        model_fn=module.model_fn,
        config=_run_config(settings, model_dir=request.model_run.uri),
        params=model_params(request, module),
        use_tpu=settings.use_tpu,
        eval_on_tpu=settings.use_tpu,
        train_batch_size=settings.train_batch_size,
        eval_batch_size=settings.rows_per_eval_batch,
        predict_batch_size=settings.rows_per_predict_batch,
        export_to_cpu=settings.export_to_cpu,
        export_to_tpu=settings.export_to_tpu,
        export_saved_model_api_version=settings.export_saved_model_api_version,
        warm_start_from=request.base_model,
    )


def _seeded(settings: TrainSettings, step: int) -> TrainSettings:
    """Gives the settings of a training that goes on from a step.

    Its input begins anew, and with the same seed it would give the same rows again.
    """
    if settings.tf_random_seed is None:
        return settings
    return settings.model_copy(update={"tf_random_seed": settings.tf_random_seed + step})


def _goal(settings: TrainSettings) -> Goal | None:
    if settings.best_metric is None:
        return None
    return Goal(
        metric=settings.best_metric,
        mode=settings.best_metric_mode,
        patience=settings.early_stopping_patience,
    )


def _run_config(settings: TrainSettings, *, model_dir: str) -> tpu.RunConfig:
    optional: Mapping[str, Any] = {
        "master": settings.master,
        "save_checkpoints_steps": settings.save_checkpoints_steps,
        "tf_random_seed": settings.tf_random_seed,
    }
    return tpu.RunConfig(
        model_dir=model_dir,
        keep_checkpoint_max=settings.keep_checkpoint_max,
        save_summary_steps=settings.save_summary_steps,
        log_step_count_steps=settings.log_step_count_steps,
        tpu_config=tpu.TPUConfig(
            # On the host a session call is one step, and a larger number would only make
            # TPUEstimator report its speed that much more often.
            iterations_per_loop=settings.iterations_per_loop if settings.use_tpu else 1,
            num_shards=settings.num_shards,
            num_cores_per_replica=settings.num_cores_per_replica,
        ),
        **{name: value for name, value in optional.items() if value is not None},
    )


def _train_input(request: TrainRequest) -> TransformedInput:
    return _input(request, request.fn_args.train_files)


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


@contextlib.contextmanager
def _emptied_on_failure(*folders: str) -> Iterator[None]:
    """Removes what the block has put into folders, and the folders themselves, if it fails."""
    try:
        yield
    except BaseException:
        for folder in folders:
            if tf.io.gfile.isdir(folder):
                tf.io.gfile.rmtree(folder)
        raise
