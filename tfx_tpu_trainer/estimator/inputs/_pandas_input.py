"""An input function of a pandas data frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tfx_tpu_trainer.estimator.inputs._row_batches import batches, check_shuffle, reading_of


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int | None = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> Callable[[], Any]:
    """Returns an input_fn of a data frame; mirrors `tf.compat.v1.estimator.inputs.pandas_input_fn`.

    As `numpy_input_fn`, it feeds the host only.

    Args:
        x: `pandas.DataFrame` of the features.
        y: `pandas.Series` or `DataFrame` of the labels, with the index of `x`. Defaults to
            `None`: features only.
        batch_size: Rows of a batch. Defaults to 128.
        num_epochs: How often each row is read. Defaults to 1; `None` for without end.
        shuffle: Whether the order is random; must be given.
        queue_capacity: How many rows are mixed at a time. Defaults to 1000; `None` for about as
            many as `x` has.
        num_threads: Number of readers. Defaults to 1.
        target_column: What a `Series` is called; no feature may have this name. Defaults to
            "target".

    Returns:
        A function without arguments; it returns a dict of features, or features and labels: a tensor for a `Series`, a
        dict for a `DataFrame`.

    Raises:
        ValueError: If `shuffle` is not a bool, a feature is called `target_column`, or the indexes
            differ.
        AttributeError: If `x` is not a DataFrame.
        TypeError: If `target_column` is not a string, or a number is none.
    """
    check_shuffle(shuffle)
    if not isinstance(target_column, str):
        raise TypeError(f"target_column must be a string type; got {target_column!r}.")
    try:
        names = x.columns
    except AttributeError as error:
        raise AttributeError(f"{error}: x must be a pandas.DataFrame; got {x!r}.") from None
    features = {name: x[name].to_numpy(copy=True) for name in names}
    labels = _labels(x, y, target_column)
    if queue_capacity is None:
        queue_capacity = (4 if shuffle else 1) * len(x)
    reading = reading_of(batch_size, num_epochs, shuffle, queue_capacity, num_threads)

    def input_fn() -> Any:
        tensors = batches([*features.values(), *labels.values()], reading)
        of_features = dict(zip(features, tensors))
        if y is None:
            return of_features
        of_labels = dict(zip(labels, tensors[len(features) :]))
        return of_features, (of_labels if hasattr(y, "columns") else tensors[-1])

    return input_fn


def _labels(x: Any, y: Any, target_column: str) -> dict[str, np.ndarray]:
    if y is None:
        return {}
    if target_column in x:
        raise ValueError(
            f"Cannot use name {target_column!r} for target column: DataFrame already has a column "
            f"with that name: {list(x.columns)}"
        )
    if not np.array_equal(x.index, y.index):
        raise ValueError(
            f"Index for x and y are mismatched.\nIndex for x: {x.index}\nIndex for y: {y.index}\n"
        )
    if hasattr(y, "columns"):
        return {name: y[name].to_numpy(copy=True) for name in y.columns}
    return {target_column: y.to_numpy(copy=True)}
