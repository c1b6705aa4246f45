"""The serving side of a Transform pipeline: raw tf.Examples in, the model's features out."""

from __future__ import annotations

import dataclasses
import functools

import tensorflow as tf
import tensorflow_transform as tft

from tfx_tpu_trainer.estimator.export.receivers import HostSignature, ServingInputReceiver

RECEIVER_KEY = "examples"
TRANSFORM_SIGNATURE = "transform_features"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformServing:
    """A serving_input_receiver_fn that runs Transform's graph on serialized raw tf.Examples.

    Calling it gives a receiver with one input, `examples` (string, [batch]), the transformed
    features without the label for model_fn, and a host signature `transform_features`, which
    gives all transformed features, the label too: the stock Evaluator finds its labels there.

    A request for a prediction has no label, so raw features that nothing but the label is
    computed from are not asked for. All others are required where the raw schema requires them.

    Attributes:
        transform_graph_path: Folder of a TransformGraph artifact.
        label_key: Name of the transformed feature that is the label, or `None`.
    """

    transform_graph_path: str
    label_key: str | None = None

    def __call__(self) -> ServingInputReceiver:
        """Builds the receiver in the current graph."""
        examples = tf.compat.v1.placeholder(tf.string, [None], name=RECEIVER_KEY)
        complete = self._transform(examples, without=frozenset())
        features = (
            self._transform(examples, without=self._label_only)
            if self._label_only
            else {**complete}
        )
        if self.label_key is not None:
            # Gone already where its raw features were left out.
            features.pop(self.label_key, None)
        return ServingInputReceiver(
            features=features,
            receiver_tensors={RECEIVER_KEY: examples},
            host_signatures={
                TRANSFORM_SIGNATURE: HostSignature(
                    inputs={RECEIVER_KEY: examples},
                    outputs={name: _dense(value) for name, value in complete.items()},
                )
            },
        )

    @functools.cached_property
    def _label_only(self) -> frozenset[str]:
        # An export builds a receiver for each metagraph; the search is worth doing once.
        return label_only_raw_features(self.transform_graph_path, self.label_key)

    def _transform(
        self, examples: tf.Tensor, *, without: frozenset[str]
    ) -> dict[str, tf.Tensor | tf.SparseTensor]:
        # A TFTransformOutput keeps the tables of the graph it was first used in.
        output = tft.TFTransformOutput(self.transform_graph_path)
        spec = {k: v for k, v in output.raw_feature_spec().items() if k not in without}
        return dict(output.transform_raw_features(tf.io.parse_example(examples, spec)))


def label_only_raw_features(transform_graph_path: str, label_key: str | None) -> frozenset[str]:
    """Finds the raw features that a serving request need not have.

    Args:
        transform_graph_path: Folder of a TransformGraph artifact.
        label_key: Name of the transformed label, or `None`.

    Returns:
        Names of the raw features that must be in every tf.Example by the raw schema, but from
        which no transformed feature except the label is computed. Features that may be missing
        by the schema (sparse ones, and those with a default) are not listed: they never stand in
        a request's way.
    """
    if label_key is None:
        return frozenset()
    output = tft.TFTransformOutput(transform_graph_path)
    wanted = set(output.transformed_feature_spec()) - {label_key}
    spec = output.raw_feature_spec()
    required = {
        name
        for name, feature in spec.items()
        if isinstance(feature, tf.io.FixedLenFeature) and feature.default_value is None
    }
    return frozenset(
        name
        for name in sorted(required)
        if wanted <= _computable(transform_graph_path, {k: spec[k] for k in spec if k != name})
    )


def _computable(transform_graph_path: str, spec: dict[str, object]) -> set[str]:
    """Names the transformed features that can be computed from the raw ones of `spec`."""
    with tf.Graph().as_default():
        raw = tf.io.parse_example(tf.compat.v1.placeholder(tf.string, [None]), spec)
        output = tft.TFTransformOutput(transform_graph_path)
        return set(output.transform_raw_features(raw, drop_unused_features=True))


def _dense(value: tf.Tensor | tf.SparseTensor) -> tf.Tensor:
    return tf.sparse.to_dense(value) if isinstance(value, tf.SparseTensor) else value
