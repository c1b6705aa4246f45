"""An input function of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfx_tpu_trainer.estimator.inputs._row_batches import batches, check_shuffle, reading_of


def numpy_input_fn(
    x: np.ndarray | Mapping[str, np.ndarray],
    y: np.ndarray | Mapping[str, np.ndarray] | None = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], Any]:
    """Returns an input_fn of arrays; mirrors `tf.compat.v1.estimator.inputs.numpy_input_fn`.

    It returns tensors instead of a Dataset, and so feeds only the host; on cores, use
    `tf.data.Dataset.from_tensor_slices`.

    Examples:
        >>> from tfx_tpu_trainer.estimator import inputs
        >>> import numpy as np
        >>> import tensorflow as tf
        >>> ages, labels = np.array([5, 15, 70, 80]), np.array([0, 0, 1, 1])
        >>> input_fn = inputs.numpy_input_fn({"age": ages}, labels, batch_size=2, shuffle=False)
        >>> with tf.Graph().as_default():
        ...     features, classes = input_fn()
        ...     with tf.compat.v1.train.MonitoredSession() as session:
        ...         print(*session.run([features["age"], classes]))
        [ 5 15] [0 0]

    Args:
        x: An array, or feature name -> array.
        y: The label, an array or name -> array. Defaults to `None`: features only.
        batch_size: Rows of a batch. Defaults to 128.
        num_epochs: How often each row is read. Defaults to 1; `None` for without end.
        shuffle: Whether the order is random; must be given.
        queue_capacity: How many rows are mixed at a time. Defaults to 1000.
        num_threads: Number of readers. Defaults to 1.

    Returns:
        A function without arguments; it returns features, or features and labels.

    Raises:
        ValueError: If `shuffle` is not a bool. The function raises it for arrays that are empty or
            differ in length, or names that features and labels share.
        TypeError: The function raises it if `x` is neither an array nor a dict.
    """
    check_shuffle(shuffle)
    reading = reading_of(batch_size, num_epochs, shuffle, queue_capacity, num_threads)

    def input_fn() -> Any:
        features, labels = _features(x), _labels(y)
        shared = sorted(set(features) & set(labels)) if isinstance(y, Mapping) else []
        if shared:
            raise ValueError(f"{len(shared)} duplicate keys are found in both x and y: {shared}")
        _check_lengths(features, labels)
        tensors = batches([*features.values(), *labels.values()], reading)
        of_features = dict(zip(features, tensors))
        of_labels = dict(zip(labels, tensors[len(features) :]))
        given = of_features if isinstance(x, Mapping) else tensors[0]
        if y is None:
            return given
        return given, (of_labels if isinstance(y, Mapping) else tensors[-1])

    return input_fn


def _features(x: Any) -> dict[str, np.ndarray]:
    if isinstance(x, Mapping):
        if not x:
            raise ValueError(f"x cannot be an empty dict; got {x!r}.")
        return dict(sorted(x.items()))
    if isinstance(x, np.ndarray):
        if x.size == 0:
            raise ValueError(f"x cannot be an empty array; got one of shape {x.shape}.")
        return {"x": x}
    raise TypeError(f"x must be a dict or array; got {type(x).__name__}: {x!r}")


def _labels(y: Any) -> dict[str, np.ndarray]:
    if y is None:
        return {}
    if isinstance(y, Mapping):
        if not y:
            raise ValueError(f"y cannot be empty dict, use None instead; got {y!r}.")
        return dict(sorted(y.items()))
    return {"y": y}


def _check_lengths(features: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]) -> None:
    lengths = {len(array) for array in (*features.values(), *labels.values())}
    if len(lengths) != 1:
        shapes = [{name: each.shape for name, each in part.items()} for part in (features, labels)]
        raise ValueError(
            "Length of tensors in x and y is mismatched. All elements in x and y must have the "
            f"same length.\nShapes in x: {shapes[0]}\nShapes in y: {shapes[1] or None}\n"
        )
