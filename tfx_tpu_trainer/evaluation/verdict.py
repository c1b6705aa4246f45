"""Verdict: TFMA's decision on a model, in words that say which number failed against which bound."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow_model_analysis as tfma

from tfx_tpu_trainer.evaluation.eval_config import Thresholds
from tfx_tpu_trainer.evaluation.tfma_private import SliceKey


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """One threshold that doesn't hold, or can't be checked.

    Args:
        metric: the metric's name.
        message: a sentence without full stop, with value, bound and the baseline's value.
        bound: the bound in words, as ">= 0.75" or "change >= -0.01".
        value: the candidate's value; None if metric_fn doesn't give this metric.
        baseline_value: the baseline's value; None if there is no baseline or it doesn't know the metric.
        slice_key: the slice, as TFMA writes it; `()` is the whole eval split.
    """

    metric: str
    message: str
    bound: str
    value: float | None
    baseline_value: float | None
    slice_key: SliceKey = ()

    def __str__(self) -> str:
        return self.message


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a model may be pushed, and why.

    Args:
        blessed: True or False; None if there was nothing to check, in which case no blessing is written.
        rubber_stamp: change thresholds were ignored, because there is no baseline model yet.
        failures: what failed; empty unless `blessed` is False.
        passes: one phrase for each threshold that holds.
        unchecked: names of the metrics whose change thresholds were ignored.
    """

    blessed: bool | None
    rubber_stamp: bool = False
    failures: tuple[Failure, ...] = ()
    passes: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    def summary(self) -> str:
        """Tells the verdict and its reasons on one line, for logs, tables and MLMD."""
        unchecked = ", ".join(self.unchecked)
        if self.blessed is None and self.rubber_stamp:
            return (
                "no blessing written: there is no baseline model yet, and eval_config has only change "
                f"thresholds ({unchecked}). Add a value threshold, by which a first model can be blessed"
            )
        if self.blessed is None:
            return "no blessing written: eval_config has no thresholds"
        verdict = "blessed" if self.blessed else "not blessed"
        if self.rubber_stamp:
            verdict += f" (rubber stamp: no baseline model yet, change of {unchecked} not checked)"
        reasons = self.passes if self.blessed else [failure.message for failure in self.failures]
        return f"{verdict}: {'; '.join(reasons)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """The numbers that a validation was about.

    Args:
        candidate: the candidate's metrics by name.
        baseline: the baseline's metrics by name; None if there is no baseline, or it has no metrics.
        baseline_location: the baseline model's path, for messages; '' without a baseline.
    """

    candidate: Mapping[str, float]
    baseline: Mapping[str, float] | None
    baseline_location: str


def verdict_of(
    validation: tfma.ValidationResult,
    thresholds: Thresholds,
    comparison: Comparison,
    *,
    unchecked: tuple[str, ...],
) -> Verdict:
    """Turns TFMA's result into a verdict. TFMA decides; this finds the words.

    Args:
        validation: TFMA's result.
        thresholds: the thresholds it checked.
        comparison: the numbers it checked.
        unchecked: metrics whose change thresholds were ignored for want of a baseline.

    Returns:
        The verdict.
    """
    rubber_stamp = bool(unchecked)
    if not thresholds:
        return Verdict(blessed=None, rubber_stamp=rubber_stamp, unchecked=unchecked)
    failed = list(_failed(validation))
    failures, passes = [], []
    for key, pairs in sorted(thresholds.items(), key=lambda item: (item[0].name, item[0].is_diff)):
        for _, threshold in pairs:
            if (key.to_proto(), threshold) in failed:
                failures.append(_failure(key.name, threshold, comparison))
            else:
                passes.append(_passed(key.name, threshold, comparison))
    return Verdict(
        blessed=validation.validation_ok,
        rubber_stamp=rubber_stamp,
        failures=tuple(failures),
        passes=tuple(passes),
        unchecked=unchecked,
    )


def _failed(validation: tfma.ValidationResult) -> Iterator[tuple[Any, Any]]:
    for validation_for_slice in validation.metric_validations_per_slice:
        for failure in validation_for_slice.failures:
            threshold = failure.metric_threshold
            is_value = threshold.HasField("value_threshold")
            yield (
                failure.metric_key,
                threshold.value_threshold if is_value else threshold.change_threshold,
            )


def _failure(name: str, threshold: Any, comparison: Comparison) -> Failure:
    value = comparison.candidate.get(name)
    baseline = None if comparison.baseline is None else comparison.baseline.get(name)
    if value is None:
        message = (
            f"{name} is not among the model's metrics ({', '.join(sorted(comparison.candidate))}): "
            "return it from metric_fn, or correct the name in eval_config"
        )
    elif isinstance(threshold, tfma.GenericChangeThreshold):
        message = _failed_change(name, threshold, comparison)
    else:
        bound = _bound(threshold, lower_bound=value, upper_bound=value)
        limits = (threshold.lower_bound.value, threshold.upper_bound.value)
        message = f"{name} is {_number(value, *limits)}, but must be {bound}"
        if baseline is not None:
            message += f" (the baseline's is {_number(baseline)})"
    return Failure(
        metric=name,
        message=message,
        bound=_bound(threshold),
        value=value,
        baseline_value=baseline,
    )


def _failed_change(
    name: str, threshold: tfma.GenericChangeThreshold, comparison: Comparison
) -> str:
    value = comparison.candidate[name]
    location = comparison.baseline_location
    if comparison.baseline is None or name not in comparison.baseline:
        message = f"{name} is {_number(value)}, but its {_bound(threshold)} can't be checked: "
        if comparison.baseline is not None:
            known = ", ".join(sorted(comparison.baseline))
            return f"{message}the baseline model at {location} knows only {known}"
        return (
            f"{message}the baseline model at {location} has no eval_metrics.json. Bless one model of "
            "TpuTrainer without a baseline first (leave baseline_model out for one run)"
        )
    baseline = comparison.baseline[name]
    change = value - baseline
    bound = _bound(threshold, absolute=change, relative=_ratio(change, baseline))
    message = f"{_changed(name, value, baseline, threshold)}, but must be a {bound}"
    if threshold.HasField("relative") and math.isclose(baseline, 0.0):
        message += ". Relative to 0 no change can be told: give an absolute bound"
    return message


def _passed(name: str, threshold: Any, comparison: Comparison) -> str:
    value = comparison.candidate[name]
    if isinstance(threshold, tfma.GenericChangeThreshold):
        assert comparison.baseline is not None
        changed = _changed(name, value, comparison.baseline[name], threshold)
        return f"{changed} ({_bound(threshold)})"
    return f"{name} is {_number(value)} ({_bound(threshold)})"


def _changed(
    name: str, value: float, baseline: float, threshold: tfma.GenericChangeThreshold
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


def _bound(threshold: Any, **compared: float) -> str:
    """The bounds in words, in digits that tell each from the value compared with it."""
    lower, upper = ">= {}", "<= {}"
    if isinstance(threshold, tfma.GenericValueThreshold):
        forms = {"lower_bound": lower, "upper_bound": upper}
    else:
        form = upper if threshold.direction == tfma.MetricDirection.LOWER_IS_BETTER else lower
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
