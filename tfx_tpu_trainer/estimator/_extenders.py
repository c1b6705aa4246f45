"""Extends an existing Estimator with metrics, or with features among its predictions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._estimator import Estimator, check_is_estimator
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator._user_calls import argument_names, call_with, unexpected_arguments
from tfx_tpu_trainer.estimator.export._outputs import DEFAULT_SIGNATURE, PredictOutput
from tfx_tpu_trainer.estimator.tpu._tpu_estimator_spec import TPUEstimatorSpec

v1 = tf.compat.v1

_ARGUMENTS: Final = ("features", "labels", "predictions", "config")


def add_metrics(estimator: Estimator, metric_fn: Callable[..., dict[str, Any]]) -> Estimator:
    """Returns an Estimator with additional metrics; mirrors `tf.estimator.add_metrics`.

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
            metrics as `EstimatorSpec.eval_metric_ops`. They replace metrics of the same name.

    Returns:
        A new Estimator with the same model folder.

    Raises:
        ValueError: If metric_fn takes another argument.
        TypeError: If metric_fn is not callable, or `estimator` is not an Estimator.
    """
    check_is_estimator(estimator)
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

    return _with_model_fn(estimator, model_fn)


def _with_model_fn(estimator: Estimator, model_fn: Callable[..., Any]) -> Estimator:
    return Estimator(
        model_fn,
        model_dir=estimator.model_dir,
        config=estimator.config,
        warm_start_from=estimator._warm_start_settings,
    )


def _on_cores(
    eval_metrics: Any, metric_fn: Callable[..., dict[str, Any]], given: Mapping[str, Any]
) -> tuple[Callable[..., dict[str, Any]], dict[str, Any]]:
    """Adds metrics to those of a `TPUEstimatorSpec`; all are made from the gathered tensors."""
    own_fn, own_tensors = eval_metrics or (dict, {})
    # Cores send only tensors, so a config is bound to the function.
    constants = {name: given[name] for name in given if name == "config"}
    tensors = {name: given[name] for name in given if name != "config"}

    def both(own: Any, added: dict[str, Any]) -> dict[str, Any]:
        measured = own_fn(**own) if isinstance(own, Mapping) else own_fn(*own)
        return {**measured, **call_with(metric_fn, {**added, **constants})}

    return both, {"own": own_tensors, "added": tensors}


# Signatures of a canned estimator that return named tensors.
_SIGNATURES: Final = ("predict", DEFAULT_SIGNATURE)


def forward_features(
    estimator: Estimator,
    keys: str | Sequence[str] | None = None,
    sparse_default_values: Mapping[str, Any] | None = None,
) -> Estimator:
    """Returns an Estimator that also predicts features; mirrors `tf.contrib.estimator.forward_features`.

    `predict` and the predict signatures of an export return them with the predictions, so predictions whose
    order is lost can be joined with their inputs.

    Examples:
        >>> from tfx_tpu_trainer.estimator import BaselineRegressor, forward_features, inputs
        >>> import numpy as np
        >>> rows = {"x": np.ones(3, np.float32), "id": np.array([7, 8, 9])}
        >>> input_fn = inputs.numpy_input_fn(rows, rows["x"], shuffle=False)
        >>> estimator = forward_features(BaselineRegressor(model_dir="runs/ids"), "id")
        >>> [int(row["id"]) for row in estimator.train(input_fn).predict(input_fn)]
        [7, 8, 9]

    Args:
        estimator: An Estimator, canned or not, whose predictions are a dict.
        keys: The name of a feature, or names of several. Defaults to `None`, all features.
        sparse_default_values: Maps names of sparse features to the default value of the dense tensors that they
            are forwarded as. Defaults to `None`: a sparse feature is an error.

    Returns:
        A new Estimator with the same model folder.

    Raises:
        TypeError: If keys are not strings.
    """
    if isinstance(keys, str):
        keys = [keys]
    if not isinstance(keys, (list, tuple, type(None))):
        raise TypeError(
            f"keys should be either a string or a list of strings. Given: {keys!r}, a {type(keys).__name__}."
        )
    for key in keys or ():
        if not isinstance(key, str):
            raise TypeError(
                "All items in the given keys list should be a string. There exist an item with type: "
                f"{type(key).__name__}, {key!r}."
            )

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        spec = estimator.model_fn(features, labels, mode, config)
        if spec.predictions is None:
            return spec
        forwarded = _forwarded(features, spec.predictions, keys, sparse_default_values or {})
        changes: dict[str, Any] = {"predictions": {**spec.predictions, **forwarded}}
        if spec.export_outputs:
            changes["export_outputs"] = {
                name: _with(output, forwarded) if name in _SIGNATURES else output
                for name, output in spec.export_outputs.items()
            }
        return spec._replace(**changes)

    return _with_model_fn(estimator, model_fn)


def _forwarded(
    features: Any,
    predictions: Any,
    keys: Sequence[str] | None,
    sparse_default_values: Mapping[str, Any],
) -> dict[str, tf.Tensor]:
    """Returns the features of the keys as dense tensors."""
    for name, given in (("Predictions", predictions), ("Features", features)):
        if not isinstance(given, Mapping):
            raise ValueError(
                f"{name} should be a dict to be able to forward features. Given: {given!r}."
            )
    forwarded = {}
    for key in features if keys is None else keys:
        if key not in features:
            raise ValueError(
                f'keys should be exist in features. Key "{key}" is not in features dict. features dict has '
                f"following keys: {sorted(features)}. Please check arguments of forward_features, and what the "
                "input function and the serving input receiver return."
            )
        if key in predictions:
            raise ValueError(
                f"Cannot forward feature key ({key}). Since it does exist in predictions. Existing prediction keys: "
                f"{sorted(predictions)}. Please check arguments of forward_features."
            )
        forwarded[key] = _dense(key, features[key], sparse_default_values)
    return forwarded


def _dense(key: str, feature: Any, sparse_default_values: Mapping[str, Any]) -> tf.Tensor:
    is_sparse = isinstance(feature, (tf.SparseTensor, v1.SparseTensorValue))
    if key in sparse_default_values:
        if not is_sparse:
            raise ValueError(
                f"Feature ({key}) is expected to be a `SparseTensor`, as sparse_default_values has its name. It is "
                f"{feature!r}."
            )
        return tf.sparse.to_dense(
            v1.convert_to_tensor_or_sparse_tensor(feature), sparse_default_values[key]
        )
    if is_sparse or isinstance(feature, tf.RaggedTensor):
        raise ValueError(
            f"Forwarded feature ({key}) should be a Tensor. Please use keys argument of forward_features to filter "
            "unwanted features, or add key to argument `sparse_default_values`. "
            f"Type of features[{key}] is {type(feature).__name__}."
        )
    return tf.convert_to_tensor(feature)


def _with(output: Any, forwarded: Mapping[str, tf.Tensor]) -> Any:
    """Adds tensors to an export output if its kind names them."""
    if not isinstance(output, (PredictOutput, tf_private.export_output.PredictOutput)):
        return output
    return PredictOutput({**output.outputs, **forwarded})
