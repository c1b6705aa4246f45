"""make_tuner_fn: from a model_fn and a search space to what TFX's stock Tuner calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import keras_tuner
from tfx import v1 as tfx

from tfx_tpu_trainer.components.tuning._estimator_tuner import EstimatorTuner
from tfx_tpu_trainer.components.tuning._processes import is_chief
from tfx_tpu_trainer.components.tuning._search_space import Declare
from tfx_tpu_trainer.components.tuning._tune_job import MakeStrategy, TuneJob
from tfx_tpu_trainer.components.tuning._tune_settings import TuneSettings
from tfx_tpu_trainer.components.tuning._unread_params import check_params_are_read

_logger = logging.getLogger(__name__)

TunerFn = Callable[[tfx.components.FnArgs], tfx.components.TunerFnResult]


def make_tuner_fn(
    *,
    model_fn: Callable[..., Any],
    search_space: keras_tuner.HyperParameters | Declare,
    input_fn: Callable[..., Any] | None = None,
    params: Mapping[str, Any] | Callable[..., Mapping[str, Any]] | None = None,
    strategy: MakeStrategy | None = None,
    **settings: Any,
) -> TunerFn:
    """Makes the `tuner_fn` of a module that TFX's stock Tuner is given.

    How a trial trains is what `custom_config["tpu_trainer"]` of the Tuner says, in the names of TpuTrainer's
    parameters; its steps are those of the Tuner's `train_args`.

    Examples:
        >>> from tfx_tpu_trainer.components.tuning import make_tuner_fn
        >>> from pipelines.taxi.model import model_fn
        >>> def search_space(hp):
        ...     hp.Float("learning_rate", 3e-4, 3e-2, sampling="log", default=1e-3)
        >>> tuner_fn = make_tuner_fn(
        ...     model_fn=model_fn, search_space=search_space, objective="auc", max_trials=10
        ... )
        >>> callable(tuner_fn)
        True

    Args:
        model_fn: The model, as TpuTrainer takes it.
        search_space: keras-tuner's `HyperParameters`, or a function that declares them on the `HyperParameters` that it
            is given. The function returns the params of the trial; if it returns nothing, the values themselves are the
            params.
        input_fn: As in a module of TpuTrainer. Defaults to `None`: Transform's examples are read.
        params: As in a module of TpuTrainer. Defaults to `None`.
        strategy: Makes the `tf.distribute` strategy that trials run under. Defaults to `None`: the host, or the cores
            that the settings name.
        **settings: The fields of `TuneSettings`, `objective` above all; `custom_config["tuning"]` wins over them.

    Returns:
        The tuner_fn. What it raises is one line that names the value and the fix.

    Raises:
        ValueError: A setting is unknown or its value does not fit.
    """
    # The pipeline may name the objective.
    TuneSettings.parse({"objective": "loss", **settings}, source="make_tuner_fn")

    def tuner_fn(fn_args: tfx.components.FnArgs) -> tfx.components.TunerFnResult:
        job = TuneJob.of(
            fn_args,
            model_fn=model_fn,
            search_space=search_space,
            input_fn=input_fn,
            params=params,
            strategy=None if is_chief() else strategy,
            tune=settings,
        )
        if job.tune.directory is None:
            _logger.info(
                "The search is in %s, which TFX removes: set `directory` to keep it, so that "
                "another attempt can resume it.",
                fn_args.working_dir,
            )
        directory = job.tune.directory or fn_args.working_dir
        # TFX forks a chief from a process that has TensorFlow: it must not use it.
        if not is_chief():
            job.check()
            check_params_are_read(job, directory)
        tuner = EstimatorTuner(job=job, directory=directory)
        return tfx.components.TunerFnResult(tuner=tuner, fit_kwargs={})

    return tuner_fn
