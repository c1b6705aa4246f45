import threading

import pytest
import tensorflow as tf

from tests.estimator._engine.templates import make_template
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
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
