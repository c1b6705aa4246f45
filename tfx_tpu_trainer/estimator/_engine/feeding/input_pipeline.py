"""What an input_fn returned, as tensors of the default graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.feeding.autotuning import tuned_where_it_helps
from tfx_tpu_trainer.estimator._engine.feeding.dataset_edits import edited
from tfx_tpu_trainer.estimator._engine.feeding.input_values import as_tensors
from tfx_tpu_trainer.estimator._engine.feeding.sliced_batches import batches_to_cut_out
from tfx_tpu_trainer.estimator._engine.graph_nodes import all_nodes

v1 = tf.compat.v1
_logger = tf.get_logger()


@dataclasses.dataclass(frozen=True)
class InputTensors:
    """The tensors of one batch.

    Attributes:
        features: Nested structure of tensors; where input_fn returned no Dataset, of whatever it
            returned.
        labels: The same, or `None`.
        hooks: What must run in the session before the tensors can be read.
        iterator: The iterator that the tensors are drawn from; `None` where input_fn gave
            tensors of its own.
    """

    features: Any
    labels: Any
    hooks: tuple[v1.train.SessionRunHook, ...] = ()
    iterator: v1.data.Iterator | None = None

    def with_tensors(self) -> InputTensors:
        """Returns the input with a tensor for each Python value and array in it."""
        if self.iterator is not None:
            return self
        return dataclasses.replace(
            self, features=as_tensors(self.features), labels=as_tensors(self.labels)
        )

    def with_hidden_batches(self) -> InputTensors:
        """Hides short batches from a model that must not be taken at its word of them.

        Training does without, as it does in the original: its gradients are reckoned in fewer
        ops where the optimizer has the shapes.
        """
        if self.iterator is None:
            return self
        features, labels = hide_open_batches((self.features, self.labels))
        return dataclasses.replace(self, features=features, labels=labels)


class DatasetInitializerHook(v1.train.SessionRunHook):
    """Starts a dataset's iterator whenever a session is made or recovered.

    A hook and not an entry of the TABLE_INITIALIZERS collection, because a user's
    `Scaffold(local_init_op=...)` replaces what would run that collection.
    """

    def __init__(self, iterator: v1.data.Iterator):
        self._initializer = iterator.initializer

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Runs the initializer."""
        del coord
        session.run(self._initializer)


def as_input_tensors(returned: Any) -> InputTensors:
    """Turns what an input_fn returned into the tensors of one batch.

    Args:
        returned: A `tf.data.Dataset` of features or of (features, labels); or features; or
            a pair (features, labels) of tensors or of what can be made tensors.

    Returns:
        The tensors, in the default graph.

    Raises:
        ValueError: If a tuple or list does not have two elements.
    """
    if isinstance(returned, tf.data.Dataset):
        dataset = edited(returned, batches_to_cut_out(returned))
        iterator = v1.data.make_initializable_iterator(tuned_where_it_helps(dataset))
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


# Python code can tell when it is called, and an input may wait for what was made of the rows
# before: a service that predicts feeds a generator with its requests.
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
    """Tells whether nobody but the clock could notice that an input is read ahead."""
    ops = {node.op for node in all_nodes(graph.as_graph_def())}
    return not any(op.startswith(_FROM_OUTSIDE) or _is_foreign_dataset(op) for op in ops)


def _is_foreign_dataset(op: str) -> bool:
    return "Dataset" in op and not hasattr(tf.raw_ops, op)


def hide(tensors: Sequence[tf.Tensor], shapes: Sequence[Any]) -> list[tf.Tensor]:
    """Passes tensors through an optional, which shape inference does not look into.

    A model that reshapes to `params["batch_size"]` rows tells shape inference that every batch has
    as many, short ones included: TensorFlow's graph optimizer then drops the reshape as useless,
    and counts rows that are not there. What reads a tensor through this detour says nothing about
    what stands before it.
    """
    if not tensors:
        return []
    return tf.raw_ops.OptionalGetValue(
        optional=tf.raw_ops.OptionalFromValue(components=list(tensors)),
        output_types=[tensor.dtype for tensor in tensors],
        output_shapes=list(shapes),
    )


def hide_open_batches(structure: Any) -> Any:
    """Hides what is not known of the shapes in a nested structure.

    Python code sees the shapes as before; the optimizer sees none, not even a rank, as one
    unknown dimension beside known ones can be reckoned back from a reshape.
    """
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
