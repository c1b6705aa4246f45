from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_tpu_trainer.engine.sessions.opening import default_session_config, placed_by_need
from tfx_tpu_trainer.engine.tracing import fresh_graph

v1 = tf.compat.v1


@pytest.mark.behaviour(27)
def test_the_default_places_softly_and_optimizes_once():
    config = default_session_config()
    rewrite = config.graph_options.rewrite_options
    assert config.allow_soft_placement
    assert rewrite.meta_optimizer_iterations == type(rewrite).ONE


def test_placing_by_need_leaves_the_given_configuration_alone():
    given = v1.ConfigProto(intra_op_parallelism_threads=3)
    used = placed_by_need(given)
    assert used.intra_op_parallelism_threads == 3
    assert used.graph_options.place_pruned_graph
    assert not given.graph_options.place_pruned_graph


def test_a_node_without_a_kernel_is_no_hindrance_unless_it_is_fetched():
    with fresh_graph():
        v1.tpu.cross_replica_sum(tf.constant(1.0))
        answer = tf.constant(42)
        with v1.Session(config=placed_by_need(None)) as session:
            assert session.run(answer) == 42
