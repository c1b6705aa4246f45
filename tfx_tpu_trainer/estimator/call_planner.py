"""Plans the calls of an Estimator on this host or under a `tf.distribute` strategy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine.evaluating.evaluation_plan import EvaluationPlan
from tfx_tpu_trainer.engine.evaluating.host_evaluation import plan_evaluation_on_host
from tfx_tpu_trainer.engine.feeding.input_pipeline import InputTensors, as_input_tensors
from tfx_tpu_trainer.engine.placement.host import check_runs_in_cluster, place_on_host
from tfx_tpu_trainer.engine.predicting.prediction import PredictionPlan
from tfx_tpu_trainer.engine.sessions.opening import SessionSettings
from tfx_tpu_trainer.engine.template import ModelTemplate
from tfx_tpu_trainer.engine.tracing import fresh_graph
from tfx_tpu_trainer.engine.training.training import TrainingPlan, plan_training_on_host
from tfx_tpu_trainer.estimator import strategy_plans, user_calls
from tfx_tpu_trainer.estimator.construction import variables_on_ps
from tfx_tpu_trainer.estimator.mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.predicted_rows import select_predictions
from tfx_tpu_trainer.estimator.run_config import RunConfig

v1 = tf.compat.v1
_logger = tf.get_logger()


class CallPlanner:
    """Calls the user's functions and plans what a session is to run, for one call at a time.

    An Estimator checks, opens and closes; what it runs, and where, is decided here.
    """

    def __init__(
        self, model_fn: Callable[..., Any], *, config: RunConfig, params: Mapping[str, Any]
    ) -> None:
        """Takes what all calls share.

        Args:
            model_fn: The model.
            config: The configuration of the runs, complete.
            params: What the user's functions get as `params`.
        """
        self._model_fn = model_fn
        self._config = config
        self._params = params

    def export_options(self) -> dict[str, Any]:
        """Returns what an export needs to know of graphs and versions."""
        return {"export_to_cpu": True, "export_to_tpu": False, "api_version": 1}

    def call_model_for_export(self, features: Any, labels: Any, mode: str, use_tpu: bool) -> Any:
        """Calls model_fn for an export; `use_tpu` tells for which kind of host."""
        del use_tpu
        return self.call_model_fn(features, labels, mode)

    def check_train_steps(self, steps: int | None, max_steps: int | None) -> None:
        """Checks the steps of a training.

        Raises:
            ValueError: If they do not hold.
        """
        if steps is not None and max_steps is not None:
            raise ValueError(
                f"Can not provide both steps and max_steps; got {steps} and {max_steps}."
            )
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is not None and value <= 0:
                raise ValueError(f"Must specify {name} > 0, given: {value}")

    def check_eval_steps(self, steps: int | None) -> None:
        """Checks the steps of an evaluation.

        Raises:
            ValueError: If they do not hold.
        """
        if steps is not None and steps <= 0:
            raise ValueError(f"Must specify steps > 0, given: {steps}")

    def plan_training(
        self, input_fn: Callable[..., Any], *, steps: int | None, max_steps: int | None
    ) -> tuple[TrainingPlan, list[v1.train.SessionRunHook]]:
        """Traces the model in the default graph and plans its training.

        Returns:
            The plan, and the hooks that input and placement need.
        """
        strategy = self._strategy(ModeKeys.TRAIN)
        if strategy is not None:
            call = self._strategy_call(input_fn, ModeKeys.TRAIN, strategy)
            return strategy_plans.plan_training(
                call, steps=steps, max_steps=max_steps, loops=self._strategy_loops()
            )
        template, hooks = self._trace(input_fn, ModeKeys.TRAIN)
        if self._config.cluster_spec.jobs and self._config.master:
            check_runs_in_cluster(template.graph)
        plan = plan_training_on_host(template, steps=steps, max_steps=max_steps)
        return plan, hooks

    def plan_evaluation(
        self, input_fn: Callable[..., Any], *, steps: int | None
    ) -> tuple[EvaluationPlan, list[v1.train.SessionRunHook]]:
        """Traces the model in the default graph and plans its evaluation; see above."""
        strategy = self._strategy(ModeKeys.EVAL)
        if strategy is not None:
            call = self._strategy_call(input_fn, ModeKeys.EVAL, strategy)
            return strategy_plans.plan_evaluation(call, steps=steps)
        template, hooks = self._trace(input_fn, ModeKeys.EVAL)
        return plan_evaluation_on_host(template, steps=steps), hooks

    def plan_prediction(
        self, input_fn: Callable[..., Any], predict_keys: Sequence[str] | str | None
    ) -> tuple[PredictionPlan, list[v1.train.SessionRunHook]]:
        """Traces the model in the default graph and plans its prediction; see above."""
        strategy = self._strategy(ModeKeys.PREDICT)
        if strategy is not None:
            call = self._strategy_call(input_fn, ModeKeys.PREDICT, strategy)
            return strategy_plans.plan_prediction(call, predict_keys)
        template, hooks = self._trace(input_fn, ModeKeys.PREDICT)
        predictions = select_predictions(template.predictions, predict_keys)
        return PredictionPlan(template, predictions), hooks

    def _strategy(self, mode: str) -> tf.distribute.Strategy | None:
        strategy = strategy_plans.strategy_of(self._config, mode)
        if strategy is not None and mode == ModeKeys.TRAIN:
            strategy_plans.check_cluster(self._config, strategy)
        return strategy

    def _strategy_call(
        self, input_fn: Callable[..., Any], mode: str, strategy: tf.distribute.Strategy
    ) -> strategy_plans.StrategyCall:
        return strategy_plans.StrategyCall(
            mode=mode,
            strategy=strategy,
            call_input_fn=lambda context: user_calls.call_input_fn(
                input_fn,
                mode=mode,
                params=self._params,
                config=self._config,
                input_context=context,
            ),
            call_model_fn=lambda features, labels: self.call_model_fn(features, labels, mode),
        )

    def _strategy_loops(self) -> strategy_plans.Loops | None:
        return None

    def _trace(
        self, input_fn: Callable[..., Any], mode: str
    ) -> tuple[ModelTemplate, list[v1.train.SessionRunHook]]:
        """Calls input_fn and model_fn in the default graph and places the template.

        Returns:
            The template, and the hooks that input and placement need.
        """
        inputs = self._call_input_fn(input_fn, mode)
        if mode == ModeKeys.PREDICT:
            self._look_for_endless_input(inputs)
        if mode != ModeKeys.TRAIN:
            inputs = inputs.with_hidden_batches()
        labels = None if mode == ModeKeys.PREDICT else inputs.labels
        spec = self.call_model_fn(inputs.features, labels, mode)
        template = spec.as_template(mode=mode, features=inputs.features, labels=labels)
        template, placement_hooks = place_on_host(template)
        return template, [*inputs.hooks, *placement_hooks]

    def _look_for_endless_input(self, inputs: InputTensors) -> None:
        """Warns of tensors that nothing ends."""
        flat = tf.nest.flatten(inputs.features)
        ends = inputs.iterator is not None or any(
            isinstance(leaf, tf.Tensor) and leaf.op.type == "IteratorGetNext" for leaf in flat
        )
        if not ends and not v1.get_collection(v1.GraphKeys.QUEUE_RUNNERS):
            _logger.warning(
                "Input graph does not use tf.data.Dataset or contain a QueueRunner. That means "
                "predict yields forever. This is probably a mistake."
            )

    def _call_input_fn(self, input_fn: Callable[..., Any], mode: str) -> InputTensors:
        returned = user_calls.call_input_fn(
            input_fn,
            mode=mode,
            params=self._params,
            config=self._config,
            input_context=strategy_plans.input_context_of(self._config, mode),
        )
        return as_input_tensors(returned)

    def call_model_fn(
        self, features: Any, labels: Any, mode: str, config: RunConfig | None = None
    ) -> Any:
        """Calls model_fn on the host, with another configuration where one is given."""
        return user_calls.call_model_fn(
            self._model_fn,
            features=features,
            labels=labels,
            mode=mode,
            params=self._params,
            config=config or self._config,
        )

    def fresh_graph(self) -> contextlib.AbstractContextManager[tf.Graph]:
        """Opens the graph of a call; everything else here works in it."""
        device_fn = self._config.device_fn or variables_on_ps(self._config)
        return fresh_graph(self._config.tf_random_seed, device_fn=device_fn)

    def session_settings(self, model_dir: str) -> SessionSettings:
        """Returns the settings of every session.

        Args:
            model_dir: Folder of checkpoints and events.
        """
        config = self._config
        return SessionSettings(
            model_dir=model_dir,
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
            jit_compile=config.jit_compile,
        )
