"""A model that no TPU could run is refused at the export, with the op and the line that made it."""

from __future__ import annotations

import os
import re

import pytest
import tensorflow as tf

from tests.estimator.export import small_export
from tests.estimator.export.small_export import call_model, linear
from tfx_tpu_trainer.estimator import export
from tfx_tpu_trainer.estimator.export._tpu_metagraph import build_tpu_meta_graph
from tfx_tpu_trainer.estimator.tpu import TPUEstimatorSpec, inference_on_tpu

v1 = tf.compat.v1


def _length_of_text(features):
    y = linear(features)
    return {"y": y, "digits": tf.strings.length(tf.as_string(y))}


def _line_of(text):
    with open(__file__, encoding="utf-8") as file:
        return 1 + next(i for i, line in enumerate(file) if text in line)


def test_strings_are_refused_with_their_line():
    line = _line_of("tf.strings.length(tf.as_string(y))}")
    message = (
        rf"no TPU can run AsString 'AsString', which handles strings \({re.escape(__file__)}:{line}: "
        r'return \{"y": y, .*\); StringLength .*outside_compilation\(function.*export_to_tpu=False'
    )
    with pytest.raises(ValueError, match=message) as caught:
        build_tpu_meta_graph(call_model(_length_of_text), small_export.receiver_fn, api_version=1)
    assert "\n" not in str(caught.value)


def test_nothing_is_written(tmp_path):
    model = call_model(_length_of_text)
    checkpoint = small_export.write_checkpoint(model, tmp_path)
    with pytest.raises(ValueError, match="AsString"):
        small_export.export_model(model, tmp_path, checkpoint_path=checkpoint)
    assert not os.path.exists(f"{tmp_path}/versions")


def test_a_table_is_refused():
    def network(features):
        with tf.init_scope():
            initializer = tf.lookup.KeyValueTensorInitializer(
                tf.constant([0, 1], tf.int64), tf.constant([5, 6], tf.int64)
            )
            table = tf.lookup.StaticHashTable(initializer, -1)
        return {"id": table.lookup(tf.cast(linear(features), tf.int64))}

    with pytest.raises(ValueError, match=r"LookupTableFindV2 '.*', which looks up a table"):
        build_tpu_meta_graph(call_model(network), small_export.receiver_fn, api_version=1)


def test_an_op_within_a_branch_is_found_by_the_branchs_line():
    def network(features):
        y = linear(features)
        texts = tf.cond(tf.reduce_sum(y) > 0, lambda: tf.as_string(y), lambda: tf.as_string(-y))
        return {"y": y + tf.strings.to_number(texts)}

    line = _line_of("texts = tf.cond(")
    message = rf"AsString 'AsString' in \w*If 'cond', which handles strings \(.*:{line}: texts ="
    with pytest.raises(ValueError, match=message):
        build_tpu_meta_graph(call_model(network), small_export.receiver_fn, api_version=1)


def test_a_python_function_is_refused_in_version_2_too():
    def compute(x):
        return [tf.numpy_function(lambda value: value, [x], tf.float32)]

    def through_our_call(features):
        return inference_on_tpu(compute, [features["x"]], 1, None, 0)

    def by_hand(features):
        return v1.tpu.rewrite(compute, [features["x"]])

    for rewrite in (through_our_call, by_hand):

        def model(features, labels, mode, use_tpu, rewrite=rewrite):
            return TPUEstimatorSpec(mode, predictions={"y": rewrite(features)[0]})

        with pytest.raises(ValueError, match=r"PyFunc '\w+', which calls Python"):
            build_tpu_meta_graph(model, small_export.receiver_fn, api_version=2)


def test_texts_of_assertions_and_strings_outside_of_the_compilation_are_no_mistake(tmp_path):
    def network(features):
        y = linear(features)
        with tf.control_dependencies([v1.assert_less(tf.abs(y), 1e6, message="too large")]):
            y = tf.identity(y)
        return {"y": y, "text": v1.tpu.outside_compilation(tf.as_string, y)}

    path = small_export.export_model(call_model(network), tmp_path)
    assert small_export.serve(path, {"x": small_export.ROWS})["text"].dtype == object


def test_a_model_for_cpu_hosts_only_may_hold_strings(tmp_path):
    path = small_export.export_model(call_model(_length_of_text), tmp_path, export_to_tpu=False)
    assert small_export.serve(path, {"x": small_export.ROWS})["digits"].shape == (2, 2)


def test_the_receiver_may_hold_strings():
    def receiver_fn():
        text = v1.placeholder(tf.string, [None, 3], name="text")
        return export.ServingInputReceiver({"x": tf.strings.to_number(text)}, {"text": text})

    meta_graph = build_tpu_meta_graph(call_model(linear), receiver_fn, api_version=1)
    assert "serving_default" in meta_graph.signatures
