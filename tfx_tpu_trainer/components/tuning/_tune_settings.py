"""Defines a search's settings: its objective, its oracle, and when a poor trial ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic

from tfx_tpu_trainer.components.trainer.values import (
    Flag,
    Folder,
    Name,
    Positive,
    first_problem,
    shown,
    suggest,
)

DEFAULT_TRIALS = 10
"""Trials of a random or Bayesian search."""

# NumPy's random states accept no more; keras-tuner takes 0 for a random seed.
_LARGEST_SEED = 2**32 - 1


class TuneSettings(pydantic.BaseModel):
    """The settings of a search, by the names that `make_tuner_fn` and `custom_config["tuning"]` of a Tuner take.

    Examples:
        >>> from tfx_tpu_trainer.components.tuning import TuneSettings
        >>> settings = TuneSettings(objective="loss", direction="min", oracle="hyperband", seed=7)
        >>> settings.oracle, settings.factor, settings.max_trials
        ('hyperband', 3, None)

    Attributes:
        objective: The metric to optimize: one that metric_fn returns, or `loss`.
        direction: "max" if a higher value of it is better, "min" if a lower one is. Defaults to "max".
        oracle: The keras-tuner oracle that proposes the trials: "random", "bayesian" or "hyperband". Defaults to
            "bayesian".
        max_trials: The most trials. Defaults to `None`: 10, and with "hyperband" as many as its brackets have.
        num_initial_points: Random trials before "bayesian" learns from them. Defaults to `None`: a third of
            `max_trials`, and two at least.
        factor: "hyperband" continues one of this many trials. Defaults to 3.
        hyperband_iterations: How often "hyperband" runs all of its brackets. Defaults to 1.
        evaluations: Evaluations of a full trial, at equal intervals; the epochs of "hyperband". Defaults to `None`: 4,
            and 9 with "hyperband".
        patience: Evaluations in a row without a better value after which a trial ends. Defaults to `None`: none.
        stop_poor: Whether a trial ends early if its best value is worse than the median of the other trials' averages
            up to that step. Defaults to `None`: yes, except with "hyperband", which has its own rule.
        poor_after_trials: Number of ended trials from which on a trial can count as poor. Defaults to 3.
        seed: Seed of the oracle, 1 or more. Defaults to 1: the same search draws the same trials.
        directory: Folder of the search, in which another attempt finds it, and which all processes of the search share.
            Defaults to `None`: the Tuner's working folder, which TFX removes.
        keep_checkpoints: Whether to keep checkpoints of trials that will not be continued. Defaults to `False`.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    objective: Name
    direction: Literal["max", "min"] = "max"
    oracle: Literal["random", "bayesian", "hyperband"] = "bayesian"
    max_trials: Positive | None = None
    num_initial_points: Positive | None = None
    factor: Positive = 3
    hyperband_iterations: Positive = 1
    evaluations: Positive | None = None
    patience: Positive | None = None
    stop_poor: Flag | None = None
    poor_after_trials: Positive = 3
    seed: Annotated[int, pydantic.Field(gt=0, le=_LARGEST_SEED)] = 1
    directory: Folder | None = None
    keep_checkpoints: Flag = False

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, source: str) -> TuneSettings:
        """Checks values and makes settings from them.

        Args:
            values: Values by name. A name whose value is `None` takes its default.
            source: Where the values come from; error messages begin with it.

        Returns:
            The settings.

        Raises:
            ValueError: If a name is unknown or missing, or a value is invalid; names it and the fix.
        """
        if not isinstance(values, Mapping):
            raise ValueError(
                f"{source}: {shown(values)} is not valid; give a dict of settings by name"
            )
        for name in values:
            if name not in cls.model_fields:
                raise ValueError(
                    f"{source}: unknown setting {name!r}; {suggest(name, cls.model_fields)}"
                )
        known = {name: value for name, value in values.items() if value is not None}
        if "objective" not in known:
            raise ValueError(
                f"{source}: objective is missing; name the metric to optimize, such as 'auc'"
            )
        try:
            settings = cls.model_validate(known)
        except pydantic.ValidationError as error:
            raise ValueError(f"{source}: {first_problem(error)}") from None
        if problem := _broken_rule(settings):
            raise ValueError(f"{source}: {problem}")
        return settings

    @property
    def trial_limit(self) -> int | None:
        """The most trials; `None` lets the oracle decide."""
        if self.max_trials is None and self.oracle != "hyperband":
            return DEFAULT_TRIALS
        return self.max_trials

    @property
    def evaluations_of_a_trial(self) -> int:
        """The number of evaluations in a full trial."""
        return self.evaluations or (9 if self.oracle == "hyperband" else 4)

    @property
    def stops_poor_trials(self) -> bool:
        """Whether running trials are compared with others."""
        return self.oracle != "hyperband" if self.stop_poor is None else self.stop_poor


def _broken_rule(settings: TuneSettings) -> str | None:
    if settings.oracle != "hyperband":
        return None
    if settings.factor < 2:
        return (
            f"factor={settings.factor} is not valid; give 2 or more: one trial in this many is "
            "trained further"
        )
    if settings.evaluations_of_a_trial < settings.factor:
        return (
            f"evaluations={settings.evaluations_of_a_trial} with oracle='hyperband' leaves no "
            f"trial to train further; give at least factor={settings.factor}"
        )
    return None
