"""Short ways to write an EvalConfig."""

from __future__ import annotations

import tensorflow_model_analysis as tfma


def config(**thresholds: tfma.MetricThreshold) -> tfma.EvalConfig:
    return tfma.EvalConfig(metrics_specs=[tfma.MetricsSpec(thresholds=thresholds)])


def sliced(
    **thresholds: tuple[tfma.SlicingSpec | None, tfma.MetricThreshold],
) -> tfma.EvalConfig:
    """Thresholds on the slices of a spec; `None` forgets the spec."""
    by_name = {
        name: tfma.PerSliceMetricThresholds(
            thresholds=[
                tfma.PerSliceMetricThreshold(
                    slicing_specs=[] if spec is None else [spec], threshold=threshold
                )
            ]
        )
        for name, (spec, threshold) in thresholds.items()
    }
    return tfma.EvalConfig(metrics_specs=[tfma.MetricsSpec(per_slice_thresholds=by_name)])


def value(lower: float | None = None, upper: float | None = None) -> tfma.MetricThreshold:
    return tfma.MetricThreshold(value_threshold=_value(lower, upper))


def change(
    absolute: float | None = None,
    relative: float | None = None,
    *,
    lower_is_better: bool = False,
    value_lower: float | None = None,
) -> tfma.MetricThreshold:
    direction = tfma.MetricDirection
    threshold = tfma.GenericChangeThreshold(
        absolute=None if absolute is None else {"value": absolute},
        relative=None if relative is None else {"value": relative},
        direction=direction.LOWER_IS_BETTER if lower_is_better else direction.HIGHER_IS_BETTER,
    )
    return tfma.MetricThreshold(
        change_threshold=threshold,
        value_threshold=None if value_lower is None else _value(value_lower, None),
    )


def _value(lower: float | None, upper: float | None) -> tfma.GenericValueThreshold:
    return tfma.GenericValueThreshold(
        lower_bound=None if lower is None else {"value": lower},
        upper_bound=None if upper is None else {"value": upper},
    )
