"""make_tuner_fn, which TFX's stock Tuner calls, and EstimatorTuner, keras-tuner's tuner that it returns.

A trial is a short training of a TPUEstimator. keras-tuner's oracles propose the trials; in a search of several
processes the chief has the oracle and each worker runs trials.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import keras_tuner
from keras_tuner.engine.base_tuner import BaseTuner
from keras_tuner.engine.trial import Trial, TrialStatus
from keras_tuner.errors import FatalRuntimeError, FatalValueError
from tfx import v1 as tfx

from tfx_tpu_trainer._support.imports import of_extra
from tfx_tpu_trainer._support.messages import reason_in_words
from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.components.evaluation import EvalMetrics
from tfx_tpu_trainer.components.evaluation._learning_curve import Goal
from tfx_tpu_trainer.components.trainer.resume import AnotherAttemptError
from tfx_tpu_trainer.components.trainer.values import shown
from tfx_tpu_trainer.components.tuning._search_space import Declare, UnusedParamError
from tfx_tpu_trainer.components.tuning._trials import (
    DivergedTrialError,
    TrialTraining,
    UnknownObjectiveError,
    reason_to_stop,
    remove_checkpoints,
    results_of,
    table_of,
    write_search,
    write_trial_begin,
    write_trial_end,
)
from tfx_tpu_trainer.components.tuning._tune_job import MakeStrategy, TuneJob, TuneSettings
from tfx_tpu_trainer.estimator.extending import StalledError, listening

_logger = logging.getLogger(__name__)

TABLE_FILE = "results.txt"
TunerFn = Callable[[tfx.components.FnArgs], tfx.components.TunerFnResult]

_TRAINING = "training"
_ALL = 1_000_000
# Hyperband limits its trials itself, but TFX requests the best `max_trials`.
_NO_LIMIT = 99_999
# keras-tuner's environment variables.
_ADDRESS, _NAME = "KERASTUNER_ORACLE_IP", "KERASTUNER_TUNER_ID"


class EstimatorTuner(BaseTuner):
    """Runs the trials of a search, alone or as one of several processes.

    All files of a search are below one folder, `<directory>/<digest>`: the oracle's state, `trial_<id>/training` with
    the checkpoints and events of a trial, and at the end the table. Another attempt at the same search resumes there.
    """

    def __init__(self, *, job: TuneJob, directory: str) -> None:
        """Makes the tuner, or continues the search of an earlier attempt.

        Args:
            job: The search, and the training of a trial.
            directory: Folder of searches.

        Raises:
            ValueError: If an earlier attempt's files can't be read.
        """
        self._job = job
        self._given_up: dict[str, str] = {}
        self._goal = Goal(
            metric=job.tune.objective, mode=job.tune.direction, patience=job.tune.patience
        )
        project = os.path.join(directory, job.identity.digest)
        oracle = make_oracle(job.tune, job.space.hyperparameters.copy())
        try:
            super().__init__(
                oracle=oracle,
                directory=directory,
                project_name=job.identity.digest,
            )
        except (ValueError, KeyError) as error:
            raise ValueError(
                f"the search in {project} can't be resumed ({type(error).__name__}: {error}): a "
                "process was killed while it wrote; remove the folder to start the search again"
            ) from error

    def search(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        """Runs the search, or this process's part of it, and writes its results.

        Args:
            *fit_args: None.
            **fit_kwargs: `verbose`, as in keras-tuner.
        """
        with listening():
            super().search(*fit_args, **fit_kwargs)
        # The chief ends after notifying its workers; a worker that answered would wait an hour.
        if not _is_worker():
            self._write_results()
            self._remove_all_checkpoints()

    def on_search_begin(self) -> None:
        """Saves the state before the first trial, so another attempt continues that one, too."""
        self.save()
        write_search(self.project_dir, self._job.space.hyperparameters, self._job.tune.objective)

    def on_trial_begin(self, trial: Trial) -> None:
        """Logs the values of the trial."""
        values = self._job.space.shown_values_of(trial.hyperparameters)
        told = ", ".join(f"{name}={shown(value)}" for name, value in values.items())
        _logger.info("Trial %s begins: %s", trial.trial_id, told)

    def run_trial(self, trial: Trial, *fit_args: Any, **fit_kwargs: Any) -> dict[str, float]:
        """Trains and evaluates one trial.

        Args:
            trial: The trial. Each evaluation is reported to the oracle.
            *fit_args: None.
            **fit_kwargs: None.

        Returns:
            The objective. An abandoned trial has the worst value; `on_trial_end` marks it as failed.

        Raises:
            FatalValueError: If all other trials would fail in the same way.
            FatalRuntimeError: If the machine has failed instead of the trial.
        """
        del fit_args, fit_kwargs
        objective, values = self._goal.metric, trial.hyperparameters.values
        folder = self._training_folder(trial.trial_id)
        source = values.get("tuner/trial_id")
        curve: dict[int, float] = {}
        try:
            params = self._job.space.params_of(trial.hyperparameters)
            write_trial_begin(
                folder, trial.trial_id, self._job.space.shown_values_of(trial.hyperparameters)
            )
            TrialTraining(job=self._job, folder=folder, params=params).run(
                first=values.get("tuner/initial_epoch", 0),
                last=values.get("tuner/epochs", self._job.tune.evaluations_of_a_trial),
                source=self._training_folder(source) if source else None,
                report=lambda metrics: self._report(trial, curve, metrics),
            )
            if self._job.settings.use_tpu:
                self._job.reads.check(params)
        # Three kinds of errors: in this trial's values (the search continues without it), in the search (all other
        # trials would fail, too) and of the machine (another attempt continues).
        except DivergedTrialError as error:
            self._given_up[trial.trial_id] = f"it has diverged: {error}"
        except (UnknownObjectiveError, UnusedParamError) as error:
            raise FatalValueError(str(error)) from error
        except (OSError, StalledError, AnotherAttemptError) as error:
            raise FatalRuntimeError(f"trial {trial.trial_id}: {error}") from error
        except Exception as error:
            self._given_up[trial.trial_id] = reason_in_words(error)
        # keras-tuner requires a number even of a trial without evaluations.
        best = list(curve.values()) or [math.inf if self._goal.mode == "min" else -math.inf]
        return {objective: max(best) if self._goal.mode == "max" else min(best)}

    def on_trial_end(self, trial: Trial) -> None:
        """Reports a trial's end to the oracle, and logs it in one line."""
        reason = self._given_up.pop(trial.trial_id, None)
        if reason is not None:
            trial.status, trial.message = TrialStatus.FAILED, reason
            _logger.warning(
                "Trial %s is abandoned, and the search continues: %s", trial.trial_id, reason
            )
        folder = self._training_folder(trial.trial_id)
        write_trial_end(folder, failed=reason is not None)
        super().on_trial_end(trial)
        if reason is None:
            score = self.oracle.get_trial(trial.trial_id).score
            _logger.info("Trial %s ends: %s %.5g", trial.trial_id, self._goal.metric, score)
        if self._job.tune.oracle != "hyperband":
            self._remove_checkpoints(trial.trial_id)

    def get_best_hyperparameters(self, num_trials: int = 1) -> list[keras_tuner.HyperParameters]:
        """Returns the best trials' hyperparameters, with the params of model_fn as values.

        Args:
            num_trials: How many. Defaults to 1.

        Returns:
            Those of the best completed trials, for TpuTrainer's `hyperparameters`.

        Raises:
            ValueError: If no trial was completed.
        """
        trials = self.oracle.get_best_trials(_ALL)
        ended = [trial for trial in trials if trial.status == TrialStatus.COMPLETED]
        if not ended:
            reasons = [trial.message for trial in trials if trial.message]
            raise ValueError(
                f"all {len(trials)} trials failed, so there are no best hyperparameters; the first "
                f"reason: {next(iter(reasons), 'see the log of the process that ran it')}"
            )
        return [self._with_params(trial) for trial in ended[:num_trials]]

    def results_summary(self, num_trials: int = 10) -> None:
        """Prints the best trials as a table.

        Args:
            num_trials: How many. Defaults to 10.
        """
        results = results_of(self.oracle, self._job.space)[:num_trials]
        print(table_of(results, objective=self._goal.metric), end="")

    def _report(self, trial: Trial, curve: dict[int, float], metrics: EvalMetrics) -> str:
        """Reports an evaluation to the oracle; returns why the trial should end, or ""."""
        objective, step = self._goal.metric, metrics.global_step or 0
        curve[step] = metrics.overall[objective]
        known = _curve_of(trial, objective)
        # The oracle may already have a resumed trial's evaluation: keras-tuner would append it to those of the step,
        # and average.
        if step not in known:
            self.oracle.update_trial(trial.trial_id, {objective: curve[step]}, step=step)
        _logger.info("Trial %s at step %d: %s %.5g", trial.trial_id, step, objective, curve[step])
        tune = self._job.tune
        others: list[Mapping[int, float]] = []
        if tune.stops_poor_trials:
            others = [
                _curve_of(other, objective)
                for other in self.oracle.get_best_trials(_ALL)
                if other.status == TrialStatus.COMPLETED and other.trial_id != trial.trial_id
            ]
        least = tune.poor_after_trials if tune.stops_poor_trials else None
        return reason_to_stop(curve, others, goal=self._goal, least_others=least)

    def _with_params(self, trial: Trial) -> keras_tuner.HyperParameters:
        best = trial.hyperparameters.copy()
        best.values = self._job.space.params_of(trial.hyperparameters)
        return best

    def _training_folder(self, trial_id: str) -> str:
        return os.path.join(self.get_trial_dir(trial_id), _TRAINING)

    def _remove_all_checkpoints(self) -> None:
        """Removes checkpoints that Hyperband's trials could have continued."""
        for trial in self.oracle.get_best_trials(_ALL):
            if trial.status in (TrialStatus.COMPLETED, TrialStatus.FAILED):
                self._remove_checkpoints(trial.trial_id)

    def _remove_checkpoints(self, trial_id: str) -> None:
        if not self._job.tune.keep_checkpoints:
            remove_checkpoints(self._training_folder(trial_id))

    def _write_results(self) -> None:
        results = results_of(self.oracle, self._job.space)
        table = table_of(results, objective=self._goal.metric)
        write_whole(os.path.join(self.project_dir, TABLE_FILE), table)
        _logger.info(
            "The search has ended; its table (%s) and the TensorBoard events are in %s",
            TABLE_FILE,
            self.project_dir,
        )


def _curve_of(trial: Trial, objective: str) -> dict[int, float]:
    if not trial.metrics.exists(objective):
        return {}
    return {int(point.step): point.mean() for point in trial.metrics.get_history(objective)}


def make_tuner_fn(
    *,
    model_fn: Callable[..., Any] | None = None,
    build_model: Callable[..., Any] | None = None,
    search_space: keras_tuner.HyperParameters | Declare,
    input_fn: Callable[..., Any] | None = None,
    params: Mapping[str, Any] | Callable[..., Mapping[str, Any]] | None = None,
    strategy: MakeStrategy | None = None,
    **settings: Any,
) -> TunerFn:
    """Makes the `tuner_fn` of a module for TFX's stock Tuner.

    The Tuner's `custom_config["tpu_trainer"]` has the settings of a trial's training, by the names of TpuTrainer's
    parameters; the steps come from the Tuner's `train_args`.

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
        model_fn: The model, as for TpuTrainer. Defaults to `None`: `build_model` is given.
        build_model: Replaces `model_fn`: a function of the params that returns a compiled Keras model. Defaults to
            `None`.
        search_space: keras-tuner's `HyperParameters`, or a function that takes `HyperParameters` and declares them. The
            function returns the params of the trial; if it returns nothing, the values are the params.
        input_fn: As in a module of TpuTrainer. Defaults to `None`: Transform's examples are read.
        params: As in a module of TpuTrainer. Defaults to `None`.
        strategy: Makes the `tf.distribute` strategy of the trials. Defaults to `None`: the host, or the cores that the
            settings name.
        **settings: The fields of `TuneSettings`, of which `objective` is required; `custom_config["tuning"]` wins over
            them.

    Returns:
        The tuner_fn. Its errors are one line that names the value and the fix.

    Raises:
        ValueError: If a setting is unknown or its value is invalid.
    """
    # The pipeline may name the objective.
    TuneSettings.parse({"objective": "loss", **settings}, source="make_tuner_fn")

    def tuner_fn(fn_args: tfx.components.FnArgs) -> tfx.components.TunerFnResult:
        job = TuneJob.of(
            fn_args,
            model_fn=model_fn,
            build_model=build_model,
            search_space=search_space,
            input_fn=input_fn,
            params=params,
            strategy=None if _is_chief() else strategy,
            tune=settings,
        )
        if job.tune.directory is None:
            _logger.info(
                "The search is in %s, which TFX removes: set `directory` to keep it, so that "
                "another attempt can resume it.",
                fn_args.working_dir,
            )
        directory = job.tune.directory or fn_args.working_dir
        # TFX forks a chief from a process that has TensorFlow, which the chief must not use.
        if not _is_chief():
            job.check()
            job.check_params_are_read(directory)
        tuner = EstimatorTuner(job=job, directory=directory)
        return tfx.components.TunerFnResult(tuner=tuner, fit_kwargs={})

    return tuner_fn


def make_oracle(settings: TuneSettings, space: keras_tuner.HyperParameters) -> keras_tuner.Oracle:
    """Makes the oracle of a search."""
    limit = settings.trial_limit or _NO_LIMIT
    objective = keras_tuner.Objective(settings.objective, settings.direction)
    common = {
        "objective": objective,
        "hyperparameters": space,
        "seed": settings.seed,
        # Values from another process are rounded, in its conditions too; they must not count as new.
        "tune_new_entries": False,
        # keras-tuner would end a search after three failures in a row, which a wide range of learning rates may cause.
        "max_consecutive_failed_trials": limit + 1,
    }
    if settings.oracle == "random":
        oracle = keras_tuner.oracles.RandomSearchOracle(max_trials=limit, **common)
    elif settings.oracle == "bayesian":
        with of_extra("tune", for_what="oracle='bayesian'"):
            import sklearn.gaussian_process  # noqa: F401 - keras-tuner names its own extra
        oracle = keras_tuner.oracles.BayesianOptimizationOracle(
            max_trials=limit,
            num_initial_points=settings.num_initial_points or max(2, limit // 3),
            **common,
        )
    else:
        oracle = keras_tuner.oracles.HyperbandOracle(
            max_epochs=settings.evaluations_of_a_trial,
            factor=settings.factor,
            hyperband_iterations=settings.hyperband_iterations,
            **common,
        )
        oracle.max_trials = limit
    # The tuner itself prints one line per trial.
    oracle.verbose = 0
    return oracle


def _is_chief() -> bool:
    """Returns whether this process runs the oracle, and no trial."""
    return _ADDRESS in os.environ and "chief" in os.environ.get(_NAME, "")


def _is_worker() -> bool:
    """Returns whether this process gets its trials from another one."""
    return _ADDRESS in os.environ and not _is_chief()
