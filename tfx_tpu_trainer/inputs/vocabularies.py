"""Sizes of the vocabularies that Transform has made, so that a model can size its embeddings."""

from __future__ import annotations

import json
import os

import tensorflow as tf
import tensorflow_transform as tft


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
