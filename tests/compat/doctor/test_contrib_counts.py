"""The table of what public programs use of tf.contrib, held against the counts and the doctor's rules."""

import collections

from scripts import document_contrib

COUNTS = document_contrib.counts()
NAMES = COUNTS["names"]


def test_the_page_has_today_s_table():
    text = document_contrib.PAGE.read_text("utf-8")
    assert document_contrib.page(text) == text


def test_most_of_what_programs_use_is_there():
    there = document_contrib.covered(NAMES)
    assert sum(NAMES[name] for name in there) >= 0.95 * sum(NAMES.values())
    assert {"layers.layer_norm", "training.HParams", "slim.conv2d", "summary.scalar"} <= there
    assert not {"quantize.create_eval_graph", "learn.Experiment", "slim.metrics.mean"} & there


def test_the_counts_are_of_many_packages():
    assert set(COUNTS["packages"]) == set(document_contrib.PACKAGES)
    assert sum(bool(uses) for uses in COUNTS["packages"].values()) > 20
    assert sum(COUNTS["packages"].values()) == sum(NAMES.values())


def test_uses_are_counted_by_import_alias_and_attribute():
    source = b"""
import tensorflow as tf
import tensorflow.contrib.layers as layers
from tensorflow.contrib import slim as s
from tensorflow.contrib.training import HParams
from other import contrib

slim = tf.contrib.slim
x = tf.contrib.layers.conv2d(slim.flatten(s.flatten(tf.zeros([1]))))
y = layers.conv2d(x)
z = HParams(a=tf.contrib.tpu.InputPipelineConfig.PER_HOST_V2)
contrib.layers.conv2d(z)
"""
    assert document_contrib.names_in(source) == collections.Counter(
        {
            "layers.conv2d": 2,
            "slim.flatten": 2,
            "training.HParams": 1,
            "tpu.InputPipelineConfig": 1,
        }
    )
