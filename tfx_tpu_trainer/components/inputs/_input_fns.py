"""Makes input functions over Transform's materialized examples or raw examples; counts its vocabularies' entries.

A training reads each row once per epoch, in an order that depends only on the seed and the epoch. An input's position
is therefore a few numbers, for any number of rows.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_transform as tft
from tfx_bsl.public import tfxio

from tfx_tpu_trainer._support.progress import phase
from tfx_tpu_trainer.components.inputs._parsed_rows import Columns, can_be_columns, no_rows
from tfx_tpu_trainer.components.inputs._row_cache import RowCache

v1 = tf.compat.v1

DatasetFactory = Callable[[Sequence[str], tfxio.TensorFlowDatasetOptions, Any], tf.data.Dataset]
"""Opens files as a batched dataset: `DataAccessor.tf_dataset_factory` of TFX's FnArgs."""

InputFn = Callable[[Mapping[str, Any]], tf.data.Dataset]
"""An input function: takes `params` and reads `batch_size` from it."""

RAW_PREFIX = "__raw__/"
"""The prefix of raw features' names, which transformed features may also have."""

WINDOW = 1 << 16
"""The number of rows that are shuffled together."""

CHUNK = 1 << 12
"""Rows that stay together: a window consists of random chunks, so a window of a
file on disk is read in a few pieces instead of row by row."""

_EPOCHS = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformedInput:
    """One split of Transform's materialized examples.

    The records are read through TFX's data accessor, in any format on disk, and parsed
    by the schema of the transformed features. Features that Transform made sparse stay
    `tf.SparseTensor`. The input functions build plain tf.data graphs: they work eagerly and
    inside a `tf.Graph`.

    Attributes:
        transform_graph_path: Folder of a TransformGraph artifact.
        file_patterns: Glob patterns of the split's files, in the order of the requested splits.
        dataset_factory: Opens the files, see `DatasetFactory`.
        label_key: Name of the transformed feature that is the label, or `None` for all features and no label.
        shuffle_buffer_size: Number of rows that training shuffles together.
        shuffle_seed: Makes the order of training reproducible; `None` uses a new order each time.
        shard: The part of the rows that training reads, and the number of parts, one for each host that reads. If a TPU
            has several hosts, each of them gets a part of this part.
        cache: Keeps the parsed rows of training for all epochs; `None` parses them in each epoch.
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
            A function whose dataset reads the rows once, in the order of the files. The last batch has the remaining
            rows.
        """
        return functools.partial(self._dataset, training=False)

    def _dataset(self, params: Mapping[str, Any], *, training: bool) -> tf.data.Dataset:
        # Called while the model is traced.
        with phase("input", is_told=False):
            return self._made(params, training=training)

    def _made(self, params: Mapping[str, Any], *, training: bool) -> tf.data.Dataset:
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
        # `_gives_the_same` builds two datasets, which a training of one epoch does not have to wait for.
        if not self.cache.is_worth_it(files) or not self._gives_the_same(spec, batch_size):
            return None
        # With fewer files than hosts, each host keeps all rows and draws a part of them.
        part, step = (files[index::count], 1) if len(files) >= count else (files, count)
        columns = self.cache.columns(part, spec, of=self._files)
        if columns is None:
            return None
        rows = range(index if step > 1 else 0, columns.count, step)
        return self._drawn(columns, batch_size, rows) if rows else None

    def _gives_the_same(self, spec: Mapping[str, Any], batch_size: int) -> bool:
        """Returns whether batches from columns equal those of TFX's accessor; a spec may leave this open."""
        if not can_be_columns(spec):
            return False
        with tf.Graph().as_default():
            streamed = self._streamed_dataset(batch_size, 0, 1)
            drawn = self._drawn(no_rows(spec), batch_size, range(1))
            return drawn.element_spec == streamed.element_spec

    def _drawn(self, columns: Columns, batch_size: int, rows: range) -> tf.data.Dataset:
        tensors = tf.data.Dataset.from_tensors(columns.tensors()).repeat()
        numbers = shuffled_row_numbers(len(rows), batch_size=batch_size, seed=self.shuffle_seed)

        @tf.autograph.experimental.do_not_convert
        def batch(tensors: Mapping[str, tf.Tensor], numbers: tf.Tensor) -> Any:
            features = columns.gather(tensors, numbers * rows.step + rows.start)
            if self.label_key is None:
                return features
            return features, features.pop(self.label_key)

        # Elements of a dataset, since captures would be copied into the graph when a function is rewritten.
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
        # With fewer files than hosts, all hosts read them and keep a part of the rows.
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
    """Returns the shard that one call of the input function reads."""
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
        The number of entries, without out-of-vocabulary buckets, by the vocabulary's name: the `vocab_filename` of the
        preprocessing function, or the name that Transform chose. Empty if the preprocessing function makes no
        vocabulary.
    """
    output = tft.TFTransformOutput(transform_graph_path)
    # TFTransformOutput finds a vocabulary by name but does not list the names.
    path = os.path.join(transform_graph_path, output.TRANSFORMED_METADATA_DIR, output.ASSET_MAP)
    if not tf.io.gfile.exists(path):
        return {}
    with tf.io.gfile.GFile(path) as file:
        names = json.load(file)
    return {name: int(output.vocabulary_size_by_name(name)) for name in sorted(names)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawEvaluationInput:
    """One split of raw examples, transformed while it is read.

    It has the same rows and features as Transform's materialized examples, in the order of the raw files. Transform's
    graph runs in its own session, since its tables can't live inside a dataset of a v1 graph. So only the trainer's
    process can read the input.

    Attributes:
        transform_graph_path: Folder of a TransformGraph artifact.
        file_patterns: Glob patterns of the split's files: TFRecords of tf.Examples.
        label_key: Name of the transformed feature that is the label, or `None`.
        raw_features: Raw features to keep, with `RAW_PREFIX` before their names.
    """

    transform_graph_path: str
    file_patterns: Sequence[str]
    label_key: str | None
    raw_features: Sequence[str]

    def eval_fn(self) -> InputFn:
        """Returns the input function: one pass over the rows, with a smaller last batch."""
        return self._dataset

    def _dataset(self, params: Mapping[str, Any]) -> tf.data.Dataset:
        transformer = _Transformer(self.transform_graph_path, self.raw_features)

        def transform(examples: tf.Tensor) -> Any:
            features = transformer.in_dataset(examples)
            if self.label_key is None:
                return features
            label = features.pop(self.label_key)
            return features, label

        return self._records().batch(params["batch_size"]).map(transform)

    def _records(self) -> tf.data.Dataset:
        files = sorted(file for pattern in self.file_patterns for file in tf.io.gfile.glob(pattern))
        # A dataset reads all its files with one compression.
        parts = [
            tf.data.TFRecordDataset(list(same), compression_type="GZIP" if zipped else "")
            for zipped, same in itertools.groupby(files, lambda file: file.endswith(".gz"))
        ]
        records = parts[0]
        for part in parts[1:]:
            records = records.concatenate(part)
        return records


class _Transformer:
    """Transform's graph in its own session."""

    def __init__(self, transform_graph_path: str, raw_features: Sequence[str]) -> None:
        output = tft.TFTransformOutput(transform_graph_path)
        with tf.Graph().as_default() as graph:
            self._examples = v1.placeholder(tf.string, [None])
            raw = tf.io.parse_example(self._examples, output.raw_feature_spec())
            self._features = dict(output.transform_raw_features(dict(raw)))
            self._features |= {RAW_PREFIX + name: raw[name] for name in raw_features}
            self._tensors = tf.nest.flatten(self._features, expand_composites=True)
            self._session = v1.Session(graph=graph)
            self._session.run([v1.global_variables_initializer(), v1.tables_initializer()])

    def in_dataset(self, examples: tf.Tensor) -> dict[str, Any]:
        """Transforms a batch inside a dataset's function."""
        values = tf.numpy_function(
            self._run, [examples], [tensor.dtype for tensor in self._tensors], stateful=False
        )
        for value, tensor in zip(values, self._tensors):
            value.set_shape(tensor.shape)
        return tf.nest.pack_sequence_as(self._features, values, expand_composites=True)

    def _run(self, examples: Any) -> list[Any]:
        return self._session.run(self._tensors, {self._examples: examples})


def shuffled_row_numbers(
    count: int, *, batch_size: int, seed: int | None, window: int = WINDOW, chunk: int = CHUNK
) -> tf.data.Dataset:
    """Returns row numbers for an endless training.

    Up to `WINDOW` rows are shuffled together; with more rows, each window takes chunks from all over them, in a
    different order each epoch. Batches may span two epochs.
    """
    # A shuffle buffer would have to be saved with the input's position, rows included. Here the dataset is a range of
    # window numbers, and a window's rows follow from the seed and that number alone: a position is one number. Two
    # shuffles make an order: one of all chunks in an epoch (which of them share a window), one of the rows in a window.
    # With 10 rows, chunks of 2 and windows of 4, an epoch's chunks may come as [6 7][0 1] | [4 5][8 9] | [2 3], and its
    # first window as 0 7 6 1. All draws are stateless and use Philox, so they are the same on each machine, and
    # whether the range is read from its start or from a saved position.
    seeds = v1.get_seed(seed)
    if seeds[0] is None:
        seeds = (secrets.randbits(31), secrets.randbits(31))
    windows = -(-count // window)
    whole_chunks = count // chunk

    # AutoGraph would take 0.4 s to convert these functions, in which it finds nothing to convert.
    @tf.autograph.experimental.do_not_convert
    def rows_of_window(seed: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        epoch, window_of_epoch = number // windows, number % windows
        fold_in = tf.random.experimental.stateless_fold_in
        of_epoch = fold_in(seed, epoch)
        begin = window_of_epoch * window
        places = tf.range(begin, tf.minimum(begin + window, count))
        if windows > 1:
            chunks = tf.range(whole_chunks, dtype=tf.int64)
            chunks = tf.random.experimental.stateless_shuffle(
                chunks, fold_in(of_epoch, 0), "philox"
            )
            in_chunks = places < whole_chunks * chunk
            moved = tf.gather(chunks, tf.where(in_chunks, places // chunk, 0)) * chunk
            rows = tf.where(in_chunks, moved + places % chunk, places)
            # The rows of an incomplete chunk come last; they differ from epoch to epoch.
            turned = tf.random.stateless_uniform(
                [], fold_in(of_epoch, 1), 0, count, tf.int64, alg="philox"
            )
            places = (rows + turned) % count
        of_window = fold_in(fold_in(of_epoch, 2), window_of_epoch)
        return tf.random.experimental.stateless_shuffle(places, of_window, "philox")

    # The end distinguishes inputs with different numbers of rows when a position is restored.
    numbers = tf.data.Dataset.range(count * _EPOCHS)
    seeded = numbers.scan(
        tf.constant(seeds, tf.int64),
        tf.autograph.experimental.do_not_convert(lambda seed, number: (seed, (seed, number))),
    )
    return seeded.map(rows_of_window).prefetch(1).rebatch(batch_size, drop_remainder=True)
