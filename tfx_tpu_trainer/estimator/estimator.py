"""Trains, evaluates, predicts and exports a model_fn."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.engine import checkpoints, evaluation, prediction, sessions, training
from tfx_tpu_trainer.engine.evaluation import EvalResult
from tfx_tpu_trainer.engine.evaluation_events import write_evaluation_events
from tfx_tpu_trainer.engine.evaluation_plan import EvaluationPlan, plan_evaluation_on_host
from tfx_tpu_trainer.engine.input_pipeline import InputTensors, as_input_tensors
from tfx_tpu_trainer.engine.placement.host import place_on_host
from tfx_tpu_trainer.engine.template import ModelTemplate
from tfx_tpu_trainer.engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator import spec_checks, user_calls
from tfx_tpu_trainer.estimator.callables import check_model_fn
from tfx_tpu_trainer.estimator.construction import (
    check_listeners,
    check_members_are_not_overridden,
    checkpoint_of,
    complete_config,
)
from tfx_tpu_trainer.estimator.export.saved_model import export_saved_model
from tfx_tpu_trainer.estimator.mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.predicted_rows import select_predictions, single_rows
from tfx_tpu_trainer.estimator.run_config import RunConfig
from tfx_tpu_trainer.estimator.task_environment import TaskType
from tfx_tpu_trainer.estimator.warm_start import as_warm_start_settings, warm_start

v1 = tf.compat.v1
_logger = tf.get_logger()


class Estimator:
    """Trains, evaluates, predicts and exports a model_fn; mirrors `tf.estimator.Estimator`.

    Every call makes a new graph, calls input_fn and model_fn once in it and restores the
    latest checkpoint of `model_dir`.

    Example:
    ```python
    estimator = Estimator(model_fn, model_dir="runs/model", params={"rate": 0.1})
    estimator.train(train_input_fn, max_steps=1000)
    metrics = estimator.evaluate(eval_input_fn)
    ```
    """

    def __init__(
        self,
        model_fn: Callable[..., Any] | None = None,
        model_dir: str | os.PathLike[str] | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: Any = None,
    ) -> None:
        """Checks the arguments and keeps copies of them.

        Args:
            model_fn: Takes `features` and, if it likes, `labels`, `mode`, `params` and
                `config`; returns an `EstimatorSpec`.
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else
                to a temporary folder.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            params: What model_fn and input_fn get as `params`. Defaults to `None`, an empty
                dict.
            warm_start_from: Where first values come from: a checkpoint, a SavedModel or
                `WarmStartSettings`. Defaults to `None`.

        Raises:
            ValueError: If an argument does not hold.
        """
        check_members_are_not_overridden(type(self), Estimator)
        if model_fn is None:
            raise ValueError("model_fn must be provided to Estimator; got None.")
        check_model_fn(model_fn, params)
        self._model_fn = model_fn
        self._config, self._model_dir = complete_config(config, model_dir)
        self._params = copy.deepcopy(dict(params or {}))
        self._warm_start_settings = as_warm_start_settings(warm_start_from)

    @property
    def model_dir(self) -> str:
        """Folder of checkpoints and events."""
        return self._model_dir

    @property
    def config(self) -> RunConfig:
        """A copy of the configuration."""
        return copy.deepcopy(self._config)

    @property
    def params(self) -> dict[str, Any]:
        """A copy of the params."""
        return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> Callable[..., Any]:
        """The model_fn with `params` bound: a function of features, labels, mode, config."""

        def public_model_fn(features: Any, labels: Any, mode: str, config: RunConfig) -> Any:
            return self._call_model_fn(features, labels, mode, config=config)

        return public_model_fn

    def latest_checkpoint(self) -> str | None:
        """Gives the path of the latest checkpoint, or `None` before training."""
        return checkpoints.latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """Gives the names of the variables in the latest checkpoint.

        Raises:
            ValueError: If the model is not trained.
        """
        return checkpoints.variable_names(self.model_dir)

    def get_variable_value(self, name: str | Sequence[str]) -> np.ndarray | list[np.ndarray]:
        """Gives the value of a variable in the latest checkpoint.

        Args:
            name: A name, or a list of names (which the original does not take).

        Returns:
            The value, or a list of values.

        Raises:
            ValueError: If the model is not trained, or has no such variable.
        """
        if isinstance(name, str):
            return checkpoints.variable_value(self.model_dir, name)
        return [checkpoints.variable_value(self.model_dir, each) for each in name]

    def eval_dir(self, name: str | None = None) -> str:
        """Gives the folder of an evaluation's events.

        Args:
            name: Name of the evaluation. Defaults to `None`, the unnamed one.
        """
        return os.path.join(self.model_dir, "eval" if not name else f"eval_{name}")

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[v1.train.SessionRunHook] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[v1.train.CheckpointSaverListener] | None = None,
    ) -> Estimator:
        """Trains the model.

        Goes on from the latest checkpoint and writes one at the end.

        Args:
            input_fn: Gives the training data: a `tf.data.Dataset` of (features, labels), or
                the tensors themselves.
            hooks: Hooks of the session. Defaults to `None`.
            steps: Steps to make now. Defaults to `None`: until the data ends.
            max_steps: Global step to stop at; excludes `steps`. Defaults to `None`.
            saving_listeners: Listeners told of every checkpoint. Defaults to `None`.

        Returns:
            The estimator itself.

        Raises:
            ValueError: If the steps do not hold, if this process is a ps or an evaluator, or
                from a function that the user gave.
            TypeError: If a hook or listener is of the wrong type.
            NanLossError: If the loss became NaN.
        """
        if self._config.task_type in (TaskType.EVALUATOR, TaskType.PS):
            raise ValueError(
                f"Train has been called wrong configuration: this task is {self._config.task_type}"
                " in TF_CONFIG. Please use train_and_evaluate, which starts each task's part."
            )
        self._check_train_steps(steps, max_steps)
        if max_steps is not None and checkpoints.global_step_of(self.model_dir) >= max_steps:
            _logger.info("Skipping training since max_steps has already saved.")
            return self
        all_hooks = spec_checks.check_hooks(hooks)
        listeners = check_listeners(saving_listeners)
        with self._fresh_graph():
            plan, own_hooks = self._plan_training(input_fn, steps=steps, max_steps=max_steps)
            if not self.latest_checkpoint():
                self._warm_start()
            training.train(
                plan,
                settings=self._session_settings(),
                hooks=[*own_hooks, *all_hooks],
                saving_listeners=listeners,
            )
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[v1.train.SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluates the model.

        Args:
            input_fn: Gives the evaluation data, as in `train`.
            steps: Batches to evaluate. Defaults to `None`: until the data ends.
            hooks: Hooks of the session. Defaults to `None`.
            checkpoint_path: Checkpoint to evaluate. Defaults to the latest; where there is
                none, the variables are initialized.
            name: Name of the evaluation, for its events. Defaults to `None`.

        Returns:
            Metric name -> NumPy value, with `loss` (the mean of the batch losses) and
            `global_step`.

        Raises:
            ValueError: If the steps do not hold, the data is empty, or from a function that
                the user gave.
        """
        return dict(
            self.evaluate_result(
                input_fn, steps=steps, hooks=hooks, checkpoint_path=checkpoint_path, name=name
            ).metrics
        )

    def evaluate_result(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[v1.train.SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> EvalResult:
        """Evaluates the model and tells more than `evaluate`: rows, loss by rows, seconds.

        Ours; the original has no such method. Arguments and errors are those of `evaluate`.

        Returns:
            The result.
        """
        self._check_eval_steps(steps)
        all_hooks = spec_checks.check_hooks(hooks)
        checkpoint_path = checkpoint_path or self.latest_checkpoint()
        if not checkpoint_path:
            _logger.warning("No checkpoint in %s: evaluating initial values.", self.model_dir)
        with self._fresh_graph():
            plan, own_hooks = self._plan_evaluation(input_fn, steps=steps)
            if not checkpoint_path:
                self._warm_start()
            result = evaluation.evaluate(
                plan,
                settings=self._session_settings(),
                hooks=[*own_hooks, *all_hooks],
                checkpoint_path=checkpoint_path,
            )
            write_evaluation_events(result, output_dir=self.eval_dir(name))
        return result

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Sequence[str] | str | None = None,
        hooks: Sequence[v1.train.SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yields predictions.

        Nothing runs, not even a check, before the generator is first advanced. Closing it, or
        breaking out of a loop over it, closes its session.

        Args:
            input_fn: Gives the features; labels of its Dataset are dropped.
            predict_keys: Predictions to keep. Defaults to `None`, all.
            hooks: Hooks of the session. Defaults to `None`.
            checkpoint_path: Checkpoint to use. Defaults to the latest; where there is none,
                the variables are initialized.
            yield_single_examples: Whether rows are yielded one by one. Defaults to `True`;
                `False` yields whole batches.

        Yields:
            Rows or batches of predictions.

        Raises:
            ValueError: If none of the keys is there, or rows are asked for and the predictions
                of a batch differ in length.
        """
        all_hooks = spec_checks.check_hooks(hooks)
        checkpoint_path = checkpoint_path or self.latest_checkpoint()
        if not checkpoint_path:
            _logger.warning("No checkpoint in %s: predicting initial values.", self.model_dir)
        with self._fresh_graph():
            plan, own_hooks = self._plan_prediction(input_fn, predict_keys)
            if not checkpoint_path:
                self._warm_start()
        batches = prediction.predict_batches(
            plan,
            settings=self._session_settings(),
            hooks=[*own_hooks, *all_hooks],
            checkpoint_path=checkpoint_path,
        )
        with contextlib.closing(batches):
            yield from single_rows(batches) if yield_single_examples else batches

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        experimental_mode: str = ModeKeys.PREDICT,
    ) -> bytes:
        """Exports the model for serving.

        Args:
            export_dir_base: Folder to make the timestamped folder in.
            serving_input_receiver_fn: Gives a `ServingInputReceiver`.
            assets_extra: Name below `assets.extra` -> file to copy. Defaults to `None`.
            as_text: Whether the model is written as text. Defaults to `False`.
            checkpoint_path: Checkpoint to export. Defaults to the latest.
            experimental_mode: Must be `"infer"`, the default.

        Returns:
            The path of the export.

        Raises:
            ValueError: If there is no checkpoint or no receiver function, or the mode is
                another one.
        """
        if experimental_mode != ModeKeys.PREDICT:
            raise ValueError(
                f"experimental_mode={experimental_mode!r} can't be exported; use "
                f"{ModeKeys.PREDICT!r}, the serving graph."
            )
        checkpoint_path = checkpoint_path or self.latest_checkpoint()
        if not checkpoint_path and self._warm_start_settings:
            checkpoint_path = checkpoint_of(self._warm_start_settings.ckpt_to_initialize_from)
        if not checkpoint_path:
            raise ValueError(
                f"Couldn't find trained model at {self.model_dir}. Train before you export, or "
                "name a checkpoint_path."
            )
        return export_saved_model(
            export_dir_base=export_dir_base,
            call_model=self._call_model_for_export,
            serving_input_receiver_fn=serving_input_receiver_fn,
            checkpoint_path=checkpoint_path,
            random_seed=self._config.tf_random_seed,
            session_config=self._config.session_config,
            assets_extra=assets_extra,
            as_text=as_text,
            **self._export_options(),
        )

    def _export_options(self) -> dict[str, Any]:
        return {"export_to_cpu": True, "export_to_tpu": False, "api_version": 1}

    def _call_model_for_export(self, features: Any, labels: Any, mode: str, use_tpu: bool) -> Any:
        del use_tpu
        return self._call_model_fn(features, labels, mode)

    def _check_train_steps(self, steps: int | None, max_steps: int | None) -> None:
        if steps is not None and max_steps is not None:
            raise ValueError(
                f"Can not provide both steps and max_steps; got {steps} and {max_steps}."
            )
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is not None and value <= 0:
                raise ValueError(f"Must specify {name} > 0, given: {value}")

    def _check_eval_steps(self, steps: int | None) -> None:
        if steps is not None and steps <= 0:
            raise ValueError(f"Must specify steps > 0, given: {steps}")

    def _plan_training(
        self, input_fn: Callable[..., Any], *, steps: int | None, max_steps: int | None
    ) -> tuple[training.TrainingPlan, list[v1.train.SessionRunHook]]:
        """Traces the model in the default graph and plans its training.

        Returns:
            The plan, and the hooks that input and placement need.
        """
        template, hooks = self._trace(input_fn, ModeKeys.TRAIN)
        plan = training.plan_training_on_host(template, steps=steps, max_steps=max_steps)
        return plan, hooks

    def _plan_evaluation(
        self, input_fn: Callable[..., Any], *, steps: int | None
    ) -> tuple[EvaluationPlan, list[v1.train.SessionRunHook]]:
        """Traces the model in the default graph and plans its evaluation; see above."""
        template, hooks = self._trace(input_fn, ModeKeys.EVAL)
        return plan_evaluation_on_host(template, steps=steps), hooks

    def _plan_prediction(
        self, input_fn: Callable[..., Any], predict_keys: Sequence[str] | str | None
    ) -> tuple[prediction.PredictionPlan, list[v1.train.SessionRunHook]]:
        """Traces the model in the default graph and plans its prediction; see above."""
        template, hooks = self._trace(input_fn, ModeKeys.PREDICT)
        predictions = select_predictions(template.predictions, predict_keys)
        return prediction.PredictionPlan(template, predictions), hooks

    def _trace(
        self, input_fn: Callable[..., Any], mode: str
    ) -> tuple[ModelTemplate, list[v1.train.SessionRunHook]]:
        """Calls input_fn and model_fn in the default graph and places the template.

        Returns:
            The template, and the hooks that input and placement need.
        """
        inputs = self._call_input_fn(input_fn, mode)
        labels = None if mode == ModeKeys.PREDICT else inputs.labels
        spec = self._call_model_fn(inputs.features, labels, mode)
        template = spec.as_template(mode=mode, features=inputs.features, labels=labels)
        template, placement_hooks = place_on_host(template)
        return template, [*inputs.hooks, *placement_hooks]

    def _call_input_fn(self, input_fn: Callable[..., Any], mode: str) -> InputTensors:
        returned = user_calls.call_input_fn(
            input_fn, mode=mode, params=self._params, config=self._config
        )
        return as_input_tensors(returned)

    def _call_model_fn(
        self, features: Any, labels: Any, mode: str, config: RunConfig | None = None
    ) -> Any:
        return user_calls.call_model_fn(
            self._model_fn,
            features=features,
            labels=labels,
            mode=mode,
            params=self._params,
            config=config or self._config,
        )

    def _warm_start(self) -> None:
        if self._warm_start_settings is not None:
            _logger.info("Warm-starting with %s", self._warm_start_settings)
            warm_start(self._warm_start_settings)

    def _fresh_graph(self) -> contextlib.AbstractContextManager[tf.Graph]:
        return fresh_graph(self._config.tf_random_seed, device_fn=self._config.device_fn)

    def _session_settings(self) -> sessions.SessionSettings:
        config = self._config
        return sessions.SessionSettings(
            model_dir=self.model_dir,
            master=config.master,
            evaluation_master=config.evaluation_master,
            is_chief=config.is_chief,
            session_config=config.session_config,
            save_summary_steps=config.save_summary_steps,
            save_checkpoints_steps=config.save_checkpoints_steps,
            save_checkpoints_secs=config.save_checkpoints_secs,
            keep_checkpoint_max=config.keep_checkpoint_max,
            keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
            log_step_count_steps=config.log_step_count_steps,
            session_creation_timeout_secs=config.session_creation_timeout_secs,
            checkpoint_save_graph_def=config.checkpoint_save_graph_def,
        )
