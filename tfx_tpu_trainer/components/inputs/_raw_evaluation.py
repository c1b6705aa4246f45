"""Raw examples as evaluation input: transformed on the way, raw features kept beside for slices."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_transform as tft

from tfx_tpu_trainer.components.inputs._transformed import InputFn

v1 = tf.compat.v1

RAW_PREFIX = "__raw__/"
"""Stands before the names of raw features, which may be those of transformed ones too."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawEvaluationInput:
    """One split of raw examples, transformed by Transform's graph as it is read.

    The same rows and features as those of Transform's materialised examples, in the order of the raw
    files. Transform's graph runs in a session of its own: its tables can't live inside a dataset of
    a v1 graph. So the input can be read in the trainer's process only.

    Attributes:
        transform_graph_path: Folder of a TransformGraph artifact.
        file_patterns: Glob patterns of the split's files: TFRecords of tf.Examples.
        label_key: Name of the transformed feature that is the label, or `None`.
        raw_features: Raw features to keep, named with `RAW_PREFIX` before.
    """

    transform_graph_path: str
    file_patterns: Sequence[str]
    label_key: str | None
    raw_features: Sequence[str]

    def eval_fn(self) -> InputFn:
        """Returns the input function: once through the rows, the last batch with what is left."""
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
        # Reading takes one compression for all its files.
        parts = [
            tf.data.TFRecordDataset(list(same), compression_type="GZIP" if zipped else "")
            for zipped, same in itertools.groupby(files, lambda file: file.endswith(".gz"))
        ]
        records = parts[0]
        for part in parts[1:]:
            records = records.concatenate(part)
        return records


class _Transformer:
    """Transform's graph in a session of its own."""

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
        """Transforms a batch inside of a dataset's function."""
        values = tf.numpy_function(
            self._run, [examples], [tensor.dtype for tensor in self._tensors], stateful=False
        )
        for value, tensor in zip(values, self._tensors):
            value.set_shape(tensor.shape)
        return tf.nest.pack_sequence_as(self._features, values, expand_composites=True)

    def _run(self, examples: Any) -> list[Any]:
        return self._session.run(self._tensors, {self._examples: examples})
