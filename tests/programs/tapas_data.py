"""A tiny table BERT, and tables for it, where the masked words are all one."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import tensorflow as tf

LENGTH = 12
MASKED = {3: 7, 5: 7, 8: 7}
"""Position -> the word that stood there; one word, so that a model learns it in a few steps."""
VOCABULARY = 32
_MASK = 4
_TYPES = 3


def write_config(path: pathlib.Path) -> None:
    """Writes a BertConfig without dropout, so that cores and host compute the same."""
    config = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": LENGTH,
        # Segments, columns, rows, earlier labels, two ranks, relations.
        "type_vocab_size": [_TYPES] * 7,
        "initializer_range": 0.02,
    }
    path.write_text(json.dumps(config), encoding="utf-8")


def write_examples(path: pathlib.Path, *, rows: int, seed: int) -> None:
    """Writes a TFRecord file of examples as TAPAS makes them of tables."""
    random = np.random.default_rng(seed)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(rows):
            writer.write(_example(random).SerializeToString())


def _example(random: np.random.Generator) -> tf.train.Example:
    words = random.integers(12, VOCABULARY, LENGTH)
    words[list(MASKED)] = _MASK
    types = {
        name: random.integers(0, _TYPES, LENGTH)
        for name in (
            "segment_ids",
            "column_ids",
            "row_ids",
            "prev_label_ids",
            "column_ranks",
            "inv_column_ranks",
            "numeric_relations",
        )
    }
    numbers = {
        "input_ids": words,
        "input_mask": np.ones(LENGTH, np.int64),
        **types,
        "masked_lm_positions": list(MASKED),
        "masked_lm_ids": list(MASKED.values()),
        "next_sentence_labels": [int(random.integers(0, 2))],
    }
    feature = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        for name, values in numbers.items()
    }
    feature["masked_lm_weights"] = tf.train.Feature(
        float_list=tf.train.FloatList(value=[1.0] * len(MASKED))
    )
    return tf.train.Example(features=tf.train.Features(feature=feature))
