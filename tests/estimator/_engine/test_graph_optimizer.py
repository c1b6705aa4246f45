from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.graph_optimizer import (
    keep_dependencies_only,
    optimize_dependencies_only,
)

v1 = tf.compat.v1


def test_the_pass_over_control_dependencies_runs_alone_and_once():
    config = v1.ConfigProto(intra_op_parallelism_threads=3)
    keep_dependencies_only(config)
    rewrite = config.graph_options.rewrite_options
    assert rewrite.meta_optimizer_iterations == type(rewrite).ONE
    assert rewrite.dependency_optimization == type(rewrite).DEFAULT
    assert rewrite.constant_folding == rewrite.remapping == type(rewrite).OFF
    assert rewrite.memory_optimization == type(rewrite).NO_MEM_OPT
    assert config.intra_op_parallelism_threads == 3


def _config_of_call() -> v1.ConfigProto:
    with tf.Graph().as_default():
        doubled = tf.function(lambda x: x * 2, autograph=False)(tf.constant(21))
        optimize_dependencies_only(doubled.op)
        with v1.Session() as session:
            assert session.run(doubled) == 42
        return v1.ConfigProto.FromString(doubled.op.get_attr("config_proto"))


def test_the_function_of_a_call_gets_one_pass():
    rewrite = _config_of_call().graph_options.rewrite_options
    assert rewrite.constant_folding == type(rewrite).OFF


@pytest.fixture
def remapping_off():
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"remapping": False})
    yield
    tf.config.optimizer.set_experimental_options({"remapping": before.get("remapping", True)})


@pytest.mark.usefixtures("remapping_off")
def test_what_a_program_sets_of_the_optimizer_stays():
    rewrite = _config_of_call().graph_options.rewrite_options
    assert rewrite.remapping == type(rewrite).OFF
    assert rewrite.constant_folding == type(rewrite).DEFAULT
