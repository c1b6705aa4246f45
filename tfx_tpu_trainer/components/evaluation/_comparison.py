"""What a threshold was compared with, and how that reads in a verdict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from tensorflow_model_analysis.proto import config_pb2

from tfx_tpu_trainer.components.evaluation._data_slices import OVERALL, SliceKey, slice_in_words


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """The numbers that a validation was about, on the whole eval split or on a slice."""

    candidate: Mapping[str, float]  # the candidate's metrics by name
    # the baseline's metrics by name; None if there is no baseline, or it has no metrics.
    baseline: Mapping[str, float] | None
    baseline_location: str  # the baseline model's path, for messages; '' without a baseline
    slice_key: SliceKey = OVERALL  # the slice they are about; `()` is the whole eval split

    def name_of(self, metric: str) -> str:
        """Returns a metric's name with that of the slice."""
        return f"{metric} on {slice_in_words(self.slice_key)}" if self.slice_key else metric


def failed(name: str, threshold: Any, comparison: Comparison) -> str:
    """Says how a threshold fails, with value, bound and the baseline's value."""
    value = comparison.candidate.get(name)
    if value is None:
        known = ", ".join(sorted(comparison.candidate))
        return (
            f"{comparison.name_of(name)} is not among the model's metrics ({known}): "
            "return it from metric_fn, or correct the name in eval_config"
        )
    if isinstance(threshold, config_pb2.GenericChangeThreshold):
        return _failed_change(name, threshold, comparison)
    bound = bound_in_words(threshold, lower_bound=value, upper_bound=value)
    limits = (threshold.lower_bound.value, threshold.upper_bound.value)
    message = f"{comparison.name_of(name)} is {_number(value, *limits)}, but must be {bound}"
    baseline = (comparison.baseline or {}).get(name)
    return message if baseline is None else f"{message} (the baseline's is {_number(baseline)})"


def _failed_change(
    name: str, threshold: config_pb2.GenericChangeThreshold, comparison: Comparison
) -> str:
    value = comparison.candidate[name]
    location = comparison.baseline_location
    if comparison.baseline is None or name not in comparison.baseline:
        message = f"{comparison.name_of(name)} is {_number(value)}, but its "
        message += f"{bound_in_words(threshold)} can't be checked: "
        if comparison.slice_key and comparison.baseline == {}:
            return f"{message}the baseline model at {location} was not measured on this slice"
        if comparison.baseline is not None:
            known = ", ".join(sorted(comparison.baseline))
            return f"{message}the baseline model at {location} knows only {known}"
        return (
            f"{message}the baseline model at {location} has no eval_metrics.json. Bless one model of "
            "TpuTrainer without a baseline first (leave baseline_model out for one run)"
        )
    baseline = comparison.baseline[name]
    change = value - baseline
    bound = bound_in_words(threshold, absolute=change, relative=_ratio(change, baseline))
    message = (
        f"{_changed(comparison.name_of(name), value, baseline, threshold)}, but must be a {bound}"
    )
    if threshold.HasField("relative") and math.isclose(baseline, 0.0):
        message += ". A relative change from 0 is undefined: give an absolute bound"
    return message


def passed(name: str, threshold: Any, comparison: Comparison) -> str:
    """Says that a threshold holds, with value and bound."""
    value = comparison.candidate[name]
    if isinstance(threshold, config_pb2.GenericChangeThreshold):
        assert comparison.baseline is not None
        changed = _changed(comparison.name_of(name), value, comparison.baseline[name], threshold)
        return f"{changed} ({bound_in_words(threshold)})"
    return f"{comparison.name_of(name)} is {_number(value)} ({bound_in_words(threshold)})"


def _changed(
    name: str, value: float, baseline: float, threshold: config_pb2.GenericChangeThreshold
) -> str:
    change = value - baseline
    sign = "+" if change > 0 else ""
    text = f"{name} is {_number(value, baseline)}, the baseline's {_number(baseline, value)}"
    text += f", a change of {sign}{_number(change, threshold.absolute.value)}"
    ratio = _ratio(change, baseline)
    if math.isfinite(ratio):
        sign = "+" if ratio > 0 else ""
        text += f" (relative {sign}{_number(ratio, threshold.relative.value)})"
    return text


def _ratio(change: float, baseline: float) -> float:
    return change / baseline if baseline else math.nan


def bound_in_words(threshold: Any, **compared: float) -> str:
    """The bounds in words, in digits that tell each from the value compared with it."""
    lower, upper = ">= {}", "<= {}"
    if isinstance(threshold, config_pb2.GenericValueThreshold):
        forms = {"lower_bound": lower, "upper_bound": upper}
    else:
        form = upper if threshold.direction == config_pb2.MetricDirection.LOWER_IS_BETTER else lower
        forms = {"absolute": f"change {form}", "relative": f"relative change {form}"}
    return " and ".join(
        form.format(_number(getattr(threshold, field).value, compared.get(field, math.nan)))
        for field, form in forms.items()
        if threshold.HasField(field)
    )


def _number(value: float, *beside: float) -> str:
    """Six digits, or all of them where six would show two different numbers as one."""
    if math.isnan(value):
        return "NaN"
    short = f"{value:.6g}"
    alike = any(other != value and f"{other:.6g}" == short for other in beside)
    return repr(value) if alike else short
