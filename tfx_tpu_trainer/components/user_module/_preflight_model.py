"""Prepares a user's module for the preflight: its input, without data, and its params."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from google.protobuf import text_format

from tfx_tpu_trainer._support.imports import of_extra
from tfx_tpu_trainer.components.user_module._module import UserModule, with_keras_model
from tfx_tpu_trainer.preflight import InputFn, PreflightModel, input_fn_of_specs

_EXAMPLE = '{"features": {"fare": {"dtype": "float32", "shape": []}}, "label_key": "tips"}'
_MOST_VALUES = 2**31 - 1
_KEYS = ("features", "label_key", "vocabulary_sizes")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """The features of a row, and the sizes of vocabularies.

    As JSON it is an object with `features` (name -> `{"dtype": "float32", "shape": []}`, shapes
    without the batch axis), and optionally `label_key` and `vocabulary_sizes` (name -> number of
    entries, for `params["vocabulary_sizes"]`).

    Attributes:
        features: Name -> dtype and shape of a row's value, label included.
        label_key: Name of the feature that is the label; `None` if the model takes none.
        vocabulary_sizes: Name of each of Transform's vocabularies -> its number of entries.
    """

    features: Mapping[str, tf.TensorSpec]
    label_key: str | None = None
    vocabulary_sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.features:
            raise ValueError("features={} is empty: a model needs at least one feature.")
        if self.label_key is not None and self.label_key not in self.features:
            raise ValueError(
                f"label_key={self.label_key!r} is not among the features: give one of "
                f"{', '.join(sorted(self.features))}."
            )

    @classmethod
    def of_transform(cls, path: str, *, label_key: str | None = None) -> FeatureSpec:
        """Reads Transform's output.

        Args:
            path: Folder of a TransformGraph artifact.
            label_key: Name of the feature that is the label. Defaults to `None`: no labels.

        Returns:
            The spec.

        Raises:
            ValueError: If the folder is not a TransformGraph artifact, the label is missing, or a feature is sparse.
            MissingExtraError: If TFX is not installed.
        """
        # A program without TFX can be preflighted without installing it.
        with of_extra("tfx", for_what="A TransformGraph"):
            import tensorflow_transform as tft

            from tfx_tpu_trainer.components.inputs import vocabulary_sizes
        try:
            columns = tft.TFTransformOutput(path).transformed_feature_spec()
        except (OSError, ValueError, text_format.ParseError, tf.errors.OpError) as error:
            raise ValueError(
                f"{path!r} is not an output of Transform: give the folder of its transform_graph "
                f"artifact ({str(error).splitlines()[0]})."
            ) from None
        features = {}
        for name, column in columns.items():
            if not isinstance(column, tf.io.FixedLenFeature):
                raise ValueError(
                    f"Transform returns the feature {name!r} as a {type(column).__name__}, but a "
                    "TPU takes only tensors of a fixed shape: make it dense in the "
                    "preprocessing_fn."
                )
            features[name] = tf.TensorSpec(column.shape, column.dtype)
        return cls(features=features, label_key=label_key, vocabulary_sizes=vocabulary_sizes(path))

    @classmethod
    def read(cls, path: str, *, label_key: str | None = None) -> FeatureSpec:
        """Reads a JSON file like `{"features": {"x": {"dtype": "float32", "shape": [8]}}, "label_key": "x"}`.

        Args:
            path: Path of the file; any that `tf.io.gfile` supports.
            label_key: The label instead of the file's `label_key`. Defaults to `None`: the file's.

        Raises:
            ValueError: If the file cannot be read or has other content.
        """
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                values = json.loads(file.read())
        except (tf.errors.OpError, ValueError, RecursionError) as error:
            reason = error.message if isinstance(error, tf.errors.OpError) else error
            raise ValueError(
                f"The feature spec {path} can't be read ({reason}): give a file with JSON such as "
                f"{_EXAMPLE}."
            ) from None
        if label_key is not None and isinstance(values, Mapping):
            values = {**values, "label_key": label_key}
        try:
            return cls.from_json(values)
        except ValueError as error:
            raise ValueError(f"The feature spec {path}: {error}") from None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> FeatureSpec:
        """Restores the spec that `to_json` wrote.

        Args:
            values: The JSON object.

        Returns:
            The spec.

        Raises:
            ValueError: If it is anything else; names the value and the expected content.
        """
        if not isinstance(values, Mapping) or not isinstance(values.get("features"), Mapping):
            raise ValueError(f"give an object such as {_EXAMPLE}.")
        if unknown := sorted(set(values) - set(_KEYS)):
            raise ValueError(f"unknown key {unknown[0]!r}: use any of {', '.join(_KEYS)}.")
        label_key = values.get("label_key")
        if not isinstance(label_key, str | None):
            raise ValueError(
                f"label_key={label_key!r}: give the name of a feature, or leave it out."
            )
        sizes = values.get("vocabulary_sizes", {})
        if not isinstance(sizes, Mapping) or not all(_is_size(size) for size in sizes.values()):
            raise ValueError(
                f"vocabulary_sizes={sizes!r}: give the number of entries by name, such as "
                '{"company": 37}.'
            )
        return cls(
            features={name: _tensor_spec(name, each) for name, each in values["features"].items()},
            label_key=label_key,
            vocabulary_sizes=dict(sizes),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the spec as JSON values."""
        return {
            "features": {
                name: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()}
                for name, spec in self.features.items()
            },
            "label_key": self.label_key,
            "vocabulary_sizes": dict(self.vocabulary_sizes),
        }

    def input_fn(self) -> InputFn:
        """Returns an input function of full batches of zeros, to trace a model with."""
        features = dict(self.features)
        labels = None if self.label_key is None else features.pop(self.label_key)
        return input_fn_of_specs(features, labels)


def _tensor_spec(name: str, values: Any) -> tf.TensorSpec:
    if not isinstance(values, Mapping) or set(values) != {"dtype", "shape"}:
        raise ValueError(
            f"feature {name!r} is {values!r}: give its dtype and its shape without the batch axis, "
            'such as {"dtype": "float32", "shape": [28, 28]}.'
        )
    shape = values["shape"]
    if not isinstance(shape, list) or not all(_is_size(size) for size in shape):
        raise ValueError(
            f"feature {name!r} has the shape {shape!r}: give a list of positive integers, [] for a "
            "single value; a TPU needs fixed lengths."
        )
    if math.prod(shape) > _MOST_VALUES:
        raise ValueError(
            f"feature {name!r} has the shape {shape!r}: a row can't have more than {_MOST_VALUES:,} values; give "
            "the shape without the batch axis."
        )
    try:
        dtype = tf.as_dtype(values["dtype"]) if isinstance(values["dtype"], str) else None
    except TypeError:
        dtype = None
    if dtype in (None, tf.resource, tf.variant):
        raise ValueError(
            f"feature {name!r} has the dtype {values['dtype']!r}: give one of TensorFlow's, such as "
            "float32, int64 or bfloat16."
        )
    return tf.TensorSpec(shape, dtype)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def model_of_module(
    module: UserModule,
    *,
    spec: FeatureSpec | None = None,
    params: Mapping[str, Any] | None = None,
) -> PreflightModel:
    """Adds the params and the input that `TpuTrainer` would give a module, as far as they are known.

    Args:
        module: The module.
        spec: The features to feed, instead of the module's own input_fn. Defaults to `None`: the module's input_fn is
            called.
        params: Values for the functions' `params`; they win over the module's. Defaults to none.

    Returns:
        The model.

    Raises:
        ValueError: If the input is not known, or the module's functions need arguments that only a pipeline has.
    """
    sizes = {"vocabulary_sizes": dict(spec.vocabulary_sizes)} if spec is not None else {}
    if spec is not None and spec.label_key is None and module.takes_labels:
        raise ValueError(
            f"model_fn of module {module.name!r} takes labels: name the feature that is the label "
            f"(label_key), one of {', '.join(sorted(spec.features))}."
        )
    known = {**sizes, **_params(module, given=params), **(params or {})}
    module = with_keras_model(
        module,
        known,
        features=None if spec is None else spec.features,
        label_key=None if spec is None else spec.label_key,
    )
    return PreflightModel(
        model_fn=module.model_fn,
        input_fns=_input_fns(module, spec),
        params=known,
        name=module.name,
    )


def _input_fns(module: UserModule, spec: FeatureSpec | None) -> dict[str, InputFn]:
    if spec is not None:
        return dict.fromkeys(("train", "eval", "predict"), spec.input_fn())
    if module.input_fn is None:
        raise ValueError(
            f"module {module.name!r} has no input_fn, so the input of model_fn is unknown: give a "
            "Transform output or a feature spec."
        )
    if module.input_fn_wants_fn_args:
        raise ValueError(
            f"input_fn of module {module.name!r} takes fn_args, which only a pipeline has: give a "
            "Transform output or a feature spec instead."
        )
    evaluation = module.input_fn_for("eval", None)
    train = module.input_fn_for("train", None)
    assert train is not None and evaluation is not None  # since there is an input_fn
    return {"train": train, "eval": evaluation, "predict": evaluation}


def _params(module: UserModule, *, given: Mapping[str, Any] | None) -> dict[str, Any]:
    if not callable(module.params):
        return module.params_for(None)
    if given is None:
        raise ValueError(
            f"params of module {module.name!r} is a function of fn_args, which only a pipeline has: "
            "give the values of the params."
        )
    return {}
