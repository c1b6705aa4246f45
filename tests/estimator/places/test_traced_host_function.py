from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import GraphCopier
from tfx_tpu_trainer.estimator._engine.template import HostFunction
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.places.traced_host_function import (
    TracedHostFunction,
    trace_host_function,
)

v1 = tf.compat.v1


def _host(function, tensors):
    return HostFunction("host_call", function, tensors)


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"cores": 4, "broadcast": False}, [8, 3]),
        ({"cores": 4, "broadcast": False, "full": False}, [None, 3]),
        ({"cores": 4, "broadcast": True}, [2, 3]),
    ],
)
@pytest.mark.behaviour(198, 200)
def test_the_function_sees_the_gathered_shape(options, shape):
    seen = []
    with fresh_graph():
        x = v1.placeholder(tf.float32, [2, 3])
        traced = TracedHostFunction(_host(lambda x: seen.append(x.shape), {"x": x}), **options)
        assert [s.as_list() for s in seen] == [shape]
        assert len(traced.fetches()) == (1 if options["broadcast"] else 4)


@pytest.mark.behaviour(242)
def test_copies_are_put_one_after_the_other_and_the_result_is_copied():
    with fresh_graph():
        x = v1.placeholder(tf.float32, [1])
        total = v1.get_variable("total", initializer=0.0)
        host = _host(lambda x: [total.assign_add(tf.reduce_sum(x)), x * 2], [x])
        traced = TracedHostFunction(host, cores=3, broadcast=False)
        copier = GraphCopier(v1.get_default_graph())
        gathered = traced.gathered([tf.constant([float(core)]) for core in range(3)])
        _, doubled = traced.copy(copier, gathered, traced.result, name="copy")
        run = traced.run(copier, gathered, name="run")
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            np.testing.assert_array_equal(session.run(doubled), [0, 2, 4])
            session.run([run])
            assert session.run(total) == 3


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


@pytest.mark.behaviour(250)
def test_without_tensors_it_is_never_called():
    with fresh_graph():
        empty = _host(lambda: pytest.fail("called"), [])
        assert trace_host_function(empty, cores=2, broadcast=False) is None
        assert trace_host_function(None, cores=2, broadcast=False) is None
