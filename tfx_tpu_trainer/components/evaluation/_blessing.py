"""Blesses models: TFMA's rules decide, `Verdict` explains, `write_blessing` writes the artifact that Pusher reads."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tensorflow_model_analysis as tfma
from tensorflow_model_analysis.proto import config_pb2

from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.components.evaluation import _tfma_private
from tfx_tpu_trainer.components.evaluation._data_slices import (
    OVERALL,
    SliceKey,
    slice_in_words,
    spec_in_words,
)
from tfx_tpu_trainer.components.evaluation._eval_config import (
    Thresholds,
    applies,
    for_slice,
    thresholds_of,
)
from tfx_tpu_trainer.components.evaluation._eval_metrics import diverged_names

# Limits the reasons in a table cell or log line, which hundreds of slices would flood.
_MOST_REASONS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """A threshold that fails or can't be checked.

    Attributes:
        metric: the metric's name.
        message: a sentence without a full stop, with value, bound and the baseline's value.
        bound: the bound in words, such as ">= 0.75" or "change >= -0.01".
        value: the candidate's value; None if metric_fn doesn't give this metric, or the slice wasn't measured.
        baseline_value: the baseline's value; None if there is no baseline or it doesn't know the metric.
        slice_key: the slice, in TFMA's form; `()` is the whole eval split, or a threshold's slices that were not
            measured.
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

    Attributes:
        blessed: True or False; None if there was nothing to check, in which case no blessing is written.
        rubber_stamp: change thresholds were ignored, because there is no baseline model yet.
        failures: what failed; empty unless `blessed` is False.
        passes: one phrase for each threshold that holds, and one for all slices on which it holds.
        unchecked: names of the metrics whose change thresholds were ignored.
    """

    blessed: bool | None
    rubber_stamp: bool = False
    failures: tuple[Failure, ...] = ()
    passes: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    def summary(self) -> str:
        """Returns the verdict and its reasons in one line, for logs, tables and MLMD."""
        unchecked = ", ".join(self.unchecked)
        if self.blessed is None and self.rubber_stamp:
            return (
                "no blessing written: no baseline model exists yet, and eval_config has only "
                f"change thresholds ({unchecked}). Add a value threshold, so that a first model "
                "can be blessed"
            )
        if self.blessed is None:
            return "no blessing written: eval_config has no thresholds"
        verdict = "blessed" if self.blessed else "not blessed"
        if self.rubber_stamp:
            verdict += f" (first model: no baseline yet, change of {unchecked} not checked)"
        reasons = self.passes if self.blessed else [failure.message for failure in self.failures]
        more = len(reasons) - _MOST_REASONS
        shown = [*reasons[:_MOST_REASONS], *([f"and {more} more"] if more > 0 else [])]
        return f"{verdict}: {'; '.join(shown)}"


def judge(
    config: config_pb2.EvalConfig,
    slices: Sequence[tuple[SliceKey, _tfma_private.KeyedMetrics]],
    comparisons: Sequence[Comparison],
    *,
    unchecked: tuple[str, ...],
) -> tuple[tfma.ValidationResult, Verdict]:
    """Decides by TFMA's rules whether a model is blessed; `comparisons` are the numbers of `slices` by name."""
    thresholds = thresholds_of(config)
    validation = _tfma_private.validate(
        [(key, values, for_slice(config, key)) for key, values in slices],
        config,
        # A rubber stamp blesses a pipeline's first model, which has no baseline: its change thresholds were removed
        # before, and the value thresholds decide. With {auc >= 0.7, change of auc >= -0.01} and no baseline, a model of
        # auc 0.8 is blessed and one of 0.6 is not. Without a value threshold nothing is left to check: TFMA then counts
        # a rubber stamp as a blessing; the stock Evaluator does not, and neither does this gate.
        rubber_stamp=bool(unchecked and thresholds),
    )
    verdict = _verdict_of(validation, thresholds, comparisons, unchecked)
    # TFMA's rules find `inf >= 0.5`, but a model that has diverged is never blessed.
    known = {(failure.metric, failure.slice_key) for failure in verdict.failures}
    diverged = [
        failure
        for failure in _diverged(thresholds, comparisons)
        if (failure.metric, failure.slice_key) not in known
    ]
    if not diverged:
        return validation, verdict
    for failure in diverged:
        of_slice = validation.metric_validations_per_slice.add(
            slice_key=tfma.slicer.serialize_slice_key(failure.slice_key)
        )
        told = of_slice.failures.add(message=failure.message)
        told.metric_key.name = failure.metric
        told.metric_value.double_value.value = failure.value
    validation.validation_ok = False
    failures = (*diverged, *verdict.failures)
    return validation, dataclasses.replace(verdict, blessed=False, failures=failures)


def _diverged(thresholds: Thresholds, comparisons: Sequence[Comparison]) -> Iterator[Failure]:
    checked = {key.name for key in thresholds}
    for one in comparisons if thresholds else ():
        for name in diverged_names(one.candidate):
            # A small slice may have an undefined ratio on which there is no threshold.
            if not one.slice_key or name in checked:
                value = one.candidate[name]
                yield Failure(
                    metric=name,
                    message=f"{one.name_of(name)} is {value}: the model has diverged",
                    bound="finite",
                    value=value,
                    baseline_value=(one.baseline or {}).get(name),
                    slice_key=one.slice_key,
                )


def _verdict_of(
    validation: tfma.ValidationResult,
    thresholds: Thresholds,
    comparisons: Sequence[Comparison],
    unchecked: tuple[str, ...],
) -> Verdict:
    rubber_stamp = bool(unchecked)
    if not thresholds:
        return Verdict(blessed=None, rubber_stamp=rubber_stamp, unchecked=unchecked)
    found = list(_found_failing(validation))
    failures: dict[tuple[Any, ...], Failure] = {}
    passes: list[str] = []
    for key, pairs in sorted(thresholds.items(), key=lambda item: (item[0].name, item[0].is_diff)):
        for spec, threshold in pairs:
            concerned = [one for one in comparisons if applies(spec, key.name, one.slice_key)]
            failing = [
                one for one in concerned if (one.slice_key, key.to_proto(), threshold) in found
            ]
            for one in failing:
                # Two specs may set the same threshold on one slice.
                name = (key, one.slice_key, threshold.SerializeToString())
                failures[name] = _failure(key.name, threshold, one)
            passing = [one for one in concerned if one not in failing]
            passes += _passes(key.name, threshold, passing)
            if not concerned:
                missing = (key, str(spec), threshold.SerializeToString())
                failures[missing] = _not_measured(key.name, threshold, spec, comparisons)
    return Verdict(
        blessed=validation.validation_ok,
        rubber_stamp=rubber_stamp,
        failures=tuple(failures.values()),
        passes=tuple(passes),
        unchecked=unchecked,
    )


def _found_failing(validation: tfma.ValidationResult) -> Iterator[tuple[SliceKey, Any, Any]]:
    for of_slice in validation.metric_validations_per_slice:
        slice_key = tfma.slicer.deserialize_slice_key(of_slice.slice_key)
        for failure in of_slice.failures:
            threshold = failure.metric_threshold
            is_value = threshold.HasField("value_threshold")
            yield (
                slice_key,
                failure.metric_key,
                threshold.value_threshold if is_value else threshold.change_threshold,
            )


def _passes(name: str, threshold: Any, passing: Sequence[Comparison]) -> Iterator[str]:
    slices = [one for one in passing if one.slice_key]
    yield from (passed(name, threshold, one) for one in passing if not one.slice_key)
    if len(slices) == 1:
        yield passed(name, threshold, slices[0])
    elif slices:
        yield f"{name} on {len(slices)} slices ({bound_in_words(threshold)})"


def _failure(name: str, threshold: Any, comparison: Comparison) -> Failure:
    return Failure(
        metric=name,
        message=failed(name, threshold, comparison),
        bound=bound_in_words(threshold),
        value=comparison.candidate.get(name),
        baseline_value=(comparison.baseline or {}).get(name),
        slice_key=comparison.slice_key,
    )


def _not_measured(
    name: str, threshold: Any, spec: config_pb2.SlicingSpec, comparisons: Sequence[Comparison]
) -> Failure:
    wanted = spec_in_words(spec)
    bound = bound_in_words(threshold)
    message = f"{name} must be {bound} on {wanted}, a slice that was not measured: "
    if all(one.slice_key == OVERALL for one in comparisons):
        message += "give slicing_specs to TpuTrainer"
    else:
        message += (
            "give it to TpuTrainer's slicing_specs, or check that the eval split has such rows"
        )
    return Failure(metric=name, message=message, bound=bound, value=None, baseline_value=None)


if TYPE_CHECKING:
    from tfx import v1 as tfx

# The stock Evaluator's file and property names, repeated because importing its constants imports all of TFX; a test
# compares them.
BLESSED_FILE = "BLESSED"
NOT_BLESSED_FILE = "NOT_BLESSED"
BLESSED_PROPERTY = "blessed"
"""The property of a ModelBlessing that is 1 if the model may be pushed, else 0."""
CURRENT_MODEL_PROPERTY = "current_model"
CURRENT_MODEL_ID_PROPERTY = "current_model_id"
BASELINE_MODEL_PROPERTY = "baseline_model"
BASELINE_MODEL_ID_PROPERTY = "baseline_model_id"
COMPONENT_ID_PROPERTY = "component_id"

# Our own property: the verdict in words.
VERDICT_PROPERTY = "verdict"
"""The property of a ModelBlessing with the gate's verdict in words."""


def write_blessing(
    blessing: tfx.dsl.Artifact,
    verdict: Verdict,
    *,
    model: tfx.dsl.Artifact,
    baseline_model: tfx.dsl.Artifact | None = None,
    component_id: str | None = None,
) -> None:
    """Writes a blessing as the stock Evaluator does, and the verdict's text next to it.

    A verdict without thresholds (`blessed` is None) writes the text only: neither Pusher nor LatestBlessedModelStrategy
    then considers the model blessed.

    Args:
        blessing: the ModelBlessing artifact; its folder gets `BLESSED` or `NOT_BLESSED`, its custom properties get the
            values that LatestBlessedModelStrategy reads.
        verdict: the verdict.
        model: the judged Model, with its id in MLMD.
        baseline_model: the Model it was compared with.
        component_id: the id of the component that judges, if known.
    """
    blessing.set_string_custom_property(VERDICT_PROPERTY, verdict.summary())
    if verdict.blessed is None:
        return
    blessing.set_string_custom_property(CURRENT_MODEL_PROPERTY, model.uri)
    blessing.set_int_custom_property(CURRENT_MODEL_ID_PROPERTY, model.id)
    if baseline_model is not None:
        blessing.set_string_custom_property(BASELINE_MODEL_PROPERTY, baseline_model.uri)
        blessing.set_int_custom_property(BASELINE_MODEL_ID_PROPERTY, baseline_model.id)
    if component_id:
        blessing.set_string_custom_property(COMPONENT_ID_PROPERTY, component_id)
    file_name, other = BLESSED_FILE, NOT_BLESSED_FILE
    if not verdict.blessed:
        file_name, other = other, file_name
    # An earlier attempt of this execution may have reached the other verdict.
    stale = os.path.join(blessing.uri, other)
    if tf.io.gfile.exists(stale):
        tf.io.gfile.remove(stale)
    write_whole(os.path.join(blessing.uri, file_name), "")
    blessing.set_int_custom_property(BLESSED_PROPERTY, int(verdict.blessed))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """The numbers behind a validation, on the whole eval split or on a slice."""

    candidate: Mapping[str, float]  # the candidate's metrics by name
    # the baseline's metrics by name; None if there is no baseline, or it has no metrics.
    baseline: Mapping[str, float] | None
    baseline_location: str  # the baseline model's path, for messages; '' without a baseline
    slice_key: SliceKey = OVERALL  # the slice; `()` is the whole eval split

    def name_of(self, metric: str) -> str:
        """Returns a metric's name with its slice."""
        return f"{metric} on {slice_in_words(self.slice_key)}" if self.slice_key else metric


def failed(name: str, threshold: Any, comparison: Comparison) -> str:
    """Describes a threshold that fails: value, bound and the baseline's value."""
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
    """Describes a threshold that holds: value and bound."""
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
    """Formats bounds with enough digits to differ from the compared value."""
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
    """Formats a number with six digits, or with all if six would hide a difference."""
    if math.isnan(value):
        return "NaN"
    short = f"{value:.6g}"
    alike = any(other != value and f"{other:.6g}" == short for other in beside)
    return repr(value) if alike else short
