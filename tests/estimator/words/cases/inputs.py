"""numpy_input_fn, pandas_input_fn, receivers and parsing specs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf

from tests.estimator.words.stacks import Stack

_X = np.float32([1, 2])
_FRAME = pd.DataFrame({"a": [1.0, 2.0]})


def _numpy(x: Any, y: Any = None, shuffle: Any = False, **options: Any) -> Callable[[Stack], Any]:
    def case(t: Stack) -> Any:
        t.graph()
        return t.v1.inputs.numpy_input_fn(x, y, shuffle=shuffle, **options)()

    return case


def _pandas(x: Any, y: Any = None, shuffle: Any = False, **options: Any) -> Callable[[Stack], Any]:
    def case(t: Stack) -> Any:
        t.graph()
        return t.v1.inputs.pandas_input_fn(x, y, shuffle=shuffle, **options)()

    return case


def _receiver(*arguments: Any, **named: Any) -> Callable[[Stack], Any]:
    return lambda t: (
        t.graph(),
        t.est.export.ServingInputReceiver(*(a() if callable(a) else a for a in arguments), **named),
    )


def _tensor_receiver(*arguments: Any) -> Callable[[Stack], Any]:
    return lambda t: (
        t.graph(),
        t.est.export.TensorServingInputReceiver(*(a() if callable(a) else a for a in arguments)),
    )


def _tensor() -> Any:
    return tf.compat.v1.placeholder(tf.float32, [None], "x")


class _Labeled:
    """Stands for a tensor, as TensorFlow 1's LabeledTensor did."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


tf.register_tensor_conversion_function(_Labeled, lambda value, *_, **__: value.tensor)


def _supervised(t: Stack, features: Any, labels: Any) -> Any:
    t.graph()
    return t.est.experimental.build_raw_supervised_input_receiver_fn(features(), labels())()


def _parsing(make: str, key: str, weight: Any = None) -> Callable[[Stack], Any]:
    columns = [tf.feature_column.numeric_column("a")]
    return lambda t: getattr(t.est, make)(columns, label_key=key, weight_column=weight)


CASES: dict[str, Callable[[Stack], Any]] = {
    "numpy_of_an_empty_dict": _numpy({}),
    "numpy_of_an_empty_array": _numpy(np.zeros([0])),
    "numpy_of_a_list": _numpy([1, 2]),
    "numpy_without_shuffle": _numpy(_X, shuffle=None),
    "numpy_with_empty_labels": _numpy({"a": _X}, {}),
    "numpy_with_keys_twice": _numpy({"a": _X}, {"a": _X}),
    "numpy_of_other_lengths": _numpy({"a": _X}, _X[:1]),
    "numpy_of_features_of_other_lengths": _numpy({"a": _X, "b": _X[:1]}),
    "numpy": _numpy({"a": _X}, _X),
    "numpy_of_epochs_and_threads": _numpy({"a": _X}, num_epochs=2, num_threads=2),
    "numpy_shuffled_epochs_and_threads": _numpy(
        {"a": _X}, shuffle=True, num_epochs=2, num_threads=2
    ),
    "numpy_in_order_by_threads": _numpy({"a": _X}, num_epochs=None, num_threads=2),
    "pandas_of_an_array": _pandas(_X),
    "pandas_without_shuffle": _pandas(_FRAME, shuffle=None),
    "pandas_with_a_target_of_a_number": _pandas(_FRAME, target_column=3),
    "pandas_with_a_target_twice": _pandas(_FRAME, _FRAME["a"], target_column="a"),
    "pandas_of_another_index": _pandas(_FRAME, pd.Series([1.0, 2.0], index=[3, 4])),
    "pandas": _pandas(_FRAME, _FRAME["a"]),
    "receiver_without_features": _receiver(None, _tensor),
    "receiver_without_tensors": _receiver(_tensor, None),
    "receiver_of_a_number": _receiver(3, _tensor),
    "receiver_tensors_of_a_number": _receiver(_tensor, 3),
    "receiver_with_a_number": _receiver(lambda: {"a": 3}, _tensor),
    "receiver_with_a_key_of_bytes": _receiver(lambda: {(1,): _tensor()}, _tensor),
    "receiver_of_a_labeled_tensor": _receiver(lambda: {"a": _Labeled(_tensor())}, _tensor),
    "tensor_receiver_of_a_labeled_tensor": _tensor_receiver(lambda: _Labeled(_tensor()), _tensor),
    "receiver_tensors_with_a_key_of_a_number": _receiver(_tensor, lambda: {1: _tensor()}),
    "receiver_with_alternatives_of_a_list": _receiver(
        _tensor, _tensor, receiver_tensors_alternatives=["a"]
    ),
    "receiver_with_alternative_of_a_number": _receiver(
        _tensor, _tensor, receiver_tensors_alternatives={"a": 3}
    ),
    "tensor_receiver_without_features": _tensor_receiver(None, _tensor),
    "tensor_receiver_of_a_dict": _tensor_receiver(lambda: {"a": _tensor()}, _tensor),
    "tensor_receiver_of_a_number": _tensor_receiver(3, _tensor),
    "tensor_receiver_without_tensors": _tensor_receiver(_tensor, None),
    "supervised_with_keys_twice": lambda t: _supervised(
        t, lambda: {"a": _tensor()}, lambda: {"a": _tensor()}
    ),
    "classifier_label_among_features": _parsing("classifier_parse_example_spec", "a"),
    "regressor_label_among_features": _parsing("regressor_parse_example_spec", "a"),
    "classifier_weight_of_a_number": _parsing("classifier_parse_example_spec", "b", 3),
    "classifier_weight_among_features": _parsing("classifier_parse_example_spec", "b", "a"),
    "regressor_weight_among_features": _parsing("regressor_parse_example_spec", "b", "a"),
    "regressor_weight_is_the_label": _parsing("regressor_parse_example_spec", "b", "b"),
}
