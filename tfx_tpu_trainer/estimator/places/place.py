"""The interface between an Estimator's call and the place where it runs."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tfx_tpu_trainer.estimator import _user_calls
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation_plan import EvaluationPlan
from tfx_tpu_trainer.estimator._engine.prediction import PredictionPlan
from tfx_tpu_trainer.estimator._engine.reporting.gradients import (
    Asked,
    FirstStepOfLoop,
    GradientHook,
)
from tfx_tpu_trainer.estimator._engine.template import HostFunction, ModelTemplate
from tfx_tpu_trainer.estimator._engine.training.training_plan import TrainingPlan
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator._user_calls import takes

v1 = tf.compat.v1


Hooks = list[v1.train.SessionRunHook]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """A call of train, evaluate or predict: the user's functions, bound to config and params."""

    # One of `ModeKeys`.
    mode: str
    config: RunConfig
    # Takes the params that a place adds, and an input_context if there is one.
    call_input_fn: Callable[..., Any]
    # Takes features, labels and the params that a place adds.
    call_model_fn: Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Trace:
    """A call that was traced for its place."""

    template: ModelTemplate
    # Hooks for the input and for the host functions.
    hooks: Hooks


class Place(Protocol):
    """A call at the place where it runs; it works in the default graph, and each plan traces the call again."""

    def trace(self) -> Trace:
        """Calls the user's functions and adapts their graph to the place."""

    def plan_training(
        self, *, steps: int | None, max_steps: int | None
    ) -> tuple[TrainingPlan, Hooks]:
        """Plans training of some steps, or to a global step; returns the hooks that input and place need, too."""

    def plan_evaluation(self, *, steps: int | None) -> tuple[EvaluationPlan, Hooks]:
        """Plans an evaluation of some batches; `None` evaluates to the end of the input."""

    def plan_prediction(
        self, predict_keys: Sequence[str] | str | None
    ) -> tuple[PredictionPlan, Hooks]:
        """Plans a prediction of some keys; `None` keeps all."""


def asked_of(config: RunConfig) -> Asked:
    """Returns which summaries of gradients and weights this process writes in a training."""
    if not config.save_summary_steps or not config.is_chief:
        return Asked()
    return Asked(gradient_norms=config.gradient_norms, histograms=config.histograms)


def gradient_hook(
    gradients: FirstStepOfLoop, summary: tf.Tensor, config: RunConfig
) -> GradientHook:
    """Returns the hook that requests the loops' summary of gradients, and writes it."""
    assert config.save_summary_steps
    assert config.model_dir
    return GradientHook(
        summary,
        gradients.is_due,
        every_n_steps=config.save_summary_steps,
        output_dir=config.model_dir,
    )


def bind_call(
    input_fn: Any,
    mode: str,
    *,
    model_fn: Any,
    params: Mapping[str, Any],
    config: RunConfig,
    needs_params: bool = False,
) -> Call:
    """Binds a user's functions to their params and config; the only wrapper around them."""
    # The functions of a TPUEstimator must take `params`, for the batch size (`needs_params`).

    def call_input_fn(
        added: Mapping[str, Any], input_context: tf.distribute.InputContext | None = None, /
    ) -> Any:
        if needs_params and not takes(input_fn, "params"):
            raise ValueError(
                f"input_fn ({input_fn!r}) does not include params argument, required by "
                'TPUEstimator to pass batch size as params["batch_size"].'
            )
        return _user_calls.call_input_fn(
            input_fn,
            mode=mode,
            params={**params, **added},
            config=config,
            input_context=input_context,
            required=("params",) if needs_params else (),
        )

    def call_model_fn(features: Any, labels: Any, added: Mapping[str, Any], /) -> Any:
        if needs_params and not takes(model_fn, "params"):
            raise ValueError(
                f"model_fn ({model_fn!r}) does not include params argument, required by "
                "TPUEstimator to pass batch size as params['batch_size']."
            )
        return _user_calls.call_model_fn(
            model_fn,
            features=features,
            labels=labels,
            mode=mode,
            params={**params, **added},
            config=config,
        )

    return Call(mode=mode, config=config, call_input_fn=call_input_fn, call_model_fn=call_model_fn)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lookups:
    """The tensors of one core's trace at which embeddings enter and leave it."""

    # The trace also contains ordinary lookups: a place runs those, or lets embedding cores look the ids up and cuts the
    # trace here.

    # Name of a feature -> its ids: sparse [samples, any], or dense [samples] if each sample has
    # exactly one. A sample is a row, or a position of a row's sequence.
    ids: Mapping[str, tf.SparseTensor | tf.Tensor]
    # Name of a feature -> the weights of its ids, a sparse tensor; only of features that have
    # weights.
    weights: Mapping[str, tf.SparseTensor]
    # Name of a feature -> its number of samples; `None` if the batch is not static.
    samples: Mapping[str, int | None]
    activations: Mapping[str, tf.Tensor]  # Name of a feature -> the embeddings that were looked up.
    lengths: Mapping[str, tf.Tensor]  # Name of a feature of sequences -> the sequences' lengths.
    # Name of a feature -> the gradient of its activations; empty outside of training.
    sent: Mapping[str, tf.Tensor]
    step: tf.Tensor  # The global step before the step, a vector of one element.
    tables: Mapping[str, tf.Variable]  # Name of a table -> its variable.
    # Trains the tables, from the tensors of all cores; `None` outside of training.
    update: HostFunction | None

    @property
    def received(self) -> dict[str, tf.Tensor]:
        """The tensors that a core receives: activations and, under `"NAME, lengths"`, lengths."""
        lengths = {f"{name}, lengths": tensor for name, tensor in self.lengths.items()}
        return {**self.activations, **lengths}
