"""Ready-made receiver functions: serialised Examples, or tensors fed as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.export._receivers import (
    SINGLE_LABEL_NAME,
    SINGLE_RECEIVER_NAME,
    ServingInputReceiver,
    SupervisedInputReceiver,
)

v1 = tf.compat.v1


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Makes a receiver function for serialised `tf.Example`s, fed under the name `examples`.

    Examples:
        >>> from tfx_tpu_trainer.estimator import export
        >>> import tensorflow as tf
        >>> receiver_fn = export.build_parsing_serving_input_receiver_fn(
        ...     {"fare": tf.io.FixedLenFeature([1], tf.float32)}
        ... )
        >>> with tf.Graph().as_default():
        ...     receiver = receiver_fn()
        >>> list(receiver.receiver_tensors), receiver.features["fare"].shape.as_list()
        (['examples'], [None, 1])

    Args:
        feature_spec: Feature name -> how `tf.io.parse_example` reads it.
        default_batch_size: Rows of a request. Defaults to `None`, any number.

    Returns:
        A function without arguments, for `export_saved_model`.
    """

    def serving_input_receiver_fn() -> ServingInputReceiver:
        examples = v1.placeholder(tf.string, [default_batch_size], name="input_example_tensor")
        features = tf.io.parse_example(examples, dict(feature_spec))
        return ServingInputReceiver(features, {"examples": examples})

    return serving_input_receiver_fn


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Makes a receiver function whose features are fed as they are.

    Examples:
        >>> from tfx_tpu_trainer.estimator import export
        >>> import tensorflow as tf
        >>> receiver_fn = export.build_raw_serving_input_receiver_fn({"fare": tf.TensorSpec([None, 1])})
        >>> with tf.Graph().as_default():
        ...     receiver = receiver_fn()
        >>> list(receiver.receiver_tensors), receiver.features["fare"].shape.as_list()
        (['fare'], [None, 1])

    Args:
        features: Feature name -> tensor whose name, type and shape (except for the batch) the placeholder takes.
        default_batch_size: Rows of a request. Defaults to `None`, any number.

    Returns:
        A function without arguments, for `export_saved_model`.

    Raises:
        ValueError: If a feature is not a tensor.
    """
    _check_tensors("features", features)

    def serving_input_receiver_fn() -> ServingInputReceiver:
        placeholders = _placeholders_like(features, default_batch_size)
        return ServingInputReceiver(placeholders, placeholders)

    return serving_input_receiver_fn


def build_raw_supervised_input_receiver_fn(
    features: Any, labels: Any, default_batch_size: int | None = None
) -> Callable[[], SupervisedInputReceiver]:
    """Makes a receiver function whose features and labels are fed as they are.

    Args:
        features: A tensor, fed under the name `input`, or a dict of str to tensor.
        labels: A tensor, fed under the name `label`, or a dict of str to tensor.
        default_batch_size: Rows of a request. Defaults to `None`, any number.

    Returns:
        A function without arguments, for an export of the train or eval graph.

    Raises:
        ValueError: If features and labels share a key, or one of them is not a tensor.
    """
    feature_keys = set(features if isinstance(features, Mapping) else [SINGLE_RECEIVER_NAME])
    label_keys = set(labels if isinstance(labels, Mapping) else [SINGLE_LABEL_NAME])
    shared = feature_keys & label_keys
    if shared:
        raise ValueError(
            "Features and labels must have distinct keys. Found overlapping keys: "
            f"{sorted(shared)}. Rename the label."
        )
    _check_tensors("features", features)
    _check_tensors("labels", labels)

    def supervised_input_receiver_fn() -> SupervisedInputReceiver:
        fed_features = _placeholders_like(features, default_batch_size)
        fed_labels = _placeholders_like(labels, default_batch_size)
        return SupervisedInputReceiver(
            fed_features,
            fed_labels,
            {
                **_as_dict(fed_features, SINGLE_RECEIVER_NAME),
                **_as_dict(fed_labels, SINGLE_LABEL_NAME),
            },
        )

    return supervised_input_receiver_fn


def build_supervised_input_receiver_fn_from_input_fn(
    input_fn: Callable[..., Any], **input_fn_args: Any
) -> Callable[[], SupervisedInputReceiver]:
    """Makes a receiver function that takes what an input_fn returns.

    input_fn is called once, in a separate graph, for its types and shapes only.

    Args:
        input_fn: Returns a `tf.data.Dataset` of (features, labels), or such a pair of tensors.
        **input_fn_args: Handed to `input_fn`.

    Returns:
        A function without arguments, for an export of the train or eval graph.

    Raises:
        ValueError: If input_fn returns no labels.
    """
    with tf.Graph().as_default():
        result = input_fn(**input_fn_args)
    elements = result.element_spec if isinstance(result, tf.data.Dataset) else result
    if not isinstance(elements, (tuple, list)) or len(elements) != 2:
        raise ValueError(
            "labels must be defined. input_fn must return (features, labels), or a Dataset of "
            f"such pairs, got: {elements!r}."
        )
    return build_raw_supervised_input_receiver_fn(*elements)


def _placeholders_like(tensors: Any, batch_size: int | None) -> Any:
    if isinstance(tensors, Mapping):
        return {name: _placeholder_like(tensor, batch_size) for name, tensor in tensors.items()}
    return _placeholder_like(tensors, batch_size)


def _placeholder_like(tensor: Any, batch_size: int | None) -> tf.Tensor:
    shape = tf.TensorShape([batch_size]).concatenate(tensor.shape[1:])
    return v1.placeholder(tensor.dtype, shape, name=_op_name(tensor))


def _op_name(tensor: Any) -> str | None:
    """The name of a graph tensor's op; eager tensors and specs have no op to be named after."""
    try:
        return tensor.op.name
    except AttributeError:
        return None


def _as_dict(tensors: Any, single_name: str) -> Mapping[str, tf.Tensor]:
    return tensors if isinstance(tensors, Mapping) else {single_name: tensors}


def _check_tensors(name: str, tensors: Any) -> None:
    given = (
        {f"{name}[{key!r}]": each for key, each in tensors.items()}
        if isinstance(tensors, Mapping)
        else {name: tensors}
    )
    for where, tensor in given.items():
        if not (hasattr(tensor, "shape") and hasattr(tensor, "dtype")):
            raise ValueError(
                f"{where} must be a tensor or a tf.TensorSpec, got: {tensor!r}. Its type and "
                "shape, except for the batch, are those of the fed tensor."
            )
