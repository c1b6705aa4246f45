import re
import threading

import pytest
import tensorflow as tf
import tf_keras

from tests.estimator._engine.templates import make_template
from tfx_tpu_trainer.estimator._engine.template import HostFunction
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.places.host_functions import (
    TracedHostFunction,
    refuse_captured_tensors,
)
from tfx_tpu_trainer.estimator.places.outside_compilation import (
    OUTSIDE_MARK,
    is_outside,
    outside_marked,
    python_of_gradient,
    with_effects,
)

v1 = tf.compat.v1


def _python(values: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(tf.py_function(tf.square, [values], tf.float32), values.shape)


def _marks(graph: tf.Graph) -> dict[str, str]:
    return {
        op.name: op.get_attr(OUTSIDE_MARK).decode()
        for op in graph.get_operations()
        if is_outside(op.node_def)
    }


def test_each_call_is_a_cluster_of_its_own():
    with fresh_graph() as graph:
        with outside_marked():
            one = v1.tpu.outside_compilation(lambda x: x + 1, tf.constant(1.0))
            two = v1.tpu.outside_compilation(tf.square, one)
            inside = one + two
        after = v1.tpu.outside_compilation(tf.square, inside)
    marks = _marks(graph)
    assert marks[one.op.name] != marks[two.op.name]
    assert inside.op.name not in marks
    assert after.op.name not in marks


def test_a_call_inside_of_another_belongs_to_it():
    def outer(values: tf.Tensor) -> tf.Tensor:
        return tf.sqrt(v1.tpu.outside_compilation(tf.square, values))

    with fresh_graph() as graph, outside_marked():
        v1.tpu.outside_compilation(outer, tf.constant(1.0))
    assert len(set(_marks(graph).values())) == 1


def test_other_threads_are_not_marked():
    made = []

    def trace() -> None:
        with tf.Graph().as_default() as graph:
            v1.tpu.outside_compilation(tf.square, tf.constant(1.0))
            made.append(_marks(graph))

    with fresh_graph(), outside_marked():
        thread = threading.Thread(target=trace)
        thread.start()
        thread.join()
    assert made == [{}]


@pytest.mark.parametrize("by_tape", [False, True])
def test_the_gradient_of_a_python_function_is_known_and_marked(by_tape):
    with fresh_graph(), outside_marked():
        values = tf.constant([1.0, 2.0])
        with tf.GradientTape() as tape:
            tape.watch(values)
            result = v1.tpu.outside_compilation(_python, values)
        gradient = tape.gradient(result, values) if by_tape else tf.gradients(result, values)[0]
    (call,) = [op for op in gradient.graph.get_operations() if python_of_gradient(op)]
    assert python_of_gradient(call).name == "EagerPyFunc"
    assert is_outside(call.node_def)
    assert call.get_attr(OUTSIDE_MARK) != result.op.get_attr(OUTSIDE_MARK)


def test_a_python_function_that_waits_for_another_is_no_gradient():
    with fresh_graph() as graph:
        first = _python(tf.constant([1.0]))
        with tf.control_dependencies([first]):
            _python(tf.constant([2.0]))
    assert not any(map(python_of_gradient, graph.get_operations()))


def test_a_loss_waits_for_effects_and_for_nothing_else():
    with fresh_graph(), outside_marked():
        loss = tf.constant(1.0)
        template = make_template("train", loss=loss)
        assert with_effects(template) is template
        v1.tpu.outside_compilation(tf.square, loss)
        assert with_effects(template) is template
        printed = v1.tpu.outside_compilation(tf.print, loss)
        waiting = with_effects(template)
    assert waiting.loss.op.control_inputs == [printed]


def _host(function, tensors):
    return HostFunction("host_call", function, tensors)


@pytest.mark.behaviour(243)
def test_a_scalar_has_no_batch_to_gather():
    with fresh_graph():
        scalar = _host(lambda x: x, [tf.constant(1.0)])
        with pytest.raises(
            RuntimeError, match=r"should preserve batch size .*reshape\(tensor, \[1\]"
        ):
            TracedHostFunction(scalar, cores=2, broadcast=False)
        TracedHostFunction(scalar, cores=2, broadcast=True)


@pytest.mark.parametrize("make", [v1.summary.scalar, v1.summary.histogram])
@pytest.mark.behaviour(246)
def test_v1_summaries_are_refused(make):
    with fresh_graph():
        host = _host(lambda x: make("s", x[0]), [tf.constant([1.0])])
        with pytest.raises(ValueError, match="creates a summary of the v1 API"):
            TracedHostFunction(host, cores=1, broadcast=False)


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
    says = r"'x_of_core' is model_fn's features\['x'\], and is used at .*test_outside_compilation.py:\d+: "
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
