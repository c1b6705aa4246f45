"""How replicas put their gradients together, for models that know of no strategy and for those that do."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.estimator import linear_model
from tests.estimator.places.strategy import strategy_runs as runs
from tests.estimator.tpu import on_cores
from tfx_tpu_trainer import estimator as tfe
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import GraphCopier
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.places.strategy.replica_stages import ReplicaStages

v1 = tf.compat.v1


pytestmark = pytest.mark.matrix


RATE = linear_model.RATE


def _trained(folder: Any, model_fn: Any, steps: int = 3) -> tfe.Estimator:
    return runs.make(folder, runs.mirrored(), model_fn).train(runs.train_input_of(), steps=steps)


def _keras_step(loss: tf.Tensor) -> tf.Operation:
    optimizer = tf.keras.optimizers.legacy.SGD(RATE)
    optimizer.iterations = v1.train.get_global_step()
    variables = v1.trainable_variables()
    return optimizer.apply_gradients(zip(optimizer.get_gradients(loss, variables), variables))


def test_a_v1_optimizer_takes_the_mean_over_the_replicas(tmp_path):
    on_cores.assert_descended(_trained(tmp_path, runs.model_fn_for()), 3)


def test_a_v1_optimizer_takes_the_sum_of_a_loss_that_is_a_sum(tmp_path):
    def loss_fn(outputs, labels):
        summed = v1.losses.Reduction.SUM
        return v1.losses.mean_squared_error(labels, outputs, reduction=summed)

    trained = _trained(tmp_path, runs.model_fn_for(loss_fn=loss_fn), steps=2)
    weights, bias = runs.summed_descent(2, RATE)
    np.testing.assert_allclose(trained.get_variable_value("linear/weights"), weights, rtol=1e-5)
    np.testing.assert_allclose(trained.get_variable_value("linear/bias"), bias, rtol=1e-5)


class Bounded(tf_keras.optimizers.Optimizer):
    """Takes a step that shows whether gradients were summed before: it is not linear in them."""

    def __init__(self):
        super().__init__("Bounded")
        self._learning_rate = self._build_learning_rate(RATE)

    def update_step(self, gradient, variable):
        variable.assign_sub(self._learning_rate * gradient / (1 + tf.abs(gradient)))

    def get_config(self):
        return super().get_config()


TODAYS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: tf_keras.optimizers.SGD(RATE, momentum=0.9, clipnorm=0.1),
    "adam": lambda: tf_keras.optimizers.Adam(RATE),
    "own": Bounded,
    "keras_3": lambda: keras.optimizers.Adam(RATE),
}


@pytest.mark.sweep
def test_a_keras_optimizer_takes_the_sum(tmp_path):
    def loss_fn(outputs, labels):
        # As in TensorFlow's guide of strategies: over the rows of all replicas.
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        rows = runs.SHARE * replicas
        return tf.reduce_sum(tf.square(outputs - labels)) / rows

    on_cores.assert_descended(_trained(tmp_path, runs.model_fn_for(_keras_step, loss_fn)), 3)


def test_todays_keras_optimizers_take_the_sum(tmp_path):
    def model_fn(features, labels, mode):
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        steps = [v1.assign_add(v1.train.get_global_step(), 1)]
        for name, optimizer in TODAYS.items():
            weights = v1.get_variable(name, initializer=linear_model.WEIGHTS)
            outputs = tf.linalg.matvec(features["x"], weights)
            loss = tf.reduce_mean(tf.square(outputs - labels)) / replicas
            (gradient,) = tf.gradients(loss, [weights])
            steps.append(optimizer().apply_gradients([(gradient, weights)]))
        return tfe.EstimatorSpec(mode, loss=loss, train_op=tf.group(*steps))

    several = _trained(tmp_path / "several", model_fn)
    one = runs.make(tmp_path / "one", None, model_fn)
    one.train(runs.train_input_of(on_cores.BATCH), steps=3)
    assert several.get_variable_names() == one.get_variable_names()
    for name in one.get_variable_names():
        value = one.get_variable_value(name)
        np.testing.assert_allclose(several.get_variable_value(name), value, rtol=1e-5, err_msg=name)


def test_a_cross_shard_optimizer_combines_once(tmp_path):
    def step(loss):
        optimizer = v1.tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(RATE))
        return optimizer.minimize(loss, v1.train.get_global_step())

    on_cores.assert_descended(_trained(tmp_path, runs.model_fn_for(step)), 3)


def test_gradients_that_the_model_clips_are_clipped_before_they_are_put_together(tmp_path):
    limit = 0.3

    def step(loss):
        optimizer = v1.train.GradientDescentOptimizer(RATE)
        pairs = optimizer.compute_gradients(loss)
        clipped = [(tf.clip_by_value(each, -limit, limit), variable) for each, variable in pairs]
        return optimizer.apply_gradients(clipped, v1.train.get_global_step())

    trained = _trained(tmp_path, runs.model_fn_for(step), steps=1)
    total = np.zeros(3)
    for features, labels in linear_model.batches(runs.SHARE)[: runs.REPLICAS]:
        error = linear_model.output(features) - labels
        gradient = 2 * features.T @ error / len(labels) / runs.REPLICAS
        total += np.clip(gradient, -limit, limit)
    weights = linear_model.WEIGHTS - RATE * total
    np.testing.assert_allclose(trained.get_variable_value("linear/weights"), weights, rtol=1e-5)


def test_a_model_reduces_over_the_replicas_itself(tmp_path):
    seen = {}

    def loss_fn(outputs, labels):
        replica = tf.distribute.get_replica_context()
        seen["replicas"] = replica.num_replicas_in_sync
        rows = replica.all_reduce("SUM", tf.shape(labels)[0])
        mean = replica.all_reduce("MEAN", tf.reduce_mean(labels))
        loss = tf.reduce_sum(tf.square(outputs - labels)) / tf.cast(rows, tf.float32)
        # Each replica's number and the labels' mean show in the loss, but teach nothing.
        return loss + tf.cast(replica.replica_id_in_sync_group, tf.float32) + mean

    losses = runs.Losses()
    estimator = runs.make(tmp_path, runs.mirrored(), runs.model_fn_for(_keras_step, loss_fn))
    estimator.train(runs.train_input_of(), hooks=[losses], steps=1)
    on_cores.assert_descended(estimator, 1)
    assert seen == {"replicas": runs.REPLICAS}
    (loss,), _, _ = on_cores.descended(1)
    labels = linear_model.batches(on_cores.BATCH)[0][1]
    expected = loss / runs.REPLICAS + np.mean(range(runs.REPLICAS)) + labels.mean()
    assert losses.seen == pytest.approx([expected], rel=1e-5)


def test_the_gradient_of_a_sum_over_replicas_is_a_sum(tmp_path):
    """The mean over replicas of w * x, squared, is the loss of each: its gradient by hand."""

    def model_fn(features, labels, mode):
        weight = v1.get_variable("weight", initializer=0.5)
        replica = tf.distribute.get_replica_context()
        mean = replica.all_reduce("MEAN", weight * tf.reduce_mean(features["x"]))
        loss = tf.square(mean)
        return tfe.EstimatorSpec(mode, loss=loss, train_op=runs.sgd_step(loss))

    trained = _trained(tmp_path, model_fn, steps=1)
    x = linear_model.batches(on_cores.BATCH)[0][0].mean()
    # Each replica's gradient is all replicas' mean of 2 y x, and the optimizer takes their mean.
    expected = 0.5 - RATE * 2 * (0.5 * x) * x
    assert trained.get_variable_value("weight") == pytest.approx(expected, rel=1e-5)


def test_a_train_op_that_each_replica_would_make_on_its_own_is_refused(tmp_path):
    def step(loss):
        (variable, *_) = v1.trainable_variables()
        step = v1.assign_add(v1.train.get_global_step(), 1)
        return tf.group(variable.assign_sub(tf.ones([3])), step)

    says = r"no sum over the replicas of MirroredStrategy \(2 replicas\).*all_reduce"
    with pytest.raises(ValueError, match=says):
        _trained(tmp_path, runs.model_fn_for(step))


LABELS = [[float(index % 4)] for index in range(16)]


def _canned(folder: Any, strategy: Any, make: Any) -> Any:
    config = tfe.RunConfig(
        str(folder), tf_random_seed=3, train_distribute=strategy, eval_distribute=strategy
    )
    return make([tf.feature_column.numeric_column("x")], config)


CANNED = {
    "linear_regressor": lambda columns, config: tfe.LinearRegressor(
        columns, optimizer="SGD", config=config
    ),
    "linear_regressor_v1": lambda columns, config: v1_linear(columns, config),
    "dnn_classifier": lambda columns, config: tfe.DNNClassifier(
        [4], columns, n_classes=4, optimizer=tf.keras.optimizers.legacy.Adam(0.05), config=config
    ),
}


def v1_linear(columns: Any, config: Any) -> Any:
    from tfx_tpu_trainer.estimator import v1 as tfe_v1

    # Its loss is a sum over the rows.
    optimizer = v1.train.GradientDescentOptimizer(0.01)
    return tfe_v1.LinearRegressor(columns, optimizer=optimizer, config=config)


@runs.cases("name", "linear_regressor", swept=("linear_regressor_v1", "dnn_classifier"))
def test_a_canned_estimator_trains_as_on_one_device(tmp_path, name):
    rows = {"x": [[0.1 * index] for index in range(16)]}
    labels = np.array(LABELS, np.int64 if "classifier" in name else np.float32)

    def input_of(batch):
        def input_fn():
            dataset = tf.data.Dataset.from_tensor_slices((rows, labels)).repeat()
            return dataset.batch(batch, drop_remainder=True)

        return input_fn

    one = _canned(tmp_path / "one", None, CANNED[name])
    several = _canned(tmp_path / "several", runs.mirrored(), CANNED[name])
    one.train(input_of(8), steps=3)
    several.train(input_of(4), steps=3)
    assert one.get_variable_names() == several.get_variable_names()
    for variable in one.get_variable_names():
        np.testing.assert_allclose(
            several.get_variable_value(variable),
            one.get_variable_value(variable),
            rtol=1e-4,
            atol=1e-6,
            err_msg=variable,
        )
    # The loss of v1 estimators is a sum over the rows of a batch, so batches must be the same.
    expected = one.evaluate(input_of(4), steps=4)
    assert several.evaluate(input_of(4), steps=2) == pytest.approx(expected, rel=1e-4)


REPLICAS = 3


def _run(graph: ReplicaStages, replaced, **options):
    """Copies the graph into a function and calls it; every replica has the same addends."""
    rounds = []

    def sum_over_replicas(addends):
        rounds.append(len(addends))
        return [addend * REPLICAS for addend in addends]

    def call():
        copies = graph.copy(replaced(), sum_over_replicas=sum_over_replicas, **options)
        effects = [copy for copy in copies if isinstance(copy, tf.Operation)]
        with tf.control_dependencies(effects):
            return [tf.identity(copy) for copy in copies if not isinstance(copy, tf.Operation)]

    return [tensor.numpy() for tensor in tf.function(call, autograph=False)()], rounds


def test_sums_that_feed_sums_are_made_in_as_many_rounds():
    with fresh_graph() as graph:
        x = v1.placeholder(tf.float32, [2])
        first = v1.tpu.cross_replica_sum(x)
        beside = v1.tpu.cross_replica_sum(x * 2)
        second = v1.tpu.cross_replica_sum(first + x)
        third = v1.tpu.cross_replica_sum(second * beside)
        replica = ReplicaStages(GraphCopier(graph), [third, x, first], inputs=[x])
    value = np.array([1.0, -2.0], np.float32)
    (total, same, once), rounds = _run(replica, lambda: {x.name: tf.constant(value)})
    assert rounds == [2, 1, 1]
    np.testing.assert_allclose(same, value)
    np.testing.assert_allclose(once, 3 * value)
    np.testing.assert_allclose(total, 3 * (3 * (3 * value + value)) * (3 * 2 * value))


def test_an_assignment_before_a_sum_is_made_once_and_waited_for():
    with fresh_graph() as graph:
        x = v1.placeholder(tf.float32, [])
        count = v1.get_variable("count", initializer=0.0)
        counted = tf.group(count.assign_add(x, read_value=False))
        total = v1.tpu.cross_replica_sum(x)
        with tf.control_dependencies([counted, total]):
            after = count.read_value() + total
        replica = ReplicaStages(GraphCopier(graph), [after, counted], inputs=[x])
    ours = tf.Variable(10.0)
    given = {x.name: tf.constant(1.0)}
    (value,), _ = _run(
        replica, lambda: {**given, **{handle.name: ours.handle for handle in replica.handles}}
    )
    assert value == 10 + 1 + REPLICAS
    assert ours.numpy() == 11


def test_replicas_draw_different_numbers_and_each_draws_them_once():
    with fresh_graph(seed=7) as graph:
        drawn = tf.random.uniform([1000])
        total = v1.tpu.cross_replica_sum(drawn)
        replica = ReplicaStages(GraphCopier(graph), [drawn, total], inputs=[])
    (drawn0, total0), _ = _run(replica, dict, replica=0)
    (drawn1, total1), _ = _run(replica, dict, replica=1)
    np.testing.assert_allclose(total0, drawn0 * REPLICAS)
    np.testing.assert_allclose(total1, drawn1 * REPLICAS)
    assert np.abs(drawn0 - drawn1).max() > 0.1


def test_sums_over_a_group_of_the_replicas_are_refused():
    with fresh_graph() as graph:
        total = v1.tpu.cross_replica_sum(tf.constant(1.0), group_assignment=[[0, 1], [2, 3]])
        with pytest.raises(ValueError, match=r"\[\[0, 1\], \[2, 3\]\].*group_assignment"):
            ReplicaStages(GraphCopier(graph), [total], inputs=[])
