"""Turns an input_fn's result into tensors, counts its rows, and names its tensors as a user would write them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.feeding.dataset_rewrites import (
    batches_to_cut_out,
    edited,
    options_of,
    tuned_where_it_helps,
)
from tfx_tpu_trainer.estimator._engine.graph_nodes import all_nodes

v1 = tf.compat.v1
_logger = tf.get_logger()

UNTUNED_ITERATORS = "tfx_tpu_trainer/untuned_iterators"
"""The collection of initializers that start datasets over at once: tf.data does not tune them."""


def as_tensors(structure: Any) -> Any:
    """Makes a tensor of each value of an input."""
    # A value is a number, a string, an array, or a list or tuple of scalars, nested to any depth. Lists and tuples of
    # tensors or arrays that have their own rows are structure.
    if all(_is_tensor(leaf) and not _is_variable(leaf) for leaf in _values(structure)):
        return structure
    return _map_values(_as_tensor, structure)


def count_rows(*structures: Any) -> tf.Tensor | None:
    """Counts the rows of a batch: axis 0 of its first value that has one.

    Args:
        *structures: Features and labels: nested structures of dense, sparse or ragged tensors, and
            of values for `as_tensors`.

    Returns:
        An int64 scalar tensor, or `None` when no value has an axis.
    """
    for leaf in itertools.chain.from_iterable(map(_values, structures)):
        if isinstance(leaf, (tf.SparseTensor, v1.SparseTensorValue)):
            return tf.cast(leaf.dense_shape[0], tf.int64)
        if isinstance(leaf, tf.RaggedTensor):
            return tf.cast(leaf.nrows(), tf.int64)
        if not _is_tensor(leaf):
            if isinstance(leaf, (list, tuple)) or np.ndim(leaf):
                return tf.constant(len(leaf), tf.int64)
        elif leaf.shape.rank != 0:
            return tf.shape(leaf, out_type=tf.int64)[0]
    return None


def is_number(leaf: Any) -> bool:
    """Returns whether a tensor is a scalar with a static value, the same in every batch."""
    scalar = isinstance(leaf, tf.Tensor) and leaf.shape.rank == 0
    return scalar and tf.get_static_value(leaf) is not None


def _values(structure: Any) -> Iterator[Any]:
    """Yields the tensors, and the values that can be made tensors, in the order of `tf.nest`."""
    if isinstance(structure, Mapping):
        for key in sorted(structure):
            yield from _values(structure[key])
    elif _is_structure(structure):
        for part in structure:
            yield from _values(part)
    elif structure is not None:
        yield structure


def _map_values(function: Callable[[Any], Any], structure: Any) -> Any:
    if isinstance(structure, Mapping):
        mapped = {key: _map_values(function, part) for key, part in structure.items()}
        return type(structure)(mapped) if isinstance(structure, dict) else mapped
    if _is_structure(structure):
        parts = [_map_values(function, part) for part in structure]
        return type(structure)(*parts) if _is_named(structure) else type(structure)(parts)
    return None if structure is None else function(structure)


def _is_structure(value: Any) -> bool:
    """Returns whether a value is a list or tuple of several tensors rather than one."""
    if not isinstance(value, (list, tuple)) or _is_tensor(value):
        return False
    # [1.0, 2.0] and [[1, 2], [3, 4]] are one tensor, as np.array makes one array of them. So is a
    # list of scalar tensors, but a tuple of them is structure: (features, labels) may be scalars.
    # Lists with an element that has its own rows, [np.zeros(3), np.ones(3)], and the empty tuple
    # are structure too.
    leaves = tf.nest.flatten(value)
    if _is_named(value) or not all(map(_is_scalar, leaves)):
        return True
    return isinstance(value, tuple) and (not leaves or any(map(_is_tensor, leaves)))


def _is_scalar(leaf: Any) -> bool:
    if _is_tensor(leaf):
        return isinstance(leaf, tf.Tensor) and leaf.shape.rank == 0
    return leaf is not None and not np.ndim(leaf)


def _is_tensor(value: Any) -> bool:
    return tf.is_tensor(value) or isinstance(value, v1.SparseTensorValue)


def _is_variable(value: Any) -> bool:
    return isinstance(value, tf.Variable)


def _is_named(value: Any) -> bool:
    return hasattr(value, "_fields")


def _as_tensor(value: Any) -> Any:
    if _is_tensor(value) and not _is_variable(value):
        return value
    return tf.convert_to_tensor(value)


def named_leaves(features: Any, labels: Any) -> dict[str, Any]:
    """Names the tensors of an input.

    Args:
        features: Nested structure of tensors.
        labels: The same, or `None`.

    Returns:
        Name, such as `features['x']` or `labels`, -> tensor, in the order of a Dataset's components.
    """
    named = dict(_walk("features", features))
    return named if labels is None else {**named, **dict(_walk("labels", labels))}


def structure_difference(first: Any, second: Any) -> str | None:
    """Describes the first tensor in which two inputs differ; `None` if they are equal."""
    named, others = named_leaves(*first), named_leaves(*second)
    for name in {**named, **others}:
        if name not in named or name not in others:
            return f"{name} is in only one of them"
        one, other = named[name], others[name]
        if one.dtype != other.dtype or not one.shape.is_compatible_with(other.shape):
            return (
                f"{name} is {one.dtype.name} {one.shape} in one and {other.dtype.name} "
                f"{other.shape} in another"
            )
    return None


def _walk(name: str, structure: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(structure, Mapping):
        for key in sorted(structure):
            yield from _walk(f"{name}[{key!r}]", structure[key])
    elif isinstance(structure, (tuple, list)) and not tf.is_tensor(structure):
        fields = getattr(structure, "_fields", None)
        for index, part in enumerate(structure):
            yield from _walk(f"{name}.{fields[index]}" if fields else f"{name}[{index}]", part)
    elif structure is not None:
        yield name, structure


@dataclasses.dataclass(frozen=True)
class InputTensors:
    """The tensors of one batch.

    Attributes:
        features: Nested structure of tensors, or of the values that input_fn returned without a Dataset.
        labels: The same, or `None`.
        hooks: Hooks that prepare the input in a session.
        iterator: The iterator that yields the tensors; `None` if input_fn returned no Dataset.
    """

    features: Any
    labels: Any
    hooks: tuple[v1.train.SessionRunHook, ...] = ()
    iterator: v1.data.Iterator | None = None

    def with_tensors(self) -> InputTensors:
        """Returns the input with each Python value and array made a tensor."""
        if self.iterator is not None:
            return self
        return dataclasses.replace(
            self, features=as_tensors(self.features), labels=as_tensors(self.labels)
        )

    def changed(self, change: Callable[[Any], Any]) -> InputTensors:
        """Returns the input with its (features, labels), or its features alone, changed."""
        batch = self.features if self.labels is None else (self.features, self.labels)
        features, labels = split_features_and_labels(change(batch))
        return dataclasses.replace(self, features=features, labels=labels)

    def with_hidden_batches(self) -> InputTensors:
        """Hides batch sizes from shape inference if a short batch may come; see `hide`."""
        # Not for training, as in the original: known shapes give gradients with fewer ops.
        if self.iterator is None:
            return self
        features, labels = hide_open_batches((self.features, self.labels))
        return dataclasses.replace(self, features=features, labels=labels)


class DatasetInitializerHook(v1.train.SessionRunHook):
    """Starts a dataset's iterator whenever a session is made or recovered."""

    # The collection TABLE_INITIALIZERS would not do: a user's `Scaffold(local_init_op=...)`
    # replaces the op that runs it.

    def __init__(self, iterator: v1.data.Iterator):
        self._initializer = iterator.initializer

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        session.run(self._initializer)


def as_input_tensors(returned: Any) -> InputTensors:
    """Turns an input_fn's result into the tensors of one batch.

    Args:
        returned: A `tf.data.Dataset` of features or of (features, labels); or features; or
            a pair (features, labels) of tensors or of values that can be made tensors.

    Returns:
        The tensors, in the default graph.

    Raises:
        ValueError: If a tuple or list does not have two elements.
    """
    if isinstance(returned, tf.data.Dataset):
        dataset = edited(returned, batches_to_cut_out(returned))
        tuned = tuned_where_it_helps(dataset)
        iterator = v1.data.make_initializable_iterator(tuned)
        if options_of(tuned).autotune.enabled is False:
            v1.add_to_collection(UNTUNED_ITERATORS, iterator.initializer)
        features, labels = split_features_and_labels(iterator.get_next())
        return InputTensors(features, labels, (DatasetInitializerHook(iterator),), iterator)
    return InputTensors(*split_features_and_labels(returned))


def split_features_and_labels(element: Any) -> tuple[Any, Any]:
    """Splits an element of an input into features and labels."""
    features, labels = element, None
    if isinstance(element, (tuple, list)) and not tf.is_tensor(element):
        if len(element) != 2:
            raise ValueError(
                "input_fn should return (features, labels) as a len 2 tuple; got "
                f"{len(element)} elements: {element!r}. Put several features into a dict."
            )
        features, labels = element
    if features is None:
        what = "None" if element is None else "no features (None)"
        _logger.warning("input_fn returned %s: model_fn gets None as features.", what)
    return features, labels


# Ops through which an input may notice when it is read, or wait for results of earlier rows: a
# prediction service feeds its requests to a generator.
_FROM_OUTSIDE = (
    "Barrier",
    "DataServiceDataset",
    "EagerPyFunc",
    "GeneratorDataset",
    "PyFunc",
    "Queue",
    "ReaderRead",
    "Recv",
    "Stage",
    "Unstage",
)


def can_be_read_ahead(graph: tf.Graph) -> bool:
    """Returns whether an input can be read ahead without effects on its program."""
    ops = {node.op for node in all_nodes(graph.as_graph_def())}
    return not any(op.startswith(_FROM_OUTSIDE) or _is_foreign_dataset(op) for op in ops)


def _is_foreign_dataset(op: str) -> bool:
    return "Dataset" in op and not hasattr(tf.raw_ops, op)


def hide(tensors: Sequence[tf.Tensor], shapes: Sequence[Any]) -> list[tf.Tensor]:
    """Passes tensors through an optional, past which shape inference does not see."""
    # From a model that reshapes to `params["batch_size"]` rows, shape inference concludes that
    # every batch has as many, also a short one: TensorFlow's graph optimizer then drops the reshape
    # as useless, and rows are counted that do not exist.
    if not tensors:
        return []
    return tf.raw_ops.OptionalGetValue(
        optional=tf.raw_ops.OptionalFromValue(components=list(tensors)),
        output_types=[tensor.dtype for tensor in tensors],
        output_shapes=list(shapes),
    )


def hide_open_batches(structure: Any) -> Any:
    """Hides the shapes of tensors that are not static, in a nested structure."""
    # Python code sees the shapes as before. The optimizer sees none, not even a rank, since it could infer a single
    # unknown dimension from a reshape.
    leaves = tf.nest.flatten(structure)
    hidden = [i for i, leaf in enumerate(leaves) if _is_open(leaf)]
    if not hidden:
        return structure
    unknown = [tf.TensorShape(None)] * len(hidden)
    for i, tensor in zip(hidden, hide([leaves[i] for i in hidden], unknown)):
        tensor.set_shape(leaves[i].shape)
        leaves[i] = tensor
    return tf.nest.pack_sequence_as(structure, leaves)


def _is_open(leaf: Any) -> bool:
    return isinstance(leaf, tf.Tensor) and not leaf.shape.is_fully_defined()
