"""An input that ends, as evaluation and prediction read it: its last batch may be short.

A full batch is cut over the cores; a short one runs whole on a single copy of the model, or is
padded to a full one. `evaluating/` and `predicting/` choose.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import GraphCopier
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import hide
from tfx_tpu_trainer.estimator.tpu.cores.feed import CoreFeed


@dataclasses.dataclass(frozen=True)
class DrawnBatches:
    """What one step took from the sources.

    Attributes:
        batches: For each of the feed's draws, its flattened tensors; a source that has ended
            gives batches of no rows.
        rows: For each draw, its number of rows, an int32 scalar.
        ended: Whether a source has ended, a boolean scalar.
    """

    batches: dict[tuple[int, int], list[tf.Tensor]]
    rows: dict[tuple[int, int], tf.Tensor]
    ended: tf.Tensor

    @property
    def total_rows(self) -> tf.Tensor:
        """Rows over all draws."""
        return tf.add_n(list(self.rows.values()))


# Ten rows in batches of 4 on 2 cores: the batches have 4, 4 and 2 rows. The model was traced for a core's 2 rows, and
# the last batch has 1 row for each core, which no traced shape allows. Three ways out, chosen by the caller:
#
# - `cut_full`: a full batch is cut into pieces, core 0 gets rows 0 and 1, core 1 rows 2 and 3.
# - `whole`: a short batch runs undivided on one copy of the model, whose batch is unknown to it. An evaluation does
#   that, as metric_fn then sees exactly the two rows and needs no weights.
# - `cut_padded`: a short batch gets rows of zeros and a mask. A prediction does that: its rows are independent, so the
#   padding's can be cut off afterwards.
#
# A source that has ended gives batches of no rows instead of an error, since other sources may still have some.


class FiniteFeed(CoreFeed):
    """Feeds the replicas of a template until the input ends."""

    def full_rows(self) -> int:
        """Returns the rows of a full batch of one draw; numbers alone count as one."""
        if not self.axes:
            return 1
        return self.full_shapes[0][self.axes[0]]

    def draw(self, copier: GraphCopier) -> DrawnBatches:
        """Takes the batches of one step, in the graph under construction."""
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
        """Tells whether every batch is full, a boolean scalar."""
        return tf.reduce_all([tf.equal(rows, self.full_rows()) for rows in drawn.rows.values()])

    def cut_full(self, drawn: DrawnBatches) -> list[dict[str, tf.Tensor]]:
        """Cuts batches that are known to be full; see `CoreFeed.cut`."""
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
        """Puts all batches together for a single replica; see `CoreFeed.fed`.

        Their shapes are hidden from the model: they are not full, whatever it reckons with.
        """
        batches = list(drawn.batches.values())
        together = [
            tf.concat([batch[index] for batch in batches], axis=axis)
            for index, axis in enumerate(self.axes)
        ]
        return self.fed(hide(together, [tf.TensorShape(None)] * len(together)))

    def _rows_of(self, batch: list[tf.Tensor]) -> tf.Tensor:
        return tf.shape(batch[0])[self.axes[0]] if self.axes else tf.constant(1)

    def _known_full(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Sets the shapes of full batches on tensors, unseen by what stands outside.

        Shape inference takes what a branch of a conditional says of a shape (as tf.ensure_shape
        does, or a reshape in the model) to hold outside of the branch too, and would take every
        batch for a full one.
        """
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
