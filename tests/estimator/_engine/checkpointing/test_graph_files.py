"""One conversion of a graph for all who ask for it."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.checkpointing.graph_files import converted_once


def _is_as_it_was(graph):
    return getattr(graph.as_graph_def, "__func__", None) is tf.Graph.as_graph_def


def test_everybody_gets_a_copy_of_his_own():
    graph = tf.Graph()
    with graph.as_default(), converted_once(graph):
        tf.constant([1.0], name="one")
        first = graph.as_graph_def(add_shapes=True)
        assert "_output_shapes" in first.node[0].attr
        del first.node[:]
        assert [node.name for node in graph.as_graph_def(add_shapes=True).node] == ["one"]
        # Asked for in another way, and when it has grown.
        assert "_output_shapes" not in graph.as_graph_def().node[0].attr
        tf.constant(2.0, name="two")
        assert [node.name for node in graph.as_graph_def(add_shapes=True).node] == ["one", "two"]


def test_a_block_inside_of_another_ends_nothing():
    graph = tf.Graph()
    with converted_once(graph):
        with converted_once(graph):
            pass
        assert not _is_as_it_was(graph)
    assert _is_as_it_was(graph)


def test_an_error_ends_it_too():
    graph = tf.Graph()
    with pytest.raises(KeyError, match="mine"), converted_once(graph):
        raise KeyError("mine")
    assert _is_as_it_was(graph)
