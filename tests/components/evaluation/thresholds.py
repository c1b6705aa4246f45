"""Builds EvalConfigs briefly."""

from __future__ import annotations

from tensorflow_model_analysis.proto import config_pb2


def config(**thresholds: config_pb2.MetricThreshold) -> config_pb2.EvalConfig:
    return config_pb2.EvalConfig(metrics_specs=[config_pb2.MetricsSpec(thresholds=thresholds)])


def sliced(
    **thresholds: tuple[config_pb2.SlicingSpec | None, config_pb2.MetricThreshold],
) -> config_pb2.EvalConfig:
    """Thresholds on the slices of a spec; `None` forgets the spec."""
    by_name = {
        name: config_pb2.PerSliceMetricThresholds(
            thresholds=[
                config_pb2.PerSliceMetricThreshold(
                    slicing_specs=[] if spec is None else [spec], threshold=threshold
                )
            ]
        )
        for name, (spec, threshold) in thresholds.items()
    }
    return config_pb2.EvalConfig(
        metrics_specs=[config_pb2.MetricsSpec(per_slice_thresholds=by_name)]
    )


def value(lower: float | None = None, upper: float | None = None) -> config_pb2.MetricThreshold:
    return config_pb2.MetricThreshold(value_threshold=_value(lower, upper))


def change(
    absolute: float | None = None,
    relative: float | None = None,
    *,
    lower_is_better: bool = False,
    value_lower: float | None = None,
) -> config_pb2.MetricThreshold:
    direction = config_pb2.MetricDirection
    threshold = config_pb2.GenericChangeThreshold(
        absolute=None if absolute is None else {"value": absolute},
        relative=None if relative is None else {"value": relative},
        direction=direction.LOWER_IS_BETTER if lower_is_better else direction.HIGHER_IS_BETTER,
    )
    return config_pb2.MetricThreshold(
        change_threshold=threshold,
        value_threshold=None if value_lower is None else _value(value_lower, None),
    )


def _value(lower: float | None, upper: float | None) -> config_pb2.GenericValueThreshold:
    return config_pb2.GenericValueThreshold(
        lower_bound=None if lower is None else {"value": lower},
        upper_bound=None if upper is None else {"value": upper},
    )
