"""The oracles of keras-tuner, made for a search."""

from __future__ import annotations

import keras_tuner

from tfx_tpu_trainer._support.imports import of_extra
from tfx_tpu_trainer.components.tuning._tune_settings import TuneSettings

# Hyperband counts its trials itself. TFX asks for the best `max_trials` of them all the same.
_NO_LIMIT = 99_999


def make_oracle(settings: TuneSettings, space: keras_tuner.HyperParameters) -> keras_tuner.Oracle:
    """Makes the oracle of a search.

    A trial that fails takes no other one with it: keras-tuner would end a search after three in a row, and a range of
    learning rates that reaches too far has as many.
    """
    limit = settings.trial_limit or _NO_LIMIT
    objective = keras_tuner.Objective(settings.objective, settings.direction)
    common = {
        "objective": objective,
        "hyperparameters": space,
        "seed": settings.seed,
        # What comes back from another process has rounded values, in its conditions too: nothing of it is new.
        "tune_new_entries": False,
        "max_consecutive_failed_trials": limit + 1,
    }
    if settings.oracle == "random":
        oracle = keras_tuner.oracles.RandomSearchOracle(max_trials=limit, **common)
    elif settings.oracle == "bayesian":
        with of_extra("tune", for_what="oracle='bayesian'"):
            import sklearn.gaussian_process  # noqa: F401 - keras-tuner names an extra of its own
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
    # One line for each trial comes from the tuner.
    oracle.verbose = 0
    return oracle
