"""Cuts an input's batches into each replica's input, including a short last batch."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import (
    InputTensors,
    hide,
    is_number,
    named_leaves,
    structure_difference,
)
from tfx_tpu_trainer.estimator.tpu.cores.layout import RowSlice

v1 = tf.compat.v1


class CoreFeed:
    """Feeds the replicas of a template with full batches."""

    # The sources' tensors are at the top level of the graph, where they were made; a step copies the ops that make
    # them, such as an iterator's get_next, and cuts the copies into the replicas' pieces. The template is traced on
    # placeholders with one replica's static shapes; only if short batches may come, and are not padded, the batch size
    # is unknown. Numbers have no rows to cut, so each replica gets them unchanged.

    def __init__(
        self,
        sources: Sequence[InputTensors],
        slices: Sequence[RowSlice],
        *,
        batch_axes: Sequence[int | None] | None,
        batch_size: int | None = None,
        padded: bool = False,
    ) -> None:
        """Makes the placeholders of one replica."""
        self.slices = tuple(slices)
        self.sources = tuple(sources)
        self._structure = (sources[0].features, sources[0].labels)
        for source in sources[1:]:
            _check_same_input(self._structure, (source.features, source.labels))
            _check_same_numbers(self._structure, (source.features, source.labels))
        self._numbers = [
            tf.constant(tf.get_static_value(leaf), leaf.dtype)
            for leaf in tf.nest.flatten(self._structure)
            if is_number(leaf)
        ]
        _check_dense(*self._structure)
        features, labels = _dense(sources[0].features), _dense(sources[0].labels)
        # The order of this list matters: features before labels, dict keys sorted, as in `tf.nest.flatten` and in the
        # original's `batch_axis`.
        flat = [*features, *labels]
        self.axes = _axes(batch_axes, tf.nest.flatten(self._structure))
        names = ["features"] * len(features) + ["labels"] * len(labels)
        self.full_shapes = [
            _full_shape(name, tensor, axis, batch_size, padded=padded)
            for name, tensor, axis in zip(names, flat, self.axes)
        ]
        self.dtypes = [tensor.dtype for tensor in flat]
        self.always_full = all(tensor.shape.is_fully_defined() for tensor in flat)
        cut: list[list[int | None]] = [
            _cut(name, shape, axis, self.slices[0].pieces)
            for name, shape, axis in zip(names, self.full_shapes, self.axes)
        ]
        if not (self.always_full or padded):
            # A short batch may come: a model with a static batch size would compute with that size, as tf.losses does
            # when it divides by the number of rows.
            cut = [_with_open_axis(shape, axis) for shape, axis in zip(cut, self.axes)]
        self.placeholders = [v1.placeholder(*both) for both in zip(self.dtypes, cut)]

    @property
    def features(self) -> Any:
        """Placeholders of one replica's features."""
        return self._packed()[0]

    @property
    def labels(self) -> Any:
        """Placeholders of one replica's labels, or `None`."""
        return self._packed()[1]

    @property
    def first_sources(self) -> dict[str, str]:
        """Placeholder's node name -> the tensor whose first rows the first replica gets."""
        tensors = self._tensors_of(0)
        return {p.op.name: tensor.name for p, tensor in zip(self.placeholders, tensors)}

    def read(self, copier: GraphCopier) -> list[dict[str, tf.Tensor]]:
        """Reads one step's rows, in the graph under construction."""
        return self.cut({draw: self._copy_source(copier, draw[0]) for draw in self.draws()})

    def draws(self) -> list[tuple[int, int]]:
        """Returns a step's draws as pairs of a source and a number, in the order of the replicas."""
        return list(dict.fromkeys((part.source, part.draw) for part in self.slices))

    def cut(self, drawn: dict[tuple[int, int], list[tf.Tensor]]) -> list[dict[str, tf.Tensor]]:
        """Cuts full batches into the replicas' parts."""
        pieces = {
            draw: [
                tf.split(tensor, self.slices[0].pieces, axis=axis)
                for tensor, axis in zip(tensors, self.axes)
            ]
            for draw, tensors in drawn.items()
        }
        return [
            self.fed(split[part.piece] for split in pieces[part.source, part.draw])
            for part in self.slices
        ]

    def fed(self, tensors: Iterable[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Maps placeholders to one replica's flattened tensors."""
        return {p.name: tensor for p, tensor in zip(self.placeholders, tensors)}

    def _copy_source(self, copier: GraphCopier, source: int) -> list[tf.Tensor]:
        return copier.copy(
            [Fetch(0, tensor) for tensor in self._tensors_of(source)],
            replaced=[{}],
            name=f"input_pipeline_source{source}",
        )

    def _tensors_of(self, source: int) -> list[tf.Tensor]:
        return [*_dense(self.sources[source].features), *_dense(self.sources[source].labels)]

    def _packed(self) -> Any:
        rows, numbers = iter(self.placeholders), iter(self._numbers)

        def standing_for(leaf: Any) -> Any:
            if leaf is None:
                return None
            return next(numbers) if is_number(leaf) else next(rows)

        return tf.nest.map_structure(standing_for, self._structure)


def _check_same_input(first: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    difference = structure_difference(first, other)
    if difference is not None:
        raise ValueError(
            "input_fn must return the same features and labels in every call, one for each core "
            f"or host, but {difference}."
        )
    tf.nest.assert_same_structure(first, other)


def _check_same_numbers(first: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    for one, another in zip(tf.nest.flatten(first), tf.nest.flatten(other)):
        if not is_number(one) and not is_number(another):
            continue
        values = [tf.get_static_value(leaf) for leaf in (one, another)]
        if values[0] != values[1]:
            raise ValueError(
                "A scalar that input_fn returns is passed to every core, so it must be the same "
                f"in every call; got {values[0]} and {values[1]}. Return it with a batch axis."
            )


def _axes(batch_axes: Sequence[int | None] | None, leaves: Sequence[Any]) -> list[int]:
    """Returns the axis to cut for each leaf with rows."""
    tensors = [leaf for leaf in leaves if leaf is not None]
    if batch_axes is None:
        batch_axes = [0] * len(tensors)
    if len(batch_axes) != len(tensors):
        raise ValueError(
            f"batch_axis has {len(batch_axes)} entries {tuple(batch_axes)}, but the input "
            f"has {len(tensors)} tensors (features before labels, dict keys sorted)."
        )
    return [axis or 0 for axis, leaf in zip(batch_axes, tensors) if not is_number(leaf)]


def _dense(structure: Any) -> list[tf.Tensor]:
    """Flattens a structure of dense tensors, without `None` leaves and numbers."""
    return [leaf for leaf in tf.nest.flatten(structure) if leaf is not None and not is_number(leaf)]


def _check_dense(features: Any, labels: Any) -> None:
    for name, leaf in named_leaves(features, labels).items():
        if isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor)):
            raise ValueError(
                f"{type(leaf).__name__} inputs can't be passed to TPU cores: {name}, {leaf.dtype.name} "
                f"{leaf.shape}. Make it dense in input_fn (in TFX also in Transform), or look it up "
                "with a TPU embedding."
            )


def _full_shape(
    name: str, tensor: tf.Tensor, axis: int, batch_size: int | None, *, padded: bool
) -> list[int]:
    if tensor.shape.rank is None:
        raise ValueError(
            f"{name} to TPU must have an axis {axis} to split over the replicas, but its shape is unknown, as for "
            f"results of tf.py_function: set it in input_fn with tf.ensure_shape. Got {tensor}."
        )
    if tensor.shape.rank <= axis:
        raise ValueError(
            f"{name} to TPU must have an axis {axis} to split over the replicas; got {tensor}."
        )
    shape = tensor.shape.as_list()
    if shape[axis] is None or padded:
        shape[axis] = batch_size
    if None in shape:
        raise ValueError(
            f"The {name} to the model returned by input_fn must have static shape. Tensor: "
            f"{tensor}. If the batch is unknown, batch the dataset with drop_remainder=True; if "
            "another dimension is, pad it."
        )
    return shape


def _cut(name: str, shape: list[int], axis: int, pieces: int) -> list[int | None]:
    if shape[axis] % pieces:
        raise ValueError(
            f"{name} of shape {tuple(shape)} can't be cut into {pieces} equal pieces along axis "
            f"{axis}: choose a batch size that {pieces} divides."
        )
    return [size // pieces if index == axis else size for index, size in enumerate(shape)]


def _with_open_axis(shape: list[int | None], axis: int) -> list[int | None]:
    return [None if index == axis else size for index, size in enumerate(shape)]


@dataclasses.dataclass(frozen=True)
class DrawnBatches:
    """The batches that one step took from the sources."""

    # For each of the feed's draws, its flattened tensors; a source that has ended gives batches
    # without rows.
    batches: dict[tuple[int, int], list[tf.Tensor]]
    rows: dict[tuple[int, int], tf.Tensor]  # For each draw, its number of rows, an int32 scalar.
    ended: tf.Tensor  # Whether a source has ended, a boolean scalar.

    @property
    def total_rows(self) -> tf.Tensor:
        """Rows over all draws."""
        return tf.add_n(list(self.rows.values()))


# Ten rows in batches of 4 on 2 cores: the batches have 4, 4 and 2 rows. The model was traced for a core's 2 rows, and
# the last batch has 1 row per core, which no traced shape allows. The caller chooses one of three solutions: -
# `cut_full`: a full batch is cut into parts; core 0 gets rows 0 and 1, core 1 rows 2 and 3. - `whole`: a short batch
# runs undivided on one copy of the model, with an unknown batch size. An evaluation does that: metric_fn then sees
# exactly the two rows and needs no weights. - `cut_padded`: a short batch is padded with rows of zeros and a mask. A
# prediction does that: its rows are independent, so the padding's can be cut off afterwards. A source that has
# ended gives batches without rows instead of an error, since other sources may still have some.


class FiniteFeed(CoreFeed):
    """Feeds the replicas of a template until the input ends."""

    def full_rows(self) -> int:
        """Returns the rows of one draw's full batch; numbers alone count as one row."""
        if not self.axes:
            return 1
        return self.full_shapes[0][self.axes[0]]

    def draw(self, copier: GraphCopier) -> DrawnBatches:
        """Takes one step's batches, in the graph under construction."""
        batches, rows, ended = {}, {}, []
        for draw in self.draws():
            iterator = self.sources[draw[0]].iterator
            if iterator is None:
                batches[draw] = self._copy_source(copier, draw[0])
            else:
                optional = iterator.get_next_as_optional()
                batches[draw] = self._rows_or_none(optional)
                ended.append(tf.logical_not(optional.has_value()))
            rows[draw] = self._rows_of(batches[draw])
        return DrawnBatches(batches, rows, tf.reduce_any(ended) if ended else tf.constant(False))

    def is_full(self, drawn: DrawnBatches) -> tf.Tensor:
        """Returns whether every batch is full, as a boolean scalar."""
        return tf.reduce_all([tf.equal(rows, self.full_rows()) for rows in drawn.rows.values()])

    def cut_full(self, drawn: DrawnBatches) -> list[dict[str, tf.Tensor]]:
        """Cuts batches known to be full; see `CoreFeed.cut`."""
        return self.cut(
            {draw: self._known_full(tensors) for draw, tensors in drawn.batches.items()}
        )

    def cut_padded(self, drawn: DrawnBatches) -> tuple[list[dict[str, tf.Tensor]], list[tf.Tensor]]:
        """Pads the batches with zeros to full ones and cuts them."""
        padded, masks = {}, {}
        full = self.full_rows()
        for draw, tensors in drawn.batches.items():
            fits = tf.debugging.assert_less_equal(
                drawn.rows[draw],
                full,
                f"The real batch size should not be greater than the padded batch size {full}: "
                'batch the dataset with params["batch_size"].',
            )
            with tf.control_dependencies([fits]):
                missing = full - drawn.rows[draw]
            padded[draw] = [
                tf.ensure_shape(_pad(tensor, axis, missing), shape)
                for tensor, axis, shape in zip(tensors, self.axes, self.full_shapes)
            ]
            mask = tf.range(full) >= drawn.rows[draw]
            masks[draw] = tf.split(mask, self.slices[0].pieces)
        per_replica = [masks[part.source, part.draw][part.piece] for part in self.slices]
        return self.cut(padded), per_replica

    def whole(self, drawn: DrawnBatches) -> dict[str, tf.Tensor]:
        """Joins all batches for a single replica; see `CoreFeed.fed`."""
        # Their shapes are hidden from the model, which may expect full batches.
        batches = list(drawn.batches.values())
        together = [
            tf.concat([batch[index] for batch in batches], axis=axis)
            for index, axis in enumerate(self.axes)
        ]
        return self.fed(hide(together, [tf.TensorShape(None)] * len(together)))

    def _rows_of(self, batch: list[tf.Tensor]) -> tf.Tensor:
        return tf.shape(batch[0])[self.axes[0]] if self.axes else tf.constant(1)

    def _known_full(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Sets the shapes of full batches on tensors, hidden from the graph outside."""
        # If a branch of a conditional states a shape (with tf.ensure_shape, or a reshape in the model), shape inference
        # assumes it outside of the branch, too, and would consider every batch a full one.
        return hide(tensors, self.full_shapes)

    def _rows_or_none(self, optional: tf.experimental.Optional) -> list[tf.Tensor]:
        def values() -> list[tf.Tensor]:
            leaves = tf.nest.flatten(optional.get_value())
            return [leaf for leaf in leaves if leaf is not None]

        def no_rows() -> list[tf.Tensor]:
            return [
                tf.zeros([0 if index == axis else size for index, size in enumerate(shape)], dtype)
                for dtype, shape, axis in zip(self.dtypes, self.full_shapes, self.axes)
            ]

        return tf.cond(optional.has_value(), values, no_rows)


def _pad(tensor: tf.Tensor, axis: int, missing: tf.Tensor) -> tf.Tensor:
    paddings = [[0, missing if index == axis else 0] for index in range(tensor.shape.rank)]
    return tf.pad(tensor, paddings)
