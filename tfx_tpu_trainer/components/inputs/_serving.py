"""The serving side of a Transform pipeline: raw features in, the model's features out."""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import Any

import tensorflow as tf
import tensorflow_transform as tft

from tfx_tpu_trainer.components.inputs._raw_features import (
    absent,
    as_parsed,
    label_only_raw_features,
    needed_raw_features,
    raw_placeholders,
    unsupported_features,
)
from tfx_tpu_trainer.estimator.export import (
    HostPrediction,
    HostSignature,
    ServingInputReceiver,
)

RECEIVER_KEY = "examples"
TRANSFORM_SIGNATURE = "transform_features"
RAW_SIGNATURE = "predict_raw"

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformServing:
    """A serving_input_receiver_fn that runs Transform's graph on raw features.

    Calling it gives a receiver with one input, `examples` (serialized raw tf.Examples, string
    [batch]), the transformed features without the label for model_fn, and two host signatures:

    - `predict_raw` takes the raw features that predictions need as named tensors, for callers who can't make
      tf.Examples, and returns what `serving_default` gives. A missing value is NaN, the empty string or the least
      int64. It is left out, with a line in the log, where one of the features is of a kind that no plain tensor
      carries.
    - `transform_features` takes `examples`, with the label's raw features, and gives all
      transformed features, the label too: the stock Evaluator finds its labels there.

    A request for a prediction has no label, so raw features that nothing but the label is computed from are not
    required. All others are required if the raw schema requires them.

    Attributes:
        transform_graph_path: Folder of a TransformGraph artifact.
        label_key: Name of the transformed feature that is the label, or `None`.
    """

    transform_graph_path: str
    label_key: str | None = None

    def __call__(self) -> ServingInputReceiver:
        """Builds the receiver in the current graph."""
        examples = tf.compat.v1.placeholder(tf.string, [None], name=RECEIVER_KEY)
        raw = self._parse(examples, without=frozenset())
        complete = self._transform(raw)
        features = {**complete}
        if self._label_only:
            raw = self._parse(examples, without=self._label_only)
            features = self._transform(raw)
        if self.label_key is not None:
            # Gone already where its raw features were left out.
            features.pop(self.label_key, None)
        return ServingInputReceiver(
            features=features,
            receiver_tensors={RECEIVER_KEY: examples},
            host_signatures={
                **self._raw_prediction(raw),
                TRANSFORM_SIGNATURE: HostSignature(
                    inputs={RECEIVER_KEY: examples},
                    outputs={name: _dense(value) for name, value in complete.items()},
                ),
            },
        )

    def check(self) -> None:
        """Runs Transform's graph on parsed examples, on trial: what can fail of a receiver, in little time."""
        # The search builds both, and receivers need what it finds.
        _ = self._needed

    @functools.cached_property
    def _label_only(self) -> frozenset[str]:
        # An export builds a receiver for each metagraph; the search is worth doing once.
        return label_only_raw_features(
            self.transform_graph_path, self.label_key, needed=lambda: self._needed
        )

    @functools.cached_property
    def _needed(self) -> frozenset[str]:
        return needed_raw_features(self.transform_graph_path, self.label_key)

    def _parse(
        self, examples: tf.Tensor, *, without: frozenset[str]
    ) -> dict[str, tf.Tensor | tf.SparseTensor]:
        spec = tft.TFTransformOutput(self.transform_graph_path).raw_feature_spec()
        return dict(
            tf.io.parse_example(examples, {k: v for k, v in spec.items() if k not in without})
        )

    def _transform(
        self, raw: dict[str, tf.Tensor | tf.SparseTensor]
    ) -> dict[str, tf.Tensor | tf.SparseTensor]:
        # A TFTransformOutput keeps the tables of the graph it was first used in.
        return dict(tft.TFTransformOutput(self.transform_graph_path).transform_raw_features(raw))

    def _raw_prediction(self, parsed: dict[str, Any]) -> dict[str, HostPrediction]:
        """The signature of named tensors; they stand for what was parsed from the examples."""
        output = tft.TFTransformOutput(self.transform_graph_path)
        spec = {k: v for k, v in output.raw_feature_spec().items() if k in parsed}
        needed = {k: v for k, v in spec.items() if k in self._needed}
        unsupported = unsupported_features(needed)
        if unsupported or not needed:
            _logger.info(
                "Left out the signature %r: the raw features %s are not plain tensors.",
                RAW_SIGNATURE,
                unsupported,
            )
            return {}
        inputs = raw_placeholders(needed, _single_valued(output.raw_metadata.schema))
        rows = tf.shape(next(iter(inputs.values())))[0]
        standing_in = {
            **{name: as_parsed(feature, inputs[name]) for name, feature in needed.items()},
            **absent({k: v for k, v in spec.items() if k not in needed}, rows),
        }
        pairs = zip(_components(parsed), _components(standing_in), strict=True)
        return {
            RAW_SIGNATURE: HostPrediction(
                inputs=inputs, replaced={of_example.name: other for of_example, other in pairs}
            )
        }


def _single_valued(schema: Any) -> frozenset[str]:
    return frozenset(each.name for each in schema.feature if each.value_count.max == 1)


def _components(features: dict[str, Any]) -> list[tf.Tensor]:
    """The tensors of a dict of features, in the order of its keys."""
    return tf.nest.flatten(features, expand_composites=True)


def _dense(value: tf.Tensor | tf.SparseTensor | tf.RaggedTensor) -> tf.Tensor:
    if isinstance(value, tf.RaggedTensor):
        return value.to_tensor()
    return tf.sparse.to_dense(value) if isinstance(value, tf.SparseTensor) else value
