"""The ids that features look up, of a dataset or an input_fn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfx_tpu_trainer._support.failures import first_reason
from tfx_tpu_trainer.estimator import ModeKeys
from tfx_tpu_trainer.estimator.extending import as_input_tensors, call_graph, call_input_fn
from tfx_tpu_trainer.estimator.tpu import RunConfig
from tfx_tpu_trainer.preflight.embeddings.ids import Batches, feature_ids

v1 = tf.compat.v1


def batches_of_dataset(
    dataset: tf.data.Dataset | Callable[..., Any],
    *,
    features: Mapping[str, Any],
    batch_size: int,
    params: Mapping[str, Any] | None = None,
) -> Batches:
    """Reads batches of a dataset or an input_fn, whose last batch is left out where it is short."""
    if callable(dataset):
        elements = _of_input_fn(dataset, list(features), batch_size, params or {})
    else:
        elements = _of_dataset(dataset, list(features))
    start = 0
    for element in elements:
        batch = {}
        sizes = set()
        for name, feature in features.items():
            values, ends, size = _arrays(element[name])
            sizes.add(size)
            if size == batch_size:
                batch[name] = feature_ids(name, feature, values, ends, batch_size, start)
        if sizes != {batch_size}:
            if max(sizes) < batch_size and start:
                return
            raise ValueError(
                f"the input's batches have {' and '.join(map(str, sorted(sizes)))} rows, not the {batch_size} of "
                "--batch_size: batch by params['batch_size'], with drop_remainder=True."
            )
        yield batch
        start += batch_size


def _of_dataset(dataset: Any, names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    for element in dataset:
        yield _chosen(element[0] if isinstance(element, tuple) else element, names)


def _of_input_fn(
    input_fn: Callable[..., Any], names: Sequence[str], batch_size: int, params: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    config = RunConfig()
    with call_graph(config) as graph:
        given = {**params, "batch_size": batch_size}
        returned = call_input_fn(input_fn, mode=ModeKeys.TRAIN, params=given, config=config)
        tensors = as_input_tensors(returned).with_tensors()
        chosen = _chosen(tensors.features, names)
        initializers = [v1.tables_initializer()]
        if tensors.iterator is not None:
            initializers.append(tensors.iterator.initializer)
    # Not entered: its graph would be the default one of whoever takes the batches.
    session = v1.Session(graph=graph)
    try:
        session.run(initializers)
        while True:
            yield session.run(chosen)
    except tf.errors.OutOfRangeError:
        return
    except tf.errors.OpError as error:
        raise ValueError(
            f"the input fails: {type(error).__name__}: {first_reason(error.message)[:500]}"
        ) from error
    finally:
        session.close()


def _chosen(features: Any, names: Sequence[str]) -> dict[str, Any]:
    if not isinstance(features, Mapping):
        raise ValueError(
            f"the input's features are a {type(features).__name__}: return a dict of them by name."
        )
    for name in names:
        if name not in features:
            raise ValueError(
                f"the input has no feature {name!r}, only {', '.join(map(repr, features))}."
            )
    return {name: features[name] for name in names}


def _arrays(value: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64] | None, int]:
    """Returns the ids of a tensor of any kind, where each row ends among them, and how many rows there are."""
    if hasattr(value, "dense_shape"):
        rows = int(np.asarray(value.dense_shape)[0])
        indices = np.asarray(value.indices)
        if indices.shape[1] != 2:
            raise ValueError(
                f"a sparse feature has {indices.shape[1]} dimensions; give [rows, ids] of each."
            )
        return np.asarray(value.values), np.cumsum(np.bincount(indices[:, 0], minlength=rows)), rows
    if hasattr(value, "row_splits"):
        ends = np.asarray(value.row_splits)[1:].astype(np.int64)
        return np.asarray(value.values), ends, len(ends)
    dense = np.asarray(value)
    return dense, None, dense.shape[0] if dense.ndim else 0
