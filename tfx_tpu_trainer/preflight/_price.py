"""Computes the time and price of a training on a slice.

The user gives the prices, which differ by region, by contract and over time, in a JSON file; `spot` and `flex_start`
may be left out:

    {"currency": "USD", "chip_hour": {"v5e": 1.20, "v5p": 4.20}, "spot": {"v5e": 0.5}, "flex_start": {"v5e": 0.7}}
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from tfx_tpu_trainer.hardware import CHIPS, find_slice
from tfx_tpu_trainer.preflight._report import PreflightReport
from tfx_tpu_trainer.preflight._step_time import PUBLISHED_ERRORS

Way = Literal["on demand", "spot", "flex-start"]
"""How a slice is provided."""

START_UP_SECONDS = 300.0
"""How long a slice is paid for before the first step: its machines boot and pull the image, TensorFlow starts, the
steps are compiled. An assumption, not a measurement."""

PREEMPTED_EVERY = 4 * 3600.0
"""How often a Spot slice is taken away at the slow end, in seconds, and once at least. An assumption."""

LOST_SECONDS = 600.0
"""What a preemption costs in addition to a start-up: `RunConfig`'s default time between two checkpoints."""

QUEUE_SECONDS = 86_400.0
"""How long a flex-start request waits for its slice at the slow end. An assumption."""

LONGEST_FLEX_START = 7 * 86_400.0
"""The longest time of a flex-start slice: https://cloud.google.com/kubernetes-engine/docs/concepts/dws."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_WAYS: Mapping[str, Way] = {"chip_hour": "on demand", "spot": "spot", "flex_start": "flex-start"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prices:
    """The prices of chips.

    Attributes:
        currency: The currency, such as `"USD"`.
        chip_hour: Generation, such as `"v5e"` -> price of one chip for an hour, on demand.
        source: The file, for messages.
        spot: The same for Spot slices. Defaults to none.
        flex_start: The same for flex-start slices. Defaults to none.
    """

    currency: str
    chip_hour: Mapping[str, float]
    source: str
    spot: Mapping[str, float] = dataclasses.field(default_factory=dict)
    flex_start: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, path: str) -> Prices:
        """Reads a price file.

        Raises:
            ValueError: If it can't be read, has other content, or names an unknown chip.
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
            ValueError: If a key is missing or unknown, a chip is unknown, or a price is not a number from 0 on.
        """
        keys = {"currency", *_WAYS}
        if (
            not isinstance(values, dict)
            or not {"currency", "chip_hour"} <= set(values) <= keys
            or not isinstance(values["currency"], str)
            or not all(isinstance(values.get(key, {}), dict) for key in _WAYS)
        ):
            raise ValueError(
                f'--price {source} contains no prices: write it like {{"currency": "USD", "chip_hour": {{"v5e": 1.2}}}}'
                ', with "spot" and "flex_start" like "chip_hour" where you have such prices.'
            )
        for key in _WAYS:
            for chip, price in values.get(key, {}).items():
                if chip not in CHIPS:
                    raise ValueError(
                        f"--price {source}: unknown chip {chip!r}; use any of {', '.join(CHIPS)}."
                    )
                number = isinstance(price, (int, float)) and not isinstance(price, bool)
                if not number or not 0 <= price < math.inf:
                    of = "" if key == "chip_hour" else f"{key} "
                    raise ValueError(
                        f"--price {source}: the {of}price of {chip} is {price!r}; give a number of at "
                        "least 0."
                    )
        return cls(source=source, **values)

    def of_slice(self, name: str) -> float:
        """Returns the price of a slice for an hour, on demand.

        Args:
            name: The slice, such as `"v5e:2x4"`.

        Raises:
            ValueError: If the file has no price for its chips.
        """
        found = find_slice(name)
        generation = found.chip.generation
        if generation not in self.chip_hour:
            raise ValueError(
                f"--price {self.source} has no price for {generation}, the chips of {name}: add it to "
                f'"chip_hour".'
            )
        return found.num_chips * self.chip_hour[generation]

    def ways(self, name: str) -> dict[Way, float]:
        """Returns the price of a slice for an hour, for each way to get it that has a price."""
        found = find_slice(name)
        return {
            way: found.num_chips * prices[found.chip.generation]
            for key, way in _WAYS.items()
            if found.chip.generation in (prices := getattr(self, key))
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingLength:
    """The length of a training.

    Attributes:
        rows_per_epoch: Rows of the training split, or `None`.
        epochs: How often they are read, or `None`.
        train_steps: Steps, or `None`: as many as the epochs take.
        rows_per_step: Rows of each of these steps, or `None`: as many as the slice's step has.
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
        """Returns the rows of the training; those of one epoch if its length is not given."""
        if self.train_steps is not None:
            return float(self.train_steps * (self.rows_per_step or batch_size))
        assert self.rows_per_epoch is not None
        return self.rows_per_epoch * (1.0 if self.epochs is None else self.epochs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """The time and price of a training on one slice.

    Attributes:
        tpu: The slice.
        batch_size: Rows of a step over all replicas.
        step_seconds: The estimated time of a step, or that of its input if it is longer.
        limited_by_input: Whether the input takes longer.
        seconds: The time of the training by `step_seconds`, after the start-up.
        slow_seconds: The same at the slow end of the estimate's errors (`PUBLISHED_ERRORS`), with a Spot slice's
            preemptions.
        epoch_seconds: The time of one epoch; `None` if its rows are not given.
        hour_price: The price of the slice for an hour.
        currency: The prices' currency.
        start_up_seconds: How long the slice is paid for before the first step.
        way: How the slice is provided. Defaults to on demand.
        queue_seconds: How long a flex-start request waits before that, at the slow end; the wait costs nothing.
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
    way: Way = "on demand"
    queue_seconds: float = 0.0

    @property
    def name(self) -> str:
        """The slice, and how it is provided if not on demand."""
        return self.tpu if self.way == "on demand" else f"{self.tpu} {self.way}"

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

    @property
    def latest_seconds(self) -> float:
        """The end of the training at the slow end, counted from the request for the slice."""
        return self.queue_seconds + self.slow_seconds

    def meets(self, deadline: float) -> bool:
        """Returns whether the training ends within this many seconds even at the slow end."""
        return self.latest_seconds <= deadline

    def to_json(self) -> dict[str, Any]:
        """Returns the values as JSON values, derived ones included."""
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
    """Computes the cost of a training on a report's slice.

    Args:
        report: A report with a training step that compiles and fits.
        length: The length of the training.
        prices: The prices of chips.
        start_up_seconds: How long the slice is paid for before the first step. Defaults to five
            minutes, an assumption.

    Returns:
        The cost.

    Raises:
        ValueError: If the report lacks this step, or there is no price for the chips.
    """
    step = next((each for each in report.steps if each.name == "train"), None)
    if step is None or step.estimate is None or not step.batch_size:
        raise ValueError(
            f"--price needs a train step that compiles on {report.tpu}: include train in --steps."
        )
    estimated = step.estimate.step_seconds
    of_input = 0.0 if report.input is None else report.input.step_seconds(step.batch_size)
    step_seconds = max(estimated, of_input)
    # The published training took the estimate divided by 1 + error.
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


def costs_by_way(
    cost: TrainingCost, prices: Prices, *, preempted_every: float, queue_seconds: float
) -> list[TrainingCost]:
    """Returns the costs of a training on demand, on Spot and by flex-start, if there is a price for its slice."""
    slow = cost.slow_seconds
    preemptions = math.ceil(slow / preempted_every)
    interrupted = slow + preemptions * (cost.start_up_seconds + LOST_SECONDS)
    return [
        dataclasses.replace(
            cost,
            way=way,
            hour_price=price,
            slow_seconds=interrupted if way == "spot" else slow,
            queue_seconds=queue_seconds if way == "flex-start" else 0.0,
        )
        for way, price in prices.ways(cost.tpu).items()
        if way != "flex-start" or slow <= LONGEST_FLEX_START
    ]


def price_text(amount: float, currency: str) -> str:
    """Formats a price, such as `"16.82 USD"`."""
    return f"{amount:,.2f} {currency}"


def read_duration(text: str, *, option: str = "--deadline") -> float:
    """Reads a duration, such as `"4h"`, `"90m"`, `"1d"` or `"1h30m"`.

    Args:
        text: Numbers with a unit each: s, m, h or d.
        option: The option's name, for the message. Defaults to `"--deadline"`.

    Returns:
        Seconds.

    Raises:
        ValueError: If it is not a duration, or 0.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not 0 < seconds < math.inf:
        raise ValueError(f"{option} {text[:100]!r}: give a duration, such as 4h, 90m or 1h30m.")
    return seconds
