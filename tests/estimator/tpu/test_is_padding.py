from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator.tpu._is_padding import with_padding, without_padding


def test_the_key_is_there_for_who_looks_it_up_only():
    padding = tf.constant([False, True])
    features = with_padding({"x": 1}, padding)
    assert features["is_padding"] is padding
    assert list(features) == list(features.keys()) == ["x"]
    assert features == {"x": 1}
    assert "is_padding" not in features
    assert features.get("is_padding") is None
    with pytest.raises(KeyError, match="y"):
        _ = features["y"]
    assert tf.nest.map_structure(lambda value: value + 1, features) == {"x": 2}


def test_a_feature_of_that_name_is_the_users():
    assert with_padding({"is_padding": 5}, tf.constant([True]))["is_padding"] == 5


def test_what_is_no_dict_stays_as_it_is():
    for features in (tf.constant([1.0]), (1, 2), None):
        assert with_padding(features, tf.constant([True])) is features


def test_on_the_host_nothing_is_padding():
    features = without_padding({"x": tf.zeros([3, 2])})
    assert features["is_padding"].numpy().tolist() == [False] * 3
    with pytest.raises(KeyError, match="is_padding"):
        _ = without_padding({"x": tf.constant(1.0)})["is_padding"]


def test_nobody_asks_nothing_is_made():
    with tf.Graph().as_default() as graph:
        features = without_padding({"x": tf.zeros([3])})
        made = len(graph.get_operations())
        assert dict(features)["x"] is features["x"]
        assert len(graph.get_operations()) == made
        _ = features["is_padding"]
        assert len(graph.get_operations()) > made
