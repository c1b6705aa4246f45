from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.engine.feeding.hidden_shapes import hide, hide_open_batches
from tfx_tpu_trainer.engine.tracing import fresh_graph

v1 = tf.compat.v1


def test_values_and_the_shapes_that_python_sees_stay():
    with fresh_graph():
        x = v1.placeholder(tf.float32, [None, 2])
        word = v1.placeholder_with_default(tf.constant([7], tf.int64), [None])
        hidden = hide_open_batches(({"x": x, "word": word}, x))
        assert hidden[0]["x"].shape.as_list() == [None, 2]
        assert hidden[0]["word"].dtype == tf.int64
        with v1.Session() as session:
            value = session.run(hidden[0]["x"], {x: [[1, 2], [3, 4]]})
    np.testing.assert_array_equal(value, [[1, 2], [3, 4]])


def test_what_is_known_sparse_ragged_or_absent_is_left_alone():
    with fresh_graph():
        structure = {
            "known": tf.zeros([2, 3]),
            "sparse": v1.sparse_placeholder(tf.float32, [None, 3]),
            "ragged": v1.ragged.placeholder(tf.float32, 1),
            "absent": None,
        }
        assert hide_open_batches(structure) is structure


@pytest.mark.parametrize("hidden", [True, False])
def test_a_reshape_in_a_loop_is_believed_by_the_optimizer_unless_it_is_hidden(hidden):
    """Should TensorFlow stop to believe it, the module can go."""

    def batch_sum(x):
        if hidden:
            (x,) = hide([x], [tf.TensorShape(None)])
        return tf.reduce_sum(tf.reshape(x, [4, 2]) + 1.0)

    with fresh_graph(), v1.Session() as session:
        dataset = tf.data.Dataset.from_tensor_slices(np.ones([6, 2], np.float32)).batch(4)
        iterator = v1.data.make_initializable_iterator(dataset)

        @tf.function(autograph=False)
        def both_batches():
            def body(number, total):
                return number + 1, total + batch_sum(iterator.get_next())

            return tf.while_loop(lambda number, total: number < 2, body, (0, 0.0))[1]

        total = both_batches()
        session.run(iterator.initializer)
        if hidden:
            with pytest.raises(tf.errors.InvalidArgumentError, match="Input to reshape"):
                session.run(total)
        else:
            assert session.run(total) == 24
