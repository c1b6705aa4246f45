"""Adam for some rows, against its formula and TensorFlow's optimizer."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator.tpu.embedding.sparse_adam import SparseAdam

v1 = tf.compat.v1

RATE, BETA1, BETA2, EPSILON = 0.1, 0.8, 0.9, 1e-3
START = np.cos(np.arange(8)).reshape(4, 2).astype(np.float32)
GRADIENTS = [
    (np.float32([[1, -2], [0.5, 0.25]]), [0, 2]),
    (np.float32([[-1, 3]]), [2]),
    (np.float32([[0.1, 0.2], [2, 2]]), [3, 0]),
]


def _train(adam: SparseAdam) -> dict[str, np.ndarray]:
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("table", initializer=START, use_resource=True)
        values, rows = v1.placeholder(tf.float32, [None, 2]), v1.placeholder(tf.int32, [None])
        step = v1.placeholder(tf.int64, [])
        gradient = tf.IndexedSlices(values, rows)
        op = adam.apply(table, gradient, rate=tf.constant(RATE), step=step)
        session.run(v1.global_variables_initializer())
        for number, (some, of_rows) in enumerate(GRADIENTS):
            session.run(op, {values: some, rows: of_rows, step: number})
        return {variable.op.name: session.run(variable) for variable in v1.global_variables()}


def _by_formula(*, lazy: bool, sum_inside_sqrt: bool) -> dict[str, np.ndarray]:
    table, m, v = START.astype(np.float64), np.zeros((4, 2)), np.zeros((4, 2))
    for number, (values, rows) in enumerate(GRADIENTS, start=1):
        gradient = np.zeros((4, 2))
        gradient[rows] = values
        touched = rows if lazy else slice(None)
        m[touched] = BETA1 * m[touched] + (1 - BETA1) * gradient[touched]
        v[touched] = BETA2 * v[touched] + (1 - BETA2) * gradient[touched] ** 2
        rate = RATE * np.sqrt(1 - BETA2**number) / (1 - BETA1**number)
        divisor = np.sqrt(v + EPSILON**2) if sum_inside_sqrt else np.sqrt(v) + EPSILON
        table[touched] -= (rate * m / divisor)[touched]
    return {"table": table, "table/Adam": m, "table/Adam_1": v}


@pytest.mark.parametrize("sum_inside_sqrt", [False, True])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.behaviour(363)
def test_adam_is_its_formula(lazy, sum_inside_sqrt):
    options = {"lazy": lazy, "sum_inside_sqrt": sum_inside_sqrt}
    got = _train(SparseAdam(beta1=BETA1, beta2=BETA2, epsilon=EPSILON, **options))
    expected = _by_formula(**options)
    assert set(got) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=2e-5, atol=1e-6, err_msg=name)
