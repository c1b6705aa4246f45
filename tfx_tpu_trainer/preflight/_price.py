"""What a training costs on a slice, and which slice meets a deadline for the least.

Prices are the user's own: they differ by region, by contract and over time. A JSON file holds them:

    {"currency": "USD", "chip_hour": {"v5e": 1.20, "v5p": 4.20}}
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tfx_tpu_trainer.hardware import CHIPS, find_slice
from tfx_tpu_trainer.preflight._report import PreflightReport
from tfx_tpu_trainer.preflight._step_time import PUBLISHED_ERRORS

START_UP_SECONDS = 300.0
"""How long a slice is taken to be paid for before the first step: its machines boot and pull the image, TensorFlow
starts, the steps are compiled. An assumption, nothing that was measured."""

TIE = 0.05
"""Costs that are as near as this count as the same: the estimate's errors are larger."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_KEYS = ("currency", "chip_hour")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prices:
    """What chips cost.

    Attributes:
        currency: Such as `"USD"`.
        chip_hour: Generation, such as `"v5e"` -> price of one chip for an hour.
        source: The file, for messages.
    """

    currency: str
    chip_hour: Mapping[str, float]
    source: str

    @classmethod
    def read(cls, path: str) -> Prices:
        """Reads a price file.

        Args:
            path: The file.

        Returns:
            The prices.

        Raises:
            ValueError: It can't be read, holds something else, or names an unknown chip.
        """
        try:
            with open(path, encoding="utf-8") as file:
                values = json.load(file)
        except OSError as error:
            raise ValueError(f"--price {path} can't be read: {error.strerror}.") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"--price {path} is not valid JSON: {error}.") from None
        return cls.of(values, path)

    @classmethod
    def of(cls, values: Any, source: str) -> Prices:
        """Checks the values of a price file.

        Args:
            values: The JSON value.
            source: Its file, for messages.

        Returns:
            The prices.

        Raises:
            ValueError: A key is missing or unknown, a chip is, or a price is not a number from 0 on.
        """
        example = '{"currency": "USD", "chip_hour": {"v5e": 1.2}}'
        if not isinstance(values, dict) or sorted(values) != sorted(_KEYS):
            raise ValueError(f"--price {source} contains no prices: write it like {example}.")
        prices = values["chip_hour"]
        if not isinstance(prices, dict) or not isinstance(values["currency"], str):
            raise ValueError(f"--price {source} contains no prices: write it like {example}.")
        unknown = sorted(set(prices) - set(CHIPS))
        if unknown:
            raise ValueError(
                f"--price {source}: unknown chip {unknown[0]!r}; use any of {', '.join(CHIPS)}."
            )
        for chip, price in prices.items():
            number = isinstance(price, (int, float)) and not isinstance(price, bool)
            if not number or not 0 <= price < math.inf:
                raise ValueError(
                    f"--price {source}: the price of {chip} is {price!r}; give a number of at "
                    "least 0."
                )
        return cls(currency=values["currency"], chip_hour=prices, source=source)

    def of_slice(self, name: str) -> float:
        """Returns the price of a slice for an hour.

        Args:
            name: The slice, such as `"v5e:2x4"`.

        Raises:
            ValueError: The file has no price for its chips.
        """
        found = find_slice(name)
        generation = found.chip.generation
        if generation not in self.chip_hour:
            raise ValueError(
                f"--price {self.source} has no price for {generation}, the chips of {name}: add it to "
                f'"chip_hour".'
            )
        return found.num_chips * self.chip_hour[generation]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingLength:
    """How long a training is.

    Attributes:
        rows_per_epoch: Rows of the training split, or `None`.
        epochs: How often they are read, or `None`.
        train_steps: Steps, or `None`: as many as the epochs take.
        rows_per_step: Rows of such a step, or `None`: as many as the slice's step has.
    """

    rows_per_epoch: int | None = None
    epochs: float | None = None
    train_steps: int | None = None
    rows_per_step: int | None = None

    def __post_init__(self) -> None:
        """Checks that the length is given, and once."""
        if self.train_steps is not None and self.epochs is not None:
            raise ValueError("Give one of --epochs and --train_steps, not both.")
        if self.epochs is not None and self.rows_per_epoch is None:
            raise ValueError("--epochs needs --rows_per_epoch, the rows of the training split.")
        if self.train_steps is None and self.rows_per_epoch is None:
            raise ValueError("Give the training's length: --rows_per_epoch, or --train_steps.")

    def __str__(self) -> str:
        if self.train_steps is not None:
            rows = f" of {self.rows_per_step:,} rows" if self.rows_per_step else ""
            return f"The training has {self.train_steps:,} steps{rows}"
        epochs = f"{self.epochs or 1:g} epoch{'s' * (self.epochs not in (None, 1))}"
        return f"The training has {epochs} of {self.rows_per_epoch:,} rows"

    def rows(self, batch_size: int) -> float:
        """Returns the rows of the training; of one epoch where nothing else is said."""
        if self.train_steps is not None:
            return float(self.train_steps * (self.rows_per_step or batch_size))
        assert self.rows_per_epoch is not None
        return self.rows_per_epoch * (1.0 if self.epochs is None else self.epochs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """What a training takes on one slice.

    Attributes:
        tpu: The slice.
        batch_size: Rows of a step over all replicas.
        step_seconds: The estimate of a step, or the time that the input takes for it where that is
            longer.
        limited_by_input: Whether it is.
        seconds: The training, by `step_seconds`, after its start-up.
        slow_seconds: The same at the slow end of the estimate's errors (`PUBLISHED_ERRORS`).
        epoch_seconds: One epoch, or `None` where its rows are not given.
        hour_price: The slice for an hour.
        currency: Of the prices.
        start_up_seconds: How long the slice is paid for before the first step.
    """

    tpu: str
    batch_size: int
    step_seconds: float
    limited_by_input: bool
    seconds: float
    slow_seconds: float
    epoch_seconds: float | None
    hour_price: float
    currency: str
    start_up_seconds: float = 0.0

    @property
    def cost(self) -> float:
        """The training's price."""
        return self.seconds / 3600 * self.hour_price

    @property
    def slow_cost(self) -> float:
        """The same at the slow end of the estimate's errors."""
        return self.slow_seconds / 3600 * self.hour_price

    @property
    def epoch_cost(self) -> float | None:
        """The price of one epoch."""
        if self.epoch_seconds is None:
            return None
        return self.epoch_seconds / 3600 * self.hour_price

    def meets(self, deadline: float) -> bool:
        """Tells whether the training ends in time even at the slow end of the errors.

        Args:
            deadline: Seconds.
        """
        return self.slow_seconds <= deadline

    def to_json(self) -> dict[str, Any]:
        """Returns the values as JSON has them, those that follow from others included."""
        return {
            **dataclasses.asdict(self),
            "cost": self.cost,
            "slow_cost": self.slow_cost,
            "epoch_cost": self.epoch_cost,
        }


def training_cost(
    report: PreflightReport,
    length: TrainingLength,
    prices: Prices,
    *,
    start_up_seconds: float = START_UP_SECONDS,
) -> TrainingCost:
    """Computes what a training costs on the slice of a report.

    Args:
        report: A report with a training step that compiles and fits.
        length: How long the training is.
        prices: What chips cost.
        start_up_seconds: How long the slice is paid for before the first step. Defaults to five
            minutes, an assumption.

    Returns:
        The cost.

    Raises:
        ValueError: The report has no such step, or there is no price for the chips.
    """
    step = next((each for each in report.steps if each.name == "train"), None)
    if step is None or step.estimate is None or not step.batch_size:
        raise ValueError(
            f"--price needs a train step that compiles on {report.tpu}: include train in --steps."
        )
    estimated = step.estimate.step_seconds
    of_input = 0.0 if report.input is None else report.input.step_seconds(step.batch_size)
    step_seconds = max(estimated, of_input)
    # A published training took the estimate over 1 + error.
    slow_step = max(estimated / (1 + min(0.0, PUBLISHED_ERRORS.low)), of_input)
    steps = length.rows(step.batch_size) / step.batch_size
    epoch = None
    if length.rows_per_epoch is not None:
        epoch = length.rows_per_epoch / step.batch_size * step_seconds
    return TrainingCost(
        tpu=report.tpu,
        batch_size=step.batch_size,
        step_seconds=step_seconds,
        limited_by_input=of_input > estimated,
        seconds=start_up_seconds + steps * step_seconds,
        slow_seconds=start_up_seconds + steps * slow_step,
        epoch_seconds=epoch,
        hour_price=prices.of_slice(report.tpu),
        currency=prices.currency,
        start_up_seconds=start_up_seconds,
    )


def choose(costs: Sequence[TrainingCost], deadline: float | None) -> TrainingCost | None:
    """Returns the slice of the fewest chips among those that cost about the least and meet a deadline.

    A slice meets it if it does so at the slow end of the errors.
    """
    in_time = [each for each in costs if deadline is None or each.meets(deadline)]
    least = min((each.cost for each in in_time), default=0.0)
    return min(
        (each for each in in_time if each.cost <= least * (1 + TIE)),
        # Of those whose costs look alike, the one that was asked for first.
        key=lambda each: (find_slice(each.tpu).num_chips, round(each.cost, 2)),
        default=None,
    )


def price_text(amount: float, currency: str) -> str:
    """Writes a price, such as `"16.82 USD"`."""
    return f"{amount:,.2f} {currency}"


def read_duration(text: str, *, option: str = "--deadline") -> float:
    """Reads a duration, such as `"4h"`, `"90m"`, `"1d"` or `"1h30m"`.

    Args:
        text: Numbers with a unit each: s, m, h or d.
        option: What it was given by, for the message. Defaults to `"--deadline"`.

    Returns:
        Seconds.

    Raises:
        ValueError: It is not a duration, or 0.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not 0 < seconds < math.inf:
        raise ValueError(f"{option} {text[:100]!r}: give a duration, such as 4h, 90m or 1h30m.")
    return seconds
