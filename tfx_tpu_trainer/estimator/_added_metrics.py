"""More metrics for an Estimator that is there already."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tfx_tpu_trainer.estimator._callables import argument_names, call_with, unexpected_arguments
from tfx_tpu_trainer.estimator._estimator import Estimator
from tfx_tpu_trainer.estimator._mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.tpu._tpu_estimator_spec import TPUEstimatorSpec

_ARGUMENTS: Final = ("features", "labels", "predictions", "config")


def add_metrics(estimator: Estimator, metric_fn: Callable[..., dict[str, Any]]) -> Estimator:
    """Returns an Estimator that measures more; mirrors `tf.estimator.add_metrics`.

    Examples:
        >>> from tfx_tpu_trainer.estimator import BaselineRegressor, add_metrics, inputs
        >>> import numpy as np
        >>> import tensorflow as tf
        >>> def metric_fn(labels, predictions):
        ...     error = tf.keras.metrics.MeanAbsoluteError()
        ...     error.update_state(labels, predictions["predictions"])
        ...     return {"mae": error}
        >>> estimator = add_metrics(BaselineRegressor(model_dir="runs/mae"), metric_fn)
        >>> rows = np.ones(4, np.float32)
        >>> input_fn = inputs.numpy_input_fn({"x": rows}, rows, shuffle=False)
        >>> sorted(estimator.train(input_fn).evaluate(input_fn))
        ['average_loss', 'global_step', 'label/mean', 'loss', 'mae', 'prediction/mean']

    Args:
        estimator: An Estimator, canned or not.
        metric_fn: Takes any of `features`, `labels`, `predictions` and `config` by name; returns
            what `EstimatorSpec.eval_metric_ops` takes. A name that is there already is replaced.

    Returns:
        A new Estimator with the same model folder.

    Raises:
        ValueError: If metric_fn takes another argument.
        TypeError: If it is not callable, or estimator no Estimator.
    """
    if not isinstance(estimator, Estimator):
        raise TypeError(
            f"`estimator` must have type `tf.estimator.Estimator`. Got: {type(estimator)}"
        )
    if not callable(metric_fn):
        raise TypeError(f"metric_fn must be callable; got {metric_fn!r}.")
    unknown = unexpected_arguments(metric_fn, _ARGUMENTS)
    if unknown:
        raise ValueError(
            f"metric_fn ({metric_fn!r}) has following not expected args: {unknown}. It may take "
            f"{', '.join(_ARGUMENTS)}."
        )

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        spec = estimator.model_fn(features, labels, mode, config)
        if mode != ModeKeys.EVAL:
            return spec
        available = {
            "features": features,
            "labels": labels,
            "predictions": spec.predictions,
            "config": config,
        }
        taken = argument_names(metric_fn)
        given = {name: value for name, value in available.items() if name in taken}
        if isinstance(spec, TPUEstimatorSpec):
            return spec._replace(eval_metrics=_on_cores(spec.eval_metrics, metric_fn, given))
        return spec._replace(
            eval_metric_ops={**(spec.eval_metric_ops or {}), **call_with(metric_fn, given)}
        )

    return Estimator(
        model_fn,
        model_dir=estimator.model_dir,
        config=estimator.config,
        warm_start_from=estimator._warm_start_settings,
    )


def _on_cores(
    eval_metrics: Any, metric_fn: Callable[..., dict[str, Any]], given: Mapping[str, Any]
) -> tuple[Callable[..., dict[str, Any]], dict[str, Any]]:
    """Metrics of a `TPUEstimatorSpec` and more, all made once the cores' tensors are gathered."""
    own_fn, own_tensors = eval_metrics or (dict, {})
    constants = {name: given[name] for name in given if name == "config"}
    tensors = {name: given[name] for name in given if name != "config"}

    def both(own: Any, added: dict[str, Any]) -> dict[str, Any]:
        measured = own_fn(**own) if isinstance(own, Mapping) else own_fn(*own)
        return {**measured, **call_with(metric_fn, {**added, **constants})}

    return both, {"own": own_tensors, "added": tensors}
