"""Turns a module's Keras model into a model_fn, fed with Transform's features, labels and weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.components.user_module._module import UserModule
from tfx_tpu_trainer.estimator import ModeKeys, tpu
from tfx_tpu_trainer.estimator.extending import (
    is_keras_model,
    keras_model_fn,
    keras_output_names,
)

WEIGHT_COLUMN = "weight_column"
"""Name of the param that names the feature with the rows' weights."""


def with_keras_model(
    module: UserModule,
    params: Mapping[str, Any],
    *,
    features: Collection[str] | None,
    label_key: str | None,
    config: tpu.RunConfig | None = None,
    warm_start_from: Any = None,
) -> UserModule:
    """Returns the module with its Keras model as model_fn; a module with a model_fn is unchanged.

    Args:
        module: The user's module, checked.
        params: The argument of build_model.
        features: Names of the features, labels included; `None` if only the module's input_fn knows them.
        label_key: Name of the feature that is the label. If it is `None`, the labels are the features with the names of
            the model's outputs.
        config: Configuration of the training. Defaults to `None`: the model is never trained.
        warm_start_from: Source of the variables' initial values. Defaults to `None`, the model's own.
    """
    if module.build_model is None:
        return module
    where = f"build_model of module {module.name!r}"
    if config is not None and config.tf_random_seed is not None:
        # Seeds the model's initial values; the estimator seeds the training's ops.
        tf.keras.utils.set_random_seed(config.tf_random_seed)
    model = module.build_model(params=dict(params))
    if not is_keras_model(model):
        raise ValueError(f"{where} returned {model!r}; let it return a compiled Keras model")
    if not getattr(model, "optimizer", None):
        raise ValueError(
            f"{where} returned the model {model.name!r}, which is not compiled; call "
            "model.compile(optimizer=..., loss=..., metrics=[...]) before returning it"
        )
    weights = params.get(WEIGHT_COLUMN)
    if weights is not None and features is not None and weights not in features:
        raise ValueError(
            f"params[{WEIGHT_COLUMN!r}]={weights!r} is not among the features "
            f"{', '.join(sorted(features))}; name the one that holds the rows' weights"
        )
    labels: tuple[str, ...] = ()
    if label_key is None and features is not None:
        labels = _labels_among(where, model, features)
    model_fn, first_values = keras_model_fn(model, config, warm_start_from=warm_start_from)
    return dataclasses.replace(
        module,
        model_fn=_fed(model_fn, labels, weights),
        warm_start_from=first_values,
        not_served=(*labels, *([weights] if weights is not None else [])),
    )


def _labels_among(where: str, model: Any, features: Collection[str]) -> tuple[str, ...]:
    names = keras_output_names(model)
    if names and set(names) <= set(features):
        return tuple(names)
    called = f"the outputs {', '.join(map(repr, names))}" if names else "outputs without names"
    raise ValueError(
        f"label_key is not set, and {where} returned a model with {called}; set label_key to the transformed "
        "feature that is the label, or name each output as its label's feature (there are "
        f"{', '.join(sorted(features))}), or give an input_fn in the module"
    )


def _fed(
    model_fn: Callable[..., Any], label_names: tuple[str, ...], weight_column: str | None
) -> Callable[..., Any]:
    """Takes labels and weights out of a model_fn's features."""

    def fed(features: Any, labels: Any, mode: str, params: Mapping[str, Any]) -> Any:
        features = dict(features) if isinstance(features, Mapping) else features
        served = mode == ModeKeys.PREDICT
        if label_names and labels is None:
            taken = {name: features.pop(name, None) for name in label_names}
            labels = None if served else taken
        if weight_column is not None:
            weights = features.pop(weight_column, None) if isinstance(features, dict) else None
            if weights is None and not served:
                raise ValueError(
                    f"params[{WEIGHT_COLUMN!r}]={weight_column!r} is not among the features of the input_fn"
                )
            if not served:
                features = {"features": features, "sample_weights": weights}
        return model_fn(features=features, labels=labels, mode=mode, params=params)

    return fed
