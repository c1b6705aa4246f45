"""Defines the results of a serving_input_receiver_fn, and makes such functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import tensorflow as tf

v1 = tf.compat.v1

SINGLE_FEATURE_NAME = "feature"
SINGLE_LABEL_NAME = "label"
SINGLE_RECEIVER_NAME = "input"
"""The name of a receiver tensor without one."""

_TENSORS = (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)


@dataclasses.dataclass(frozen=True)
class HostSignature:
    """An additional predict signature of the host's graph, independent of model_fn.

    It is written only into the metagraph tagged `serve`. `TpuTrainer` uses it for `transform_features`, from which the
    stock Evaluator gets transformed labels.

    Attributes:
        inputs: Input name -> tensor to feed.
        outputs: Output name -> tensor to fetch.
    """

    inputs: Mapping[str, tf.Tensor]
    outputs: Mapping[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class HostPrediction:
    """Another way to the model's default predictions, only in the metagraph tagged `serve`.

    The model's computation is repeated on other tensors of the receiver: for `predict_raw`, on values that a request
    names one by one instead of packing them into a tf.Example. Variables and tables are those of the other signatures.

    Attributes:
        inputs: Input name -> tensor to feed.
        replaced: Name of a tensor from which the features are computed -> the tensor, made from the inputs, that
            replaces it.
    """

    inputs: Mapping[str, tf.Tensor]
    replaced: Mapping[str, tf.Tensor]


HostSignatures = Mapping[str, HostSignature | HostPrediction]


def host_signatures_of(receiver: Any) -> HostSignatures:
    """Returns a receiver's host signatures; calls the function that makes them in the default graph."""
    found = getattr(receiver, "host_signatures", None)
    return (found() if callable(found) else found) or {}


class _ServingFields(NamedTuple):
    features: Any
    receiver_tensors: Mapping[str, Any]
    receiver_tensors_alternatives: Mapping[str, Mapping[str, Any]] | None


class ServingInputReceiver(_ServingFields):
    """Features as a dict, and the tensors that a request feeds.

    Example:

    ```python
    def serving_input_receiver_fn():
        examples = tf.compat.v1.placeholder(tf.string, [None], name="examples")
        features = tf.io.parse_example(examples, feature_spec)
        return ServingInputReceiver(features, {"examples": examples})
    ```

    Attributes:
        features: Feature name (str or int) -> tensor.
        receiver_tensors: Input name -> tensor to feed.
        receiver_tensors_alternatives: Alternative's name -> a dict like `receiver_tensors`, or `None`.
        host_signatures: Signature name -> `HostSignature` or `HostPrediction`, or `None`. A function that returns them
            keeps their ops out of the metagraph for TPU hosts: it is called in the receiver's graph, only for the
            host's. Ours: not one of the tuple's fields, so unpacking gives the original's three.
    """

    host_signatures: HostSignatures | Callable[[], HostSignatures] | None = None

    def __new__(
        cls,
        features: Any,
        receiver_tensors: Any,
        receiver_tensors_alternatives: Mapping[str, Any] | None = None,
        *,
        host_signatures: HostSignatures | Callable[[], HostSignatures] | None = None,
    ) -> ServingInputReceiver:
        """Checks the tensors and names single ones."""
        self = super().__new__(
            cls,
            features=name_tensors(features, "feature", SINGLE_FEATURE_NAME, allow_int_keys=True),
            receiver_tensors=_fed(receiver_tensors, "receiver_tensor"),
            receiver_tensors_alternatives=_check_alternatives(receiver_tensors_alternatives),
        )
        self.host_signatures = host_signatures
        return self


class TensorServingInputReceiver(_ServingFields):
    """A single tensor for a model_fn that takes no dict, and the tensors that a request feeds.

    Attributes:
        features: The tensor that model_fn gets.
        receiver_tensors: Input name -> tensor to feed.
        receiver_tensors_alternatives: Alternative's name -> a dict like `receiver_tensors`, or `None`.
    """

    __slots__ = ()

    def __new__(
        cls,
        features: Any,
        receiver_tensors: Any,
        receiver_tensors_alternatives: Mapping[str, Any] | None = None,
    ) -> TensorServingInputReceiver:
        """Checks the tensors and names single receiver tensors."""
        if features is None:
            raise ValueError("features must be defined. Give the tensor that model_fn takes.")
        _check_tensor(features, "feature")
        return super().__new__(
            cls,
            features=features,
            receiver_tensors=_fed(receiver_tensors, "receiver_tensor"),
            receiver_tensors_alternatives=_check_alternatives(receiver_tensors_alternatives),
        )


class UnsupervisedInputReceiver(ServingInputReceiver):
    """Features without labels, for exports of the train or eval graph."""

    def __new__(cls, features: Any, receiver_tensors: Any) -> UnsupervisedInputReceiver:
        """Checks the tensors and names single ones, like `ServingInputReceiver`."""
        return cast(UnsupervisedInputReceiver, super().__new__(cls, features, receiver_tensors))


class _SupervisedFields(NamedTuple):
    features: Any
    labels: Any
    receiver_tensors: Mapping[str, Any]


class SupervisedInputReceiver(_SupervisedFields):
    """Features and labels, for exports of the train or eval graph.

    Attributes:
        features: A dict of str or int to tensor, or a single tensor, as given.
        labels: The labels, in the same form.
        receiver_tensors: Input name -> tensor to feed.
    """

    __slots__ = ()

    def __new__(cls, features: Any, labels: Any, receiver_tensors: Any) -> SupervisedInputReceiver:
        """Checks the tensors; model_fn gets features and labels unchanged."""
        name_tensors(features, "feature", SINGLE_FEATURE_NAME, allow_int_keys=True)
        name_tensors(labels, "label", SINGLE_LABEL_NAME, allow_int_keys=True)
        return super().__new__(
            cls,
            features=features,
            labels=labels,
            receiver_tensors=_fed(receiver_tensors, "receiver_tensor"),
        )


def name_tensors(
    tensors: Any, what: str, single_name: str, *, allow_int_keys: bool = False
) -> Mapping[Any, Any]:
    """Returns a tensor or a dict of tensors as a checked dict."""
    if tensors is None:
        raise ValueError(f"{what}s must be defined. Give a tensor or a dict of name to tensor.")
    if not isinstance(tensors, Mapping):
        tensors = {single_name: tensors}
    key_types = (str, int) if allow_int_keys else (str,)
    for key, tensor in tensors.items():
        if not isinstance(key, key_types):
            kinds = "strings or ints" if allow_int_keys else "strings"
            raise ValueError(f"{what} keys must be {kinds}: {key!r}.")
        _check_tensor(tensor, f"{what} {key}")
    return tensors


def _fed(tensors: Any, what: str) -> Mapping[str, Any]:
    """Returns a request's tensors by name, checked: a signature needs the tensors themselves."""
    named = name_tensors(tensors, what, SINGLE_RECEIVER_NAME)
    if all(isinstance(tensor, _TENSORS) for tensor in named.values()):
        return named
    return {
        name: tensor if isinstance(tensor, _TENSORS) else tf.convert_to_tensor(tensor)
        for name, tensor in named.items()
    }


def _check_alternatives(
    alternatives: Mapping[str, Any] | None,
) -> dict[str, Mapping[str, Any]] | None:
    if alternatives is None:
        return None
    if not isinstance(alternatives, Mapping):
        raise ValueError(
            f"receiver_tensors_alternatives must be a dict: {alternatives!r}. Write "
            "{'name': tensors}."
        )
    return {
        name: _fed(tensors, "receiver_tensors_alternative")
        for name, tensors in alternatives.items()
    }


def _check_tensor(tensor: Any, what: str) -> None:
    if not isinstance(tensor, _TENSORS) and not _wraps_a_tensor(tensor):
        raise ValueError(
            f"{what} must be a Tensor, SparseTensor, or RaggedTensor, got {tensor!r}. "
            "Convert it with tf.convert_to_tensor."
        )


def _wraps_a_tensor(value: Any) -> bool:
    """Returns whether an object wraps a tensor, as TensorFlow 1's LabeledTensor does."""
    if not hasattr(value, "tensor"):
        return False
    try:
        tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        return False
    return True


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Makes a receiver function for serialized `tf.Example`s, fed under the name `examples`.

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
        feature_spec: Feature name -> its type for `tf.io.parse_example`.
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
    """Makes a receiver function whose features are fed without parsing.

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
    """Makes a receiver function whose features and labels are fed without parsing.

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
            {**by_name(fed_features), **by_name(fed_labels, SINGLE_LABEL_NAME)},
        )

    return supervised_input_receiver_fn


def build_supervised_input_receiver_fn_from_input_fn(
    input_fn: Callable[..., Any], **input_fn_args: Any
) -> Callable[[], SupervisedInputReceiver]:
    """Makes a receiver function from an input_fn's result.

    input_fn is called once, in a separate graph, only for its types and shapes.

    Args:
        input_fn: Returns a `tf.data.Dataset` of (features, labels), or a pair of tensors.
        **input_fn_args: Passed to `input_fn`.

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
    """Returns the name of a graph tensor's op; eager tensors and specs have none."""
    try:
        return tensor.op.name
    except AttributeError:
        return None


def by_name(tensors: Any, single_name: str = SINGLE_RECEIVER_NAME) -> Mapping[str, tf.Tensor]:
    """Returns tensors as a mapping, with a name for a single one."""
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
