"""Random taxi rides, and Transform's answer to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import apache_beam as beam
import numpy as np
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam

UNSEEN = {"payment_type": b"Shells", "company": "Früher & Söhne".encode()}


def random_rides(rides: Sequence[tf.train.Example], count: int) -> list[tf.train.Example]:
    """Makes rides with random values, each from another real ride.

    Each value but the fare is missing from some; some words are in no vocabulary. No two fares are
    the same: rides can be told apart by what Transform makes of them.
    """
    random = np.random.RandomState(5)
    names = sorted({name for ride in rides for name in ride.features.feature})
    fares = 3.0 + 0.05 * random.permutation(count)
    made = []
    for fare in fares:
        ride = tf.train.Example()
        for name in names:
            source = rides[random.randint(len(rides))].features.feature
            if name != "tips" and random.uniform() > 0.15 and name in source:
                ride.features.feature[name].CopyFrom(source[name])
            if name in UNSEEN and random.uniform() < 0.1:
                ride.features.feature[name].bytes_list.value[:] = [UNSEEN[name]]
        ride.features.feature["fare"].float_list.value[:] = [fare]
        made.append(ride)
    return made


def transform(rides: Sequence[tf.train.Example], transform_graph: str, folder: Path) -> str:
    """Runs Transform's graph in Beam; gives the pattern of the files that it writes."""
    output = tft.TFTransformOutput(transform_graph)
    raw_spec = output.raw_feature_spec()
    coder = tft.coders.ExampleProtoCoder(output.transformed_metadata.schema)
    context = tft_beam.Context(temp_dir=str(folder / "tmp"), force_tf_compat_v1=True)
    with beam.Pipeline() as pipeline, context:
        raw = pipeline | beam.Create([_instance(ride, raw_spec) for ride in rides])
        transform_fn = pipeline | tft_beam.ReadTransformFn(transform_graph)
        transformed, _ = ((raw, output.raw_metadata), transform_fn) | tft_beam.TransformDataset()
        encoded = transformed | beam.Map(coder.encode)
        encoded | beam.io.WriteToTFRecord(str(folder / "rides"), num_shards=1)
    return str(folder / "rides*")


def values(ride: tf.train.Example, name: str) -> list:
    """Returns the values of a feature; none if it is missing."""
    if name not in ride.features.feature:
        return []
    feature = ride.features.feature[name]
    return list(getattr(feature, feature.WhichOneof("kind")).value)


def _instance(ride: tf.train.Example, raw_spec: dict) -> dict[str, list]:
    return {name: values(ride, name) for name in raw_spec}
