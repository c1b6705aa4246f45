"""Input functions for arrays and data frames; mirrors `tf.compat.v1.estimator.inputs`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._argument_checks import check_is_number

v1 = tf.compat.v1
_logger = tf.get_logger()

__all__ = ["numpy_input_fn", "pandas_input_fn"]


def numpy_input_fn(
    x: np.ndarray | Mapping[str, np.ndarray],
    y: np.ndarray | Mapping[str, np.ndarray] | None = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], Any]:
    """Returns an input_fn for arrays; mirrors `tf.compat.v1.estimator.inputs.numpy_input_fn`.

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
        x: An array, or a dict of feature name to array.
        y: The labels, an array or a dict of name to array. Defaults to `None`: features only.
        batch_size: Rows of a batch. Defaults to 128.
        num_epochs: How often each row is read. Defaults to 1; `None` reads without end.
        shuffle: Whether the order is random; must be given.
        queue_capacity: How many rows are mixed at a time. Defaults to 1000.
        num_threads: Number of readers. Defaults to 1.

    Returns:
        A function without arguments; it returns features, or features and labels.

    Raises:
        ValueError: If `shuffle` is not a bool. The returned function raises it for empty arrays, unequal lengths, or
            names that features and labels share.
        TypeError: The returned function raises it if `x` is neither an array nor a dict.
    """
    check_shuffle(shuffle)
    reading = reading_of(batch_size, num_epochs, shuffle, queue_capacity, num_threads)

    def input_fn() -> Any:
        features, labels = _arrays_of_features(x), _arrays_of_labels(y)
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


def _arrays_of_features(x: Any) -> dict[str, np.ndarray]:
    if isinstance(x, Mapping):
        if not x:
            raise ValueError(f"x cannot be an empty dict; got {x!r}.")
        return dict(sorted(x.items()))
    if isinstance(x, np.ndarray):
        if x.size == 0:
            raise ValueError(f"x cannot be an empty array; got one of shape {x.shape}.")
        return {"x": x}
    raise TypeError(f"x must be a dict or array; got {type(x).__name__}: {x!r}")


def _arrays_of_labels(y: Any) -> dict[str, np.ndarray]:
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
    """Returns an input_fn for a data frame; mirrors `tf.compat.v1.estimator.inputs.pandas_input_fn`.

    Like `numpy_input_fn`, it feeds only the host.

    Args:
        x: `pandas.DataFrame` of the features.
        y: `pandas.Series` or `DataFrame` of the labels, with the index of `x`. Defaults to
            `None`: features only.
        batch_size: Rows of a batch. Defaults to 128.
        num_epochs: How often each row is read. Defaults to 1; `None` reads without end.
        shuffle: Whether the order is random; must be given.
        queue_capacity: How many rows are mixed at a time. Defaults to 1000; `None` for about as
            many as `x` has.
        num_threads: Number of readers. Defaults to 1.
        target_column: Name of the labels of a `Series`, which no feature may have. Defaults to
            "target".

    Returns:
        A function without arguments; it returns a dict of features, or features and labels: a tensor for a `Series`, a
        dict for a `DataFrame`.

    Raises:
        ValueError: If `shuffle` is not a bool, a feature is called `target_column`, or the indexes
            differ.
        AttributeError: If `x` is not a DataFrame.
        TypeError: If `target_column` is not a string, or a numeric argument is not a number.
    """
    check_shuffle(shuffle)
    if not isinstance(target_column, str):
        raise TypeError(f"target_column must be a string type; got {target_column!r}.")
    try:
        names = x.columns
    except AttributeError as error:
        raise AttributeError(f"{error}: x must be a pandas.DataFrame; got {x!r}.") from None
    features = {name: x[name].to_numpy(copy=True) for name in names}
    labels = _columns_of_labels(x, y, target_column)
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


def _columns_of_labels(x: Any, y: Any, target_column: str) -> dict[str, np.ndarray]:
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


class Reading(NamedTuple):
    """The order in which rows are read, and how many at once."""

    batch_size: int
    # How often a reader reads each row; `None` repeats without end.
    num_epochs: int | None
    shuffle: bool
    # How many rows are mixed at a time.
    queue_capacity: int
    # Number of readers. One thread reads for all; rows repeat and mix as if there were several.
    num_threads: int


def reading_of(
    batch_size: Any, num_epochs: Any, shuffle: Any, queue_capacity: Any, num_threads: Any
) -> Reading:
    """Checks the numbers and returns a `Reading`."""
    for name, number in (
        ("batch_size", batch_size),
        ("num_epochs", num_epochs),
        ("queue_capacity", queue_capacity),
        ("num_threads", num_threads),
    ):
        check_is_number(name, number)
    return Reading(batch_size, num_epochs, bool(shuffle), queue_capacity, num_threads)


def check_shuffle(shuffle: Any) -> None:
    """Checks that `shuffle` is a bool."""
    if not isinstance(shuffle, bool):
        raise ValueError(
            "shuffle must be provided and explicitly set as boolean (it is recommended to set it "
            f"as True for training); got {shuffle!r}"
        )


def batches(columns: Sequence[np.ndarray], reading: Reading) -> list[tf.Tensor]:
    """Returns the tensors of the next batch.

    The rows stay outside the graph, which is written to the model's folder. With a number of epochs, the last batch may
    be short; without one, all are full and continue past the end of the data.
    """
    rows = len(columns[0])
    _warn_of_threads(reading)
    indices = _indices(rows, reading).batch(
        reading.batch_size, drop_remainder=reading.num_epochs is None
    )
    dtypes = [tf.as_dtype(column.dtype) for column in columns]
    dataset = indices.map(lambda index: _rows(columns, dtypes, index)).prefetch(1)
    tensors = v1.data.make_one_shot_iterator(dataset).get_next()
    return list(tensors)


def _indices(rows: int, reading: Reading) -> tf.data.Dataset:
    epochs = reading.num_epochs
    if epochs is not None:
        epochs *= reading.num_threads
    if not reading.shuffle:
        return tf.data.Dataset.range(rows).repeat(epochs)

    # A shuffle buffer of 1,000 rows mixes neighbours: the first batches of a million rows sorted by
    # label would have one label. So a reader begins at a random row and wraps around.
    def from_anywhere(start: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.range(rows).repeat(epochs).map(lambda row: (row + start) % rows)

    starts = tf.data.Dataset.from_tensors(0).map(
        lambda _: tf.random.uniform([], maxval=rows, dtype=tf.int64)
    )
    return starts.flat_map(from_anywhere).shuffle(reading.queue_capacity)


def _rows(
    columns: Sequence[np.ndarray], dtypes: Sequence[tf.DType], index: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    # A numpy_function holds the arrays by reference. Constants would be part of the graph, which is
    # saved with each checkpoint and can't exceed 2 GiB.
    def pick(rows: np.ndarray) -> list[np.ndarray]:
        return [column[rows] for column in columns]

    picked = tf.numpy_function(pick, [index], dtypes)
    for tensor, column in zip(picked, columns):
        tensor.set_shape([index.shape[0], *column.shape[1:]])
    return tuple(picked)


def _warn_of_threads(reading: Reading) -> None:
    if reading.num_threads <= 1:
        return
    if reading.num_epochs is not None:
        _logger.warning(
            "enqueue_data was called with num_epochs and num_threads > 1. num_epochs is applied per "
            "thread, so this will produce more epochs than you probably intend. If you want to "
            "limit epochs, use one thread. num_threads=%d reads each row num_epochs * num_threads "
            "= %d times.",
            reading.num_threads,
            reading.num_epochs * reading.num_threads,
        )
    if reading.num_epochs is not None and reading.shuffle:
        _logger.warning(
            "enqueue_data was called with shuffle=True, num_threads > 1, and num_epochs. This will "
            "create multiple threads, all reading the array/dataframe in order adding to the same "
            "shuffling queue; the results will likely not be sufficiently shuffled: the rows of "
            "all epochs are shuffled together."
        )
    if not reading.shuffle:
        _logger.warning(
            "enqueue_data was called with shuffle=False and num_threads > 1. This will create "
            "multiple threads, all reading the array/dataframe in order. If you want examples read "
            "in order, use one thread; if you want multiple threads, enable shuffling."
        )
