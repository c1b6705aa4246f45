"""Transform's materialised examples as input functions, and the sizes of its vocabularies."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_transform as tft
from tfx_bsl.public import tfxio

from tfx_tpu_trainer.components.inputs.row_cache.cache import RowCache
from tfx_tpu_trainer.components.inputs.row_cache.parsed_rows import Columns, can_be_columns, no_rows
from tfx_tpu_trainer.components.inputs.row_cache.row_order import shuffled_row_numbers

DatasetFactory = Callable[[Sequence[str], tfxio.TensorFlowDatasetOptions, Any], tf.data.Dataset]
"""Opens files as a batched dataset: `DataAccessor.tf_dataset_factory` of TFX's FnArgs."""

InputFn = Callable[[Mapping[str, Any]], tf.data.Dataset]
"""An input function: takes `params`, of which it reads `batch_size`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformedInput:
    """One split of Transform's materialised examples.

    The records are read through TFX's data accessor, whatever their format on disk, and parsed
    by the schema of the transformed features. Features that Transform made sparse stay
    `tf.SparseTensor`. The input functions build plain tf.data graphs: they work eagerly and
    inside a `tf.Graph`.

    Attributes:
        transform_graph_path: Folder of a TransformGraph artifact.
        file_patterns: Glob patterns of the split's files, in the order of the splits asked for.
        dataset_factory: Opens the files, see `DatasetFactory`.
        label_key: Name of the transformed feature that is the label, or `None` to give all
            features and no label.
        shuffle_buffer_size: Rows that training shuffles among.
        shuffle_seed: Makes the order of training repeatable; `None` takes a new order each time.
        shard: Which part of the rows training reads, and of how many: one for each host that reads.
            Where a TPU has several hosts, each of them gets a part of this part.
        cache: Keeps the parsed rows of training for all epochs; `None` parses them in each.
    """

    transform_graph_path: str
    file_patterns: Sequence[str]
    dataset_factory: DatasetFactory
    label_key: str | None = None
    shuffle_buffer_size: int = 10_000
    shuffle_seed: int | None = None
    shard: tuple[int, int] = (0, 1)
    cache: RowCache | None = None

    def train_fn(self) -> InputFn:
        """Returns the input function for training.

        Returns:
            A function whose dataset is shuffled, endless, and has full batches only.
        """
        return functools.partial(self._dataset, training=True)

    def eval_fn(self) -> InputFn:
        """Returns the input function for evaluation.

        Returns:
            A function whose dataset goes through the rows once, in the order of the files. The
            last batch holds what is left.
        """
        return functools.partial(self._dataset, training=False)

    def _dataset(self, params: Mapping[str, Any], *, training: bool) -> tf.data.Dataset:
        if training:
            index, count = _shard_of_call(self.shard, params.get("context"))
            return self._train_dataset(params["batch_size"], index, count)
        return self._read(self.file_patterns, batch_size=params["batch_size"], num_epochs=1)

    def _train_dataset(self, batch_size: int, index: int, count: int) -> tf.data.Dataset:
        cached = self._cached_dataset(batch_size, index, count)
        return cached or self._streamed_dataset(batch_size, index, count)

    def _cached_dataset(self, batch_size: int, index: int, count: int) -> tf.data.Dataset | None:
        if self.cache is None:
            return None
        files = self._files()
        spec = tft.TFTransformOutput(self.transform_graph_path).transformed_feature_spec()
        # In this order: the second builds two datasets, and a training of one epoch keeps no rows.
        if not self.cache.is_worth_it(files) or not self._gives_the_same(spec, batch_size):
            return None
        # Too few files for each host to have its own: each keeps them all, and draws a part of the rows.
        part, step = (files[index::count], 1) if len(files) >= count else (files, count)
        columns = self.cache.columns(part, spec, of=self._files)
        if columns is None:
            return None
        rows = range(index if step > 1 else 0, columns.count, step)
        return self._drawn(columns, batch_size, rows) if rows else None

    def _gives_the_same(self, spec: Mapping[str, Any], batch_size: int) -> bool:
        """Tells whether batches drawn from columns are like those of TFX's accessor: a spec may say less."""
        if not can_be_columns(spec):
            return False
        with tf.Graph().as_default():
            streamed = self._streamed_dataset(batch_size, 0, 1)
            drawn = self._drawn(no_rows(spec), batch_size, range(1))
            return drawn.element_spec == streamed.element_spec

    def _drawn(self, columns: Columns, batch_size: int, rows: range) -> tf.data.Dataset:
        tensors = tf.data.Dataset.from_tensors(columns.tensors()).repeat()
        numbers = shuffled_row_numbers(len(rows), batch_size=batch_size, seed=self.shuffle_seed)

        def batch(tensors: Mapping[str, tf.Tensor], numbers: tf.Tensor) -> Any:
            features = columns.gather(tensors, numbers * rows.step + rows.start)
            if self.label_key is None:
                return features
            return features, features.pop(self.label_key)

        # The tensors are no captures of the function, which would be written into a graph when one is rewritten.
        both = tf.data.Dataset.zip((tensors, numbers))
        return both.map(batch, num_parallel_calls=2, deterministic=True).prefetch(2)

    def _files(self) -> list[str]:
        return sorted(file for pattern in self.file_patterns for file in tf.io.gfile.glob(pattern))

    def _streamed_dataset(self, batch_size: int, index: int, count: int) -> tf.data.Dataset:
        shuffling = {
            "shuffle": True,
            "shuffle_buffer_size": self.shuffle_buffer_size,
            "shuffle_seed": self.shuffle_seed,
        }
        endless = {"batch_size": batch_size, "drop_final_batch": True, "num_epochs": None}
        if count == 1:
            return self._read(self.file_patterns, **endless, **shuffling)
        files = self._files()
        if len(files) >= count:
            return self._read(files[index::count], **endless, **shuffling)
        # Too few files for each host to have its own: all read them, and keep a part of the rows.
        rows = self._read(files, batch_size=batch_size, num_epochs=1, shuffle=False).unbatch()
        rows = rows.shard(count, index).shuffle(self.shuffle_buffer_size, seed=self.shuffle_seed)
        return rows.repeat().batch(batch_size, drop_remainder=True)

    def _read(self, files: Sequence[str], **options: Any) -> tf.data.Dataset:
        options = {"drop_final_batch": False, "shuffle": False, **options}
        schema = tft.TFTransformOutput(self.transform_graph_path).transformed_metadata.schema
        return self.dataset_factory(
            list(files),
            tfxio.TensorFlowDatasetOptions(label_key=self.label_key, **options),
            schema,
        )


def _shard_of_call(shard: tuple[int, int], context: Any) -> tuple[int, int]:
    """Returns the part that one call of the input function reads."""
    if context is None:
        return shard
    index, count = shard
    _, invocation, invocations, _ = context.current_input_fn_deployment()
    return index * invocations + invocation, count * invocations


def vocabulary_sizes(transform_graph_path: str) -> dict[str, int]:
    """Counts the entries of each of Transform's vocabularies.

    Args:
        transform_graph_path: Folder of a TransformGraph artifact.

    Returns:
        The number of entries, out-of-vocabulary buckets not counted, by the vocabulary's name:
        the `vocab_filename` of the preprocessing function, or the name that Transform chose.
        Empty where the preprocessing function makes no vocabulary.
    """
    output = tft.TFTransformOutput(transform_graph_path)
    # TFTransformOutput finds a vocabulary by its name but doesn't list the names.
    path = os.path.join(transform_graph_path, output.TRANSFORMED_METADATA_DIR, output.ASSET_MAP)
    if not tf.io.gfile.exists(path):
        return {}
    with tf.io.gfile.GFile(path) as file:
        names = json.load(file)
    return {name: int(output.vocabulary_size_by_name(name)) for name in sorted(names)}
