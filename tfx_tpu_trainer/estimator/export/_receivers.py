"""What a serving_input_receiver_fn returns: where a request comes in, and what model_fn gets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import tensorflow as tf

SINGLE_FEATURE_NAME = "feature"
SINGLE_LABEL_NAME = "label"
SINGLE_RECEIVER_NAME = "input"
"""The name of a receiver tensor that is given without one."""

_TENSORS = (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)


@dataclasses.dataclass(frozen=True)
class HostSignature:
    """An additional predict signature of the host's graph, independent of model_fn.

    It is written into the metagraph tagged `serve` only. `TpuTrainer` uses it for
    `transform_features`, through which the stock Evaluator gets at transformed labels.

    Attributes:
        inputs: Input name -> tensor to feed.
        outputs: Output name -> tensor to fetch.
    """

    inputs: Mapping[str, tf.Tensor]
    outputs: Mapping[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class HostPrediction:
    """A further way to the model's default predictions, in the metagraph tagged `serve` only.

    What the model computes is computed once more, from other tensors of the receiver: for
    `predict_raw`, from values that a request names one by one instead of packing them into a
    tf.Example. Variables and tables are those of the other signatures.

    Attributes:
        inputs: Input name -> tensor to feed.
        replaced: Name of a tensor that the features are computed from -> the tensor, made of the
            inputs, that takes its place.
    """

    inputs: Mapping[str, tf.Tensor]
    replaced: Mapping[str, tf.Tensor]


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
        receiver_tensors_alternatives: Alternative's name -> such a dict, or `None`.
        host_signatures: Signature name -> `HostSignature` or `HostPrediction`, or `None`. Ours:
            not one of the tuple's fields, so that unpacking gives the original's three.
    """

    host_signatures: Mapping[str, HostSignature | HostPrediction] | None = None

    def __new__(
        cls,
        features: Any,
        receiver_tensors: Any,
        receiver_tensors_alternatives: Mapping[str, Any] | None = None,
        *,
        host_signatures: Mapping[str, HostSignature | HostPrediction] | None = None,
    ) -> ServingInputReceiver:
        """Checks the tensors and names lone ones."""
        self = super().__new__(
            cls,
            features=name_tensors(features, "feature", SINGLE_FEATURE_NAME, allow_int_keys=True),
            receiver_tensors=_fed(receiver_tensors, "receiver_tensor"),
            receiver_tensors_alternatives=_check_alternatives(receiver_tensors_alternatives),
        )
        self.host_signatures = host_signatures
        return self


class TensorServingInputReceiver(_ServingFields):
    """One bare tensor for a model_fn that takes no dict, and the tensors that a request feeds.

    Attributes:
        features: The tensor, as it is handed to model_fn.
        receiver_tensors: Input name -> tensor to feed.
        receiver_tensors_alternatives: Alternative's name -> such a dict, or `None`.
    """

    __slots__ = ()

    def __new__(
        cls,
        features: Any,
        receiver_tensors: Any,
        receiver_tensors_alternatives: Mapping[str, Any] | None = None,
    ) -> TensorServingInputReceiver:
        """Checks the tensors and names lone receiver tensors."""
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
        """Checks the tensors and names lone ones, as `ServingInputReceiver` does."""
        return cast(UnsupervisedInputReceiver, super().__new__(cls, features, receiver_tensors))


class _SupervisedFields(NamedTuple):
    features: Any
    labels: Any
    receiver_tensors: Mapping[str, Any]


class SupervisedInputReceiver(_SupervisedFields):
    """Features and labels, for exports of the train or eval graph.

    Attributes:
        features: A dict of str or int to tensor, or a bare tensor, as given.
        labels: The same of labels.
        receiver_tensors: Input name -> tensor to feed.
    """

    __slots__ = ()

    def __new__(cls, features: Any, labels: Any, receiver_tensors: Any) -> SupervisedInputReceiver:
        """Checks the tensors; features and labels are handed to model_fn as they are given."""
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
    """Returns a tensor or a dict of tensors as a dict, checked."""
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
    """Returns the tensors that a request feeds, by name, checked: a signature needs the tensors themselves."""
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
    """Tells whether an object stands for a tensor, as TensorFlow 1's LabeledTensor does."""
    if not hasattr(value, "tensor"):
        return False
    try:
        tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        return False
    return True
