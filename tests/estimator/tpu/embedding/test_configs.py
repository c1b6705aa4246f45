"""Configurations and parameters check their values when they are made."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator.tpu import experimental

v1 = tf.compat.v1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary_size": 0}, "vocabulary_size must be a positive int, got: 0"),
        ({"dimension": 1.5}, "dimension must be a positive int, got: 1.5"),
        ({"initializer": 0.0}, "initializer must be callable if specified, got: 0.0"),
        ({"combiner": "max"}, "combiner must be .* got: 'max'"),
        ({"learning_rate": 0.1, "learning_rate_fn": float}, "At most one of learning_rate"),
        ({"optimization_parameters": "sgd"}, "optimization_parameters must be one of"),
    ],
)
@pytest.mark.behaviour(356)
def test_a_table_config_checks_its_values(options, message):
    with pytest.raises(ValueError, match=message):
        experimental.TableConfig(**{"vocabulary_size": 10, "dimension": 4, **options})


def test_a_table_starts_from_a_truncated_normal_by_default():
    initializer = experimental.TableConfig(10, 16).initializer
    with tf.Graph().as_default(), v1.Session() as session:
        values = session.run(initializer([1000, 16]))
    assert abs(values).max() <= 2 / 4
    assert values.std() == pytest.approx(0.88 / 4, rel=0.05)


@pytest.mark.parametrize("length", [-1, 1.0])
@pytest.mark.behaviour(356)
def test_a_feature_config_checks_its_length(length):
    with pytest.raises(ValueError, match="max_sequence_length must be zero or a positive int"):
        experimental.FeatureConfig("words", max_sequence_length=length)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: experimental.AdagradParameters(0.1, 0.0), "initial_accumulator must be greater"),
        (lambda: experimental.AdamParameters(0.1, beta1=1.0), "beta1 must be between 0. and 1"),
        (lambda: experimental.AdamParameters(0.1, epsilon=0.0), "epsilon must be positive"),
        (
            lambda: experimental.AdamParameters(
                0.1, lazy_adam=False, use_gradient_accumulation=False
            ),
            "When disabling Lazy Adam",
        ),
        (lambda: experimental.FtrlParameters(0.1, 0.5), "learning_rate_power must be less than"),
        (
            lambda: experimental.FtrlParameters(0.1, l1_regularization_strength=-1.0),
            "l1_regularization_strength must be greater than or equal to 0, got: -1.0",
        ),
        (
            lambda: experimental.ProximalAdagradParameters(0.1, l2_regularization_strength=-1.0),
            "l2_regularization_strength must be greater than or equal to 0, got: -1.0",
        ),
        (
            lambda: experimental.StochasticGradientDescentParameters(
                0.1, use_gradient_accumulation=False, clip_gradient_min=-1.0
            ),
            "gradient accumulation must be enabled",
        ),
    ],
)
def test_parameters_check_their_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()
