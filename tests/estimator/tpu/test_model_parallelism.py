"""Replicas of several cores, emulated as one core each, and under TPUStrategy on CPU devices."""

import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.compiler.xla.experimental import xla_sharding

from tests.bad_input import row
from tests.estimator import linear_model
from tests.estimator.tpu import on_cores
from tests.estimator.tpu.cores.test_layout import topology_of
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.places.shardings import tiled

v1 = tf.compat.v1

pytestmark = pytest.mark.matrix


class TPUStrategyOfCpus(tf.distribute.MirroredStrategy):
    """Two replicas, each a device of this CPU, which pass for two cores of a TPU.

    Attributes:
        shardings: Those in the graph of a step, by the type and the shape of what they annotate.
    """

    # TensorFlow's setting for tests: a training that was broken off earlier in this process leaves the shapes of its
    # sums behind, under the keys that every strategy of two devices begins with.
    _collective_key_base = 1000

    def __init__(self, cores_per_replica: int) -> None:
        super().__init__(["cpu:0", "cpu:1"])
        self.shardings: dict[tuple[str, tuple[int, ...]], bytes] = {}
        self.extended._device_assignment = tf.tpu.experimental.DeviceAssignment.build(
            topology_of(2, 1, 1, 2), computation_shape=[1, 1, 1, cores_per_replica], num_replicas=2
        )

    def run(self, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        result = super().run(fn, args, kwargs, options)
        for op in v1.get_default_graph().get_operations():
            if op.type == "XlaSharding":
                annotated = op.inputs[0].op.type, tuple(op.inputs[0].shape.as_list())
                self.shardings[annotated] = op.get_attr("sharding")
        return result


def _model_fn(features: Any, labels: Any, mode: str, params: Any) -> tpu.TPUEstimatorSpec:
    weights = v1.get_variable("weights", initializer=np.resize(linear_model.WEIGHTS, [4, 1]))
    xla_sharding.split(weights, 0, 2)
    outputs = tf.squeeze(features["x"] @ weights, axis=1)
    loss = tf.reduce_mean(tf.square(outputs - labels))
    optimizer = tpu.CrossShardOptimizer(v1.train.MomentumOptimizer(linear_model.RATE, 0.9))
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def _input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    features, labels = linear_model.rows(32)
    wide = np.concatenate([features, features[:, :1]], axis=1)
    rows = tf.data.Dataset.from_tensor_slices(({"x": wide}, labels)).repeat()
    return rows.batch(params["batch_size"], drop_remainder=True)


def _weights(
    folder: Any, *, strategy: Any = None, batch: int = 8, **tpu_options: Any
) -> np.ndarray:
    options = {"per_host_input_for_training": on_cores.PER_HOST_V2, **tpu_options}
    where = {"master": "emulated"} if strategy is None else {"train_distribute": strategy}
    config = tpu.RunConfig(model_dir=str(folder), tpu_config=tpu.TPUConfig(**options), **where)
    estimator = tpu.TPUEstimator(_model_fn, config=config, train_batch_size=batch)
    estimator.train(_input_fn, steps=3)
    return estimator.get_variable_value("weights")


def test_replicas_of_several_cores_train_to_the_same_numbers(tmp_path):
    strategy = TPUStrategyOfCpus(2)
    dims = [{"x": [1, 2]}, None]
    trained = _weights(
        tmp_path / "strategy", strategy=strategy, num_cores_per_replica=2, input_partition_dims=dims
    )
    emulated = _weights(tmp_path / "emulated", num_shards=2)
    np.testing.assert_allclose(trained, emulated, rtol=1e-5)
    # The input, and the variable and its slot where a step begins.
    rows, columns = tiled([2, 1]).SerializeToString(), tiled([1, 2]).SerializeToString()
    assert set(strategy.shardings.values()) == {rows, columns}
    assert strategy.shardings["ReadVariableOp", (4, 1)] == rows


@row(
    "estimator",
    "`TPUConfig(num_cores_per_replica=2)` under a TPUStrategy whose replicas have one core",
    "TPUConfig(num_cores_per_replica=2) needs replicas of 2 cores",
    "have 1",
    "experimental_device_assignment",
)
def test_the_strategy_must_have_the_cores(tmp_path, refused):
    with refused():
        _weights(tmp_path, strategy=TPUStrategyOfCpus(1), num_cores_per_replica=2)


@row(
    "estimator",
    "`input_partition_dims=[{'x': [2, 1]}]` for one row a replica, under a TPUStrategy",
    "TPUConfig.input_partition_dims[0]",
    "is [2, 1].",
    "has the size 1, which is not divisible by 2 partitions",
)
def test_input_is_cut_evenly(tmp_path, refused):
    options = {"num_cores_per_replica": 2, "input_partition_dims": [{"x": [2, 1]}, None]}
    with refused():
        _weights(tmp_path, strategy=TPUStrategyOfCpus(2), batch=2, **options)


@pytest.mark.behaviour(93, 102)
def test_model_parallelism_is_emulated_as_one_replica(tmp_path):
    def model_fn(features, labels, mode, params):
        assignment = params["context"].device_assignment
        assert (assignment.num_replicas, assignment.num_cores_per_replica) == (2, 4)
        with pytest.raises(ValueError, match="not supported for model_parallelism"):
            _ = params["context"].num_of_replicas_per_host
        assert params["batch_size"] == 4
        return linear_model.model_fn_for(tpu)(features, labels, mode, params)

    estimator = on_cores.make(tmp_path, model_fn, tpu_options={"num_cores_per_replica": 4})
    estimator.train(on_cores.train_input_fn, steps=2)
    on_cores.assert_descended(estimator, 2)


def _annotated(folder, units, cores_per_replica):
    """A model whose hidden layer is split over two cores."""

    def model_fn(features, labels, mode, params):
        kernel = v1.get_variable("kernel", [features["x"].shape[1], units])
        xla_sharding.split(kernel, 1, 2)
        product = tf.matmul(features["x"], kernel)
        hidden = tf.reduce_sum(xla_sharding.split(product, 1, 2, use_sharding_op=True))
        loss = tf.square(hidden - tf.reduce_mean(labels))
        optimizer = tpu.CrossShardOptimizer(v1.train.AdamOptimizer(0.1))
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    options = {"num_cores_per_replica": cores_per_replica}
    return on_cores.make(folder, model_fn, tpu_options=options, tf_random_seed=7)


def test_annotated_tensors_train_as_one_replica(tmp_path):
    losses = []
    for name, per_replica in (("one", None), ("two", 2)):
        estimator = _annotated(tmp_path / name, 4, per_replica)
        estimator.train(on_cores.train_input_fn, steps=2)
        losses.append(estimator.get_variable_value("kernel"))
    np.testing.assert_array_equal(*losses)


@row(
    "estimator",
    "a tensor that `xla_sharding` splits unevenly",
    "which is not divisible by 2 partitions: pad",
)
def test_annotated_tensors_that_do_not_divide(tmp_path, refused):
    with refused(ValueError) as raised:
        _annotated(tmp_path, 5, 2).train(on_cores.train_input_fn, steps=1)
    assert re.match("Dimension 1 of '.*' has the size 5, which", str(raised.value))
    assert "test_model_parallelism.py" in str(raised.value)


def _partitioned(folder, dims):
    options = {
        "num_cores_per_replica": 2,
        "per_host_input_for_training": on_cores.PER_HOST_V2,
        "input_partition_dims": dims,
    }
    return on_cores.linear(folder, tpu_options=options)


@pytest.mark.parametrize(
    "dims",
    [
        [{"x": [2, 1]}, [2]],
        pytest.param([{"x": [1, 2]}, None], marks=pytest.mark.sweep),
        pytest.param([{"x": [2, 1]}], marks=pytest.mark.sweep),
        pytest.param([{"x": None}, [2]], marks=pytest.mark.sweep),
    ],
)
@pytest.mark.behaviour(109, 110)
def test_input_partitions_that_hold_change_nothing(tmp_path, dims):
    estimator = _partitioned(tmp_path, dims)
    estimator.train(on_cores.train_input_fn, steps=2)
    on_cores.assert_descended(estimator, 2)


def _deployments(calls):
    def input_fn(params):
        context = params["context"]
        calls.append((params["batch_size"], *context.current_input_fn_deployment()))
        dataset = linear_model.input_fn({"batch_size": 1}, epochs=10).unbatch()
        return dataset.batch(params["batch_size"], drop_remainder=True)

    return input_fn


@pytest.mark.behaviour(89, 94)
def test_a_replica_wider_than_a_host_is_fed_by_its_own_call(tmp_path):
    calls = []
    options = {"per_host_input_for_training": on_cores.PER_HOST_V2, "num_cores_per_replica": 16}
    estimator = on_cores.linear(tmp_path, cores=2, tpu_options=options)
    estimator.train(_deployments(calls), steps=2)
    device = "/replica:0/task:0/device:CPU:0"
    assert calls == [(4, device, 0, 2, 1), (4, device, 1, 2, 1)]
    assert estimator.get_variable_value("global_step") == 2
