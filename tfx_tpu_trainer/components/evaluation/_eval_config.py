"""Checks and completes an EvalConfig as the stock Evaluator does, and builds one for the stock Evaluator."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow_model_analysis as tfma
from tensorflow_model_analysis.proto import config_pb2

from tfx_tpu_trainer.components.evaluation._data_slices import (
    SliceKey,
    is_in_spec,
    parse_slicing_specs,
)

# Metrics of whole batches, which no slice has.
OVERALL_ONLY = ("loss", "loss_by_rows")

# MetricKey -> its thresholds, each with its slicing spec or None.
Thresholds = Mapping[tfma.metrics.MetricKey, Sequence[tuple[Any, Any]]]


def check_eval_config(eval_config: config_pb2.EvalConfig) -> None:
    """Rejects configs that would fail, or pass unnoticed, after the training.

    Args:
        eval_config: the user's config; thresholds are written by metric name,
            `MetricsSpec(thresholds={"accuracy": MetricThreshold(...)})`, or `per_slice_thresholds`.

    Raises:
        TypeError: not a tfma.EvalConfig.
        ValueError: a threshold without a bound or a direction, bounds that nothing can satisfy,
            slicing_specs, thresholds across slices, by output or class, or models that are not one candidate
            and at most one baseline.
    """
    if not isinstance(eval_config, config_pb2.EvalConfig):
        raise TypeError(
            f"eval_config must be a tfma.EvalConfig, got {type(eval_config).__name__}: "
            "build one with tfma.EvalConfig(metrics_specs=[tfma.MetricsSpec(thresholds={...})])."
        )
    _check_models(eval_config)
    _check_slices(eval_config)
    _check_names_only(eval_config)
    for name, threshold in _named_thresholds(eval_config):
        _check_threshold(name, threshold)


def with_defaults(
    eval_config: config_pb2.EvalConfig, *, has_baseline: bool
) -> config_pb2.EvalConfig:
    """Fills in model specs and names, and drops change thresholds if there is no baseline."""
    config = config_pb2.EvalConfig()
    config.CopyFrom(eval_config)
    if not config.model_specs:
        config.model_specs.add()
    if len(config.model_specs) == 1:
        # TFMA adds the baseline's spec only next to an unnamed one, and then names both.
        config.model_specs[0].ClearField("name")
        for spec in config.metrics_specs:
            spec.ClearField("model_names")
    config = tfma.utils.update_eval_config_with_defaults(
        config, has_baseline=has_baseline, rubber_stamp=True
    )
    tfma.utils.verify_eval_config(config)
    return config


def thresholds_of(config: config_pb2.EvalConfig) -> Thresholds:
    """Lists the candidate's thresholds."""
    thresholds = tfma.metrics.metric_thresholds_from_metrics_specs(
        config.metrics_specs, eval_config=config
    )
    candidate = candidate_name(config)
    return {key: pairs for key, pairs in thresholds.items() if key.model_name == candidate}


def metrics_with_change_thresholds(eval_config: config_pb2.EvalConfig) -> tuple[str, ...]:
    """Names the metrics with change thresholds."""
    compared = with_defaults(eval_config, has_baseline=True)
    return tuple(sorted({key.name for key in thresholds_of(compared) if key.is_diff}))


def applies(slicing_spec: Any, name: str, key: SliceKey) -> bool:
    """Returns whether a threshold applies to a slice."""
    if slicing_spec is None:
        return not key or name not in OVERALL_ONLY
    return is_in_spec(key, slicing_spec)


def for_slice(config: config_pb2.EvalConfig, key: SliceKey) -> config_pb2.EvalConfig:
    """Keeps the thresholds that apply to a slice.

    TFMA counts a threshold as failed on every slice that lacks its metric, even if it is not for that slice. That is
    right if all slices have the same metrics, but a baseline's and a candidate's may differ.
    """
    kept = config_pb2.EvalConfig()
    kept.CopyFrom(config)
    for spec in kept.metrics_specs:
        for name in [name for name in spec.thresholds if not applies(None, name, key)]:
            del spec.thresholds[name]
        for thresholds in spec.per_slice_thresholds.values():
            _keep_applicable(thresholds.thresholds, key)
        for metric in spec.metrics:
            _keep_applicable(metric.per_slice_thresholds, key)
    return kept


def _keep_applicable(thresholds: Any, key: SliceKey) -> None:
    for by_slice in thresholds:
        specs = [spec for spec in by_slice.slicing_specs if is_in_spec(key, spec)]
        del by_slice.slicing_specs[:]
        by_slice.slicing_specs.extend(specs)
    applicable = [by_slice for by_slice in thresholds if by_slice.slicing_specs]
    del thresholds[:]
    thresholds.extend(applicable)


def candidate_name(config: config_pb2.EvalConfig) -> str:
    """Returns the candidate's model name in a config from `with_defaults`."""
    return tfma.utils.get_non_baseline_model_specs(config)[0].name


def baseline_name(config: config_pb2.EvalConfig) -> str | None:
    """Returns the baseline's model name in a config from `with_defaults`, None without a baseline."""
    spec = tfma.utils.get_baseline_model_spec(config)
    return None if spec is None else spec.name


def _check_models(eval_config: config_pb2.EvalConfig) -> None:
    baselines = sum(spec.is_baseline for spec in eval_config.model_specs)
    candidates = len(eval_config.model_specs) - baselines
    if baselines > 1 or candidates > 1 or (baselines and not candidates):
        raise ValueError(
            f"eval_config.model_specs names {candidates} candidate(s) and {baselines} baseline(s): give one "
            "candidate and at most one with is_baseline=True, or no model specs."
        )


def _check_slices(eval_config: config_pb2.EvalConfig) -> None:
    if any(spec.ByteSize() for spec in eval_config.slicing_specs):
        raise ValueError(
            "eval_config has slicing_specs, but the gate uses the slices that the trainer "
            "measured: give slicing_specs to TpuTrainer, and use per_slice_thresholds here, or "
            "thresholds, which hold for every slice."
        )
    across = [
        name for spec in eval_config.metrics_specs for name in spec.cross_slice_thresholds
    ] + [
        metric.class_name
        for spec in eval_config.metrics_specs
        for metric in spec.metrics
        if metric.cross_slice_thresholds
    ]
    if eval_config.cross_slicing_specs or across:
        raise ValueError(
            f"eval_config compares slices with each other ({', '.join(sorted(across)) or 'cross_slicing_specs'}), "
            "which only the stock Evaluator does: use per_slice_thresholds instead."
        )
    for name, by_slice in _per_slice_thresholds(eval_config):
        if not by_slice.slicing_specs:
            raise ValueError(
                f"A per-slice threshold on {name!r} has no slicing_specs: name its slices, or write it as "
                "thresholds={name: ...}, which holds for every slice."
            )
        slices = parse_slicing_specs(by_slice.slicing_specs)
        if name in OVERALL_ONLY and slices:
            raise ValueError(
                f"The per-slice threshold on {name!r} can't be applied, since this metric belongs "
                "to whole batches and has no value on a slice: let metric_fn return a mean over "
                "rows, and set the threshold on that."
            )


def _check_names_only(eval_config: config_pb2.EvalConfig) -> None:
    for spec in eval_config.metrics_specs:
        outputs = [name for name in spec.output_names if name]
        if outputs or spec.HasField("binarize") or spec.HasField("aggregate"):
            raise ValueError(
                "eval_config has a MetricsSpec with output_names, binarize or aggregate, but metrics from "
                "metric_fn have names only: remove these fields, and let metric_fn return one metric each."
            )


def _per_slice_thresholds(
    eval_config: config_pb2.EvalConfig,
) -> Iterator[tuple[str, config_pb2.PerSliceMetricThreshold]]:
    for spec in eval_config.metrics_specs:
        for name, thresholds in sorted(spec.per_slice_thresholds.items()):
            yield from ((name, by_slice) for by_slice in thresholds.thresholds)
        for metric in spec.metrics:
            yield from ((metric.class_name, by_slice) for by_slice in metric.per_slice_thresholds)


def _named_thresholds(
    eval_config: config_pb2.EvalConfig,
) -> Iterator[tuple[str, config_pb2.MetricThreshold]]:
    for spec in eval_config.metrics_specs:
        yield from sorted(spec.thresholds.items())
        for metric in spec.metrics:
            if metric.HasField("threshold"):
                yield metric.class_name, metric.threshold
    for name, by_slice in _per_slice_thresholds(eval_config):
        yield name, by_slice.threshold


def _check_threshold(name: str, threshold: config_pb2.MetricThreshold) -> None:
    has_value = threshold.HasField("value_threshold")
    has_change = threshold.HasField("change_threshold")
    if not has_value and not has_change:
        raise ValueError(
            f"The threshold on {name!r} is empty: give it a value_threshold, a change_threshold or both."
        )
    if has_value:
        _check_value_threshold(name, threshold.value_threshold)
    if has_change:
        _check_change_threshold(name, threshold.change_threshold)


def _check_value_threshold(name: str, threshold: config_pb2.GenericValueThreshold) -> None:
    bounds = _bounds(name, threshold, "lower_bound", "upper_bound")
    if not bounds:
        raise ValueError(
            f"The value_threshold on {name!r} has no bound: give lower_bound, upper_bound or both."
        )
    lower, upper = bounds.get("lower_bound", -math.inf), bounds.get("upper_bound", math.inf)
    if lower > upper:
        raise ValueError(
            f"The value_threshold on {name!r} can never hold: its lower_bound {lower} is above its "
            f"upper_bound {upper}. Swap them?"
        )


def _check_change_threshold(name: str, threshold: config_pb2.GenericChangeThreshold) -> None:
    if not _bounds(name, threshold, "absolute", "relative"):
        raise ValueError(
            f"The change_threshold on {name!r} has no bound: give absolute, relative or both."
        )
    if threshold.direction == config_pb2.MetricDirection.UNKNOWN:
        raise ValueError(
            f"The change_threshold on {name!r} has no direction: give direction="
            "tfma.MetricDirection.HIGHER_IS_BETTER or LOWER_IS_BETTER."
        )


def _bounds(name: str, threshold: Any, *fields: str) -> dict[str, float]:
    bounds = {
        field: getattr(threshold, field).value for field in fields if threshold.HasField(field)
    }
    for field, value in bounds.items():
        if math.isnan(value):
            raise ValueError(f"The threshold on {name!r} has {field}=NaN, which nothing satisfies.")
    return bounds


TRANSFORM_FEATURES = "transform_features"
"""The signature that TpuTrainer's default receiver adds: raw example -> transformed features and label."""


def stock_evaluator_config(
    label_key: str,
    *,
    metrics: Iterable[str | config_pb2.MetricConfig] = ("ExampleCount",),
    prediction_key: str = "",
    slicing_specs: Any = (),
    example_weight_key: str = "",
) -> config_pb2.EvalConfig:
    """Builds the EvalConfig for TFX's Evaluator to measure a TpuTrainer model on raw examples.

    The model gets serialized raw examples by `serving_default`; the label, which Transform has made, comes from the
    signature `transform_features`. No user code is needed.

    It has no thresholds, so the Evaluator writes no blessing: `EvalMetricsGate` blesses. To let the Evaluator
    bless instead, give thresholds on TFMA's metrics in `metrics`, and leave out the gate.

    Args:
        label_key: the label in Transform's output, as TpuTrainer's `label_key`.
        metrics: TFMA's metrics: class names, such as "AUC", or configs.
        prediction_key: the output that is the model's prediction; '' if it has only one output, or if the metrics can
            handle several.
        slicing_specs: slices to measure in addition to the whole, by raw or transformed features, in any form that
            TpuTrainer takes.
        example_weight_key: feature of Transform's output that weights the rows; '' for none.

    Returns:
        The config.

    Raises:
        ValueError: no label_key or no metric, or slicing specs that can't be read.
    """
    if not label_key:
        raise ValueError(f"label_key={label_key!r}: name the label in Transform's output.")
    configs: Sequence[config_pb2.MetricConfig] = [
        config_pb2.MetricConfig(class_name=one) if isinstance(one, str) else one for one in metrics
    ]
    if not configs:
        raise ValueError("metrics is empty: name TFMA's metrics, such as ['ExampleCount', 'AUC'].")
    return config_pb2.EvalConfig(
        model_specs=[
            config_pb2.ModelSpec(
                # The default type would load the model with Keras, which can't read a TF1 metagraph.
                model_type="tf_generic",
                signature_name="serving_default",
                label_key=label_key,
                prediction_key=prediction_key,
                example_weight_key=example_weight_key,
                preprocessing_function_names=[TRANSFORM_FEATURES],
            )
        ],
        metrics_specs=[config_pb2.MetricsSpec(metrics=configs)],
        slicing_specs=[config_pb2.SlicingSpec(), *parse_slicing_specs(slicing_specs)],
    )
