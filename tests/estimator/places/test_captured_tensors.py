from __future__ import annotations

import re

import pytest
import tensorflow as tf
import tf_keras

from tests.estimator._engine.templates import make_template
from tfx_tpu_trainer.estimator._engine.template import HostFunction
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.places.captured_tensors import refuse_captured_tensors

v1 = tf.compat.v1


def _calls(function, *, name="eval_metrics"):
    """Calls a host function of `model`, which it is made from, as a placement does."""
    with fresh_graph():
        features = {"x": v1.placeholder(tf.float32, [2], name="x_of_core")}
        model = {
            "x": features["x"],
            "doubled": tf.multiply(features["x"], 2.0, name="doubled"),
            "loss": tf.reduce_sum(features["x"], name="loss"),
            "variable": v1.get_variable("v", initializer=1.0),
            "rate": 0.1 * tf.cast(v1.train.get_or_create_global_step(), tf.float32),
        }
        given = v1.placeholder(tf.float32, [4], name="given")
        field = {name: HostFunction(name, function(model), [model["doubled"]])}
        template = make_template("eval", features=features, **field)
        checked = getattr(refuse_captured_tensors(template, runs_on="TPU cores"), name)
        return checked.function(given)


def _updated_in_model_fn(model):
    metric = tf_keras.metrics.Mean()
    metric.update_state(model["doubled"])
    return lambda given: {"m": metric}


@pytest.mark.parametrize(
    ("function", "use"),
    [
        (lambda m: lambda given: tf.reduce_sum(m["doubled"]) + given, "as input to 'Sum'"),
        (lambda m: lambda given: given + m["doubled"], "as input to 'add'"),
        (
            lambda m: (
                lambda given: tf.cond(tf.reduce_any(given > 0), lambda: m["doubled"], lambda: given)
            ),
            "as input to 'cond'",
        ),
        (
            lambda m: lambda given: tf.function(lambda: m["doubled"] + 1, autograph=False)(),
            "as input to 'PartitionedCall'",
        ),
        (lambda m: lambda given: {"m": (given, m["doubled"])}, "as a result of eval_metrics"),
    ],
    ids=["op", "op of other rows", "condition", "function", "result"],
)
def test_a_captured_tensor_is_named_with_its_line(function, use):
    says = (
        f"Cannot use 'doubled' {use} because 'doubled' is part of the computation on TPU cores: the "
        "function of eval_metrics runs on the host and must not capture tensors of model_fn. "
        f"'doubled' was made at {__file__}:"
    )
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        _calls(function)
    assert 'name="doubled")' in str(caught.value)
    assert "as an argument, eval_metrics=(function, [..., tensor]); variables" in str(caught.value)


def test_a_captured_feature_is_called_as_the_user_calls_it():
    says = r"'x_of_core' is model_fn's features\['x'\], and is used at .*captured_tensors.py:\d+: "
    with pytest.raises(ValueError, match=says + r".*\. Give .* host_call=\("):
        _calls(lambda m: lambda given: tf.reduce_sum(m["x"]), name="host_call")


def test_a_summary_is_the_users_line_and_not_a_librarys(tmp_path):
    def write(model):
        def host_call(given):
            with tf.summary.create_file_writer(str(tmp_path)).as_default():
                tf.summary.scalar("loss", model["loss"], step=0)
                return v1.summary.all_v2_summary_ops()

        return host_call

    used = rf"is used at {re.escape(__file__)}:\d+: tf\.summary\.scalar"
    with pytest.raises(ValueError, match=used):
        _calls(write, name="host_call")


def test_what_waits_for_a_tensor_of_the_model_captures_it():
    def function(model):
        def waits(given):
            with tf.control_dependencies([model["doubled"]]):
                return tf.identity(given)

        return waits

    with pytest.raises(ValueError, match=r"^Cannot use 'doubled' as input to 'Identity"):
        _calls(function)


def test_a_keras_metric_that_model_fn_updated_captures_too():
    with pytest.raises(ValueError, match=r"^Cannot use '.*' as a result of eval_metrics"):
        _calls(_updated_in_model_fn)


@pytest.mark.parametrize("name", ["variable", "rate"])
def test_what_needs_no_input_may_be_captured(name):
    result = _calls(lambda m: lambda given: {"m": v1.metrics.mean(given * m[name])})
    assert set(result) == {"m"}


def test_its_own_tensors_are_none_of_the_models():
    made = _calls(lambda m: lambda given: given + v1.placeholder_with_default(1.0, ()))
    assert made.shape == [4]
