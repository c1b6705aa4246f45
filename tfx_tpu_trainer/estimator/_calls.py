"""The calls of an Estimator: what they are given, where they run, what they are checked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tfx_tpu_trainer.estimator._callables import check_input_fn
from tfx_tpu_trainer.estimator._engine.training.training_plan import TrainingPlan
from tfx_tpu_trainer.estimator._mode_keys import ModeKeys
from tfx_tpu_trainer.estimator._number_checks import check_positive
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator.places.choice import input_context_of, strategy_of
from tfx_tpu_trainer.estimator.places.host import OnHost
from tfx_tpu_trainer.estimator.places.place import Call, Hooks, Place, bind_call
from tfx_tpu_trainer.estimator.places.strategy.place import UnderStrategy


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToldOfTraining:
    """What is reported of a training while it goes on.

    Attributes:
        every_steps: Steps between two reports; `None` where none are wanted.
        rows_per_step: Rows of a step over all replicas; `None` where nobody has said.
    """

    every_steps: int | None
    rows_per_step: int | None = None

    def mode(self, config: RunConfig) -> str | None:
        """Returns how progress is shown: with `"auto"`, not where no reports are wanted."""
        return None if config.progress == "auto" and self.every_steps is None else config.progress


class EstimatorCalls:
    """What an `Estimator` asks before it runs anything; a TPUEstimator's calls have more places."""

    def __init__(
        self, model_fn: Callable[..., Any], *, config: RunConfig, params: Mapping[str, Any]
    ) -> None:
        self._model_fn = model_fn
        self._config = config
        self._params = params

    def place(self, input_fn: Callable[..., Any], mode: str) -> Place:
        """Returns the place of a call: the strategy of its mode, or else this host."""
        check_input_fn(input_fn)
        call = self._bound(input_fn, mode)
        strategy = strategy_of(self._config, mode)
        if strategy is None:
            return OnHost(call=call, input_context=input_context_of(self._config, mode))
        return UnderStrategy(call=call, strategy=strategy)

    def plan_training(
        self, input_fn: Callable[..., Any], *, steps: int | None, max_steps: int | None
    ) -> tuple[TrainingPlan, Hooks]:
        """Plans a training where it runs; see `Place`."""
        place = self.place(input_fn, ModeKeys.TRAIN)
        return place.plan_training(steps=steps, max_steps=max_steps)

    def call_model_fn(
        self, features: Any, labels: Any, mode: str, config: RunConfig | None = None
    ) -> Any:
        """Calls model_fn on this host, with another configuration where one is given."""
        return self._bound(None, mode, config).call_model_fn(features, labels, {})

    def call_model_for_export(self, features: Any, labels: Any, mode: str, use_tpu: bool) -> Any:
        """Calls model_fn for an export; `use_tpu` tells for which kind of host."""
        del use_tpu
        return self.call_model_fn(features, labels, mode)

    def export_options(self) -> dict[str, Any]:
        """Returns which graphs an export has, and by which version of the API."""
        return {"export_to_cpu": True, "export_to_tpu": False, "api_version": 1}

    def told_of_training(self) -> ToldOfTraining:
        """Returns what is reported of a training."""
        return ToldOfTraining(every_steps=self._config.log_step_count_steps)

    def check_train_steps(self, steps: int | None, max_steps: int | None) -> None:
        """Checks the steps of a training."""
        if steps is not None and max_steps is not None:
            raise ValueError(
                f"Can not provide both steps and max_steps; got {steps} and {max_steps}."
            )
        check_positive("steps", steps)
        check_positive("max_steps", max_steps)

    def check_eval_steps(self, steps: int | None) -> None:
        """Checks the steps of an evaluation."""
        check_positive("steps", steps)

    def session_master(self, mode: str) -> str:
        """Returns the address of the master of a mode's sessions; `""` is this process."""
        return self._master(mode)

    def _master(self, mode: str) -> str:
        config = self._config
        return config.evaluation_master if mode == ModeKeys.EVAL else config.master

    def _bound(self, input_fn: Any, mode: str, config: RunConfig | None = None) -> Call:
        return bind_call(
            input_fn,
            mode,
            model_fn=self._model_fn,
            params=self._params,
            config=config or self._config,
        )
