import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

from tests.estimator import linear_model
from tests.estimator._engine.log_lines import log_lines
from tests.estimator.places.strategy import strategy_runs as runs
from tests.estimator.places.strategy.strategy_runs import REPLICAS, mirrored
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer import estimator as tfe
from tfx_tpu_trainer.estimator import tpu

pytestmark = pytest.mark.matrix

v1 = tf.compat.v1


def _make(
    folder: Any, *, use_tpu: bool = True, loop: int | str = 2, model_fn: Any = None, **config
):
    strategy = mirrored()
    options = {"train_distribute": strategy, "eval_distribute": strategy, **config}
    run_config = tpu.RunConfig(
        model_dir=str(folder), tpu_config=tpu.TPUConfig(iterations_per_loop=loop), **options
    )
    return tpu.TPUEstimator(
        model_fn or linear_model.model_fn_for(tpu, "sgd"),
        config=run_config,
        use_tpu=use_tpu,
        **on_cores.BATCH_SIZES,
    )


@mostly_swept("loop", [1, 2, 5, "auto"], kept=[2])
def test_training_descends_as_on_one_device(tmp_path, loop):
    estimator = _make(tmp_path, loop=loop)
    estimator.train(on_cores.train_input_fn, steps=5)
    on_cores.assert_descended(estimator, 5)
    assert estimator.get_variable_value("global_step") == 5
    # It goes on from its checkpoint, and on the host.
    again = _make(tmp_path, use_tpu=False, train_distribute=None, eval_distribute=None)
    again.train(linear_model.endless_input_fn, max_steps=6)
    assert again.get_variable_value("global_step") == 6


def test_evaluation_and_prediction_count_every_row(tmp_path):
    estimator = _make(tmp_path)
    estimator.train(on_cores.train_input_fn, steps=2)
    host = _make(tmp_path, use_tpu=False, train_distribute=None, eval_distribute=None)
    result = estimator.evaluate_result(linear_model.input_fn)
    expected = host.evaluate_result(linear_model.input_fn)
    assert result.num_examples == linear_model.ROWS
    np.testing.assert_allclose(result.loss_by_rows, expected.loss_by_rows, rtol=1e-5)
    assert result.metrics.keys() == expected.metrics.keys()
    predicted = [row["y"] for row in estimator.predict(linear_model.input_fn)]
    wanted = [row["y"] for row in host.predict(linear_model.input_fn)]
    assert len(predicted) == linear_model.ROWS
    np.testing.assert_allclose(predicted, wanted, rtol=1e-5)


def test_input_fn_sees_its_share_and_its_context(tmp_path):
    seen: dict[str, Any] = {}

    def input_fn(params: dict[str, Any], input_context: tf.distribute.InputContext) -> Any:
        seen["batch_size"] = params["batch_size"]
        seen["replicas"] = input_context.num_replicas_in_sync
        seen["calls"] = seen.get("calls", 0) + 1
        return on_cores.train_input_fn(params)

    def model_fn(features, labels, mode, params):
        seen["rows"] = features["x"].shape[0]
        seen["use_tpu"] = params["use_tpu"]
        seen["num_replicas"] = params["context"].num_replicas
        return linear_model.model_fn_for(tpu, "sgd")(features, labels, mode, params)

    _make(tmp_path, model_fn=model_fn).train(input_fn, steps=2)
    share = on_cores.BATCH // REPLICAS
    assert seen == {
        "batch_size": share,
        "replicas": REPLICAS,
        "calls": 1,
        "rows": share,
        "use_tpu": True,
        "num_replicas": REPLICAS,
    }


def test_experimental_distribute_wins(tmp_path):
    class Both:
        train_distribute = mirrored()
        eval_distribute = None

    estimator = _make(
        tmp_path, train_distribute=None, eval_distribute=None, experimental_distribute=Both()
    )
    estimator.train(on_cores.train_input_fn, steps=2)
    on_cores.assert_descended(estimator, 2)


def test_emulation_wins_over_a_strategy(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", "1")
    with log_lines(caplog) as logged:
        _make(tmp_path).train(on_cores.train_input_fn, steps=2)
    assert any("runs on emulated TPU cores" in line for line in logged)


def test_the_choice_is_logged_with_its_reason(tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("TFX_TPU_TRAINER_EMULATE", raising=False)
    with log_lines(caplog) as logged:
        _make(tmp_path).train(on_cores.train_input_fn, steps=2)
    says = "runs on a tf.distribute strategy (RunConfig has a MirroredStrategy)"
    assert any(says in line for line in logged)


def test_replicas_that_do_not_divide_the_batch_are_refused(tmp_path):
    estimator = tpu.TPUEstimator(
        linear_model.model_fn_for(tpu, "sgd"),
        config=tpu.RunConfig(model_dir=str(tmp_path), train_distribute=mirrored()),
        train_batch_size=7,
    )
    with pytest.raises(ValueError, match=r"batch size 7 must be divisible.*replicas.*2"):
        estimator.train(on_cores.train_input_fn, steps=2)


def test_gradients_that_are_not_combined_are_refused_of_a_model_for_cores(tmp_path):
    def model_fn(features, labels, mode, params):
        return linear_model.model_fn_for(tpu, "sgd")(features, labels, mode, {})

    with pytest.raises(ValueError, match="CrossShardOptimizer must be used"):
        _make(tmp_path, model_fn=model_fn).train(on_cores.train_input_fn, steps=2)


def test_what_was_trained_before_the_input_ended_is_saved(tmp_path):
    def input_fn(params: dict[str, Any]) -> tf.data.Dataset:
        return on_cores.train_input_fn(params).take(3 * REPLICAS)

    estimator = _make(tmp_path, loop=5)
    estimator.train(input_fn, steps=5)
    assert estimator.get_variable_value("global_step") == 3
    on_cores.assert_descended(estimator, 3)


@pytest.mark.parametrize("name", ["train_distribute", "eval_distribute", "experimental_distribute"])
def test_the_parameter_server_strategy_of_tensorflow_2_is_refused(name):
    # Its constructor waits for the servers of a cluster, so it is left out: RunConfig goes by what
    # it is.
    strategy = object.__new__(tf.distribute.ParameterServerStrategy)
    given: Any = strategy
    if name == "experimental_distribute":
        given = type("Both", (), {"train_distribute": strategy})()
    says = r"^Please use `tf.compat.v1.distribute.exper.*_distribute=<.*ParameterServerStrategyV2"
    with pytest.raises(ValueError, match=says):
        tfe.RunConfig(**{name: given})


@pytest.mark.parametrize("given", [tf.distribute.MirroredStrategy, "mirrored", 2])
def test_what_is_no_strategy_is_refused(given):
    with pytest.raises(ValueError, match=r"train_distribute must be an instance of tf.distribute"):
        tfe.RunConfig(train_distribute=given)


def test_a_remote_cluster_is_refused():
    both = type("Both", (), {"remote_cluster": {"worker": ["localhost:1"]}})()
    with pytest.raises(ValueError, match=r"remote_cluster is not supported.*'localhost:1'"):
        tfe.RunConfig(experimental_distribute=both)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("init_fn", lambda scaffold, session: None),
        ("saver", lambda: v1.train.Saver()),
        ("saver", lambda: tf.train.Checkpoint(step=v1.train.get_global_step())),
        ("local_init_op", lambda: tf.no_op()),
    ],
    ids=["init_fn", "saver", "checkpoint", "local_init_op"],
)
def test_a_scaffold_is_refused(tmp_path, mode, part, value):
    def model_fn(features, labels, mode):
        spec = runs.model_fn_for()(features, labels, mode)
        made = value if part == "init_fn" else value()
        return spec._replace(scaffold=v1.train.Scaffold(**{part: made}))

    estimator = runs.make(tmp_path, runs.mirrored(), model_fn)
    says = rf"A Scaffold with \['{part}'\] can't be used under MirroredStrategy \(2 replicas\).*out"
    call = estimator.train if mode == "train" else estimator.evaluate
    with pytest.raises(ValueError, match=says):
        call(runs.train_input_of(), steps=1)
    assert on_cores.checkpoint_steps(tmp_path) == []


def _with_replica_id(features, labels, mode):
    number = tf.cast(xla.replica_id(), tf.float32)
    return runs.model_fn_for()(features, labels + 0 * number, mode)


def _keras_mean(outputs, labels):
    return tf.keras.losses.MeanSquaredError()(labels[:, None], outputs[:, None])


@pytest.mark.parametrize(
    ("model_fn", "says"),
    [
        # TensorFlow has no replica_id for CPUs and GPUs: the original's process ends with a SIGSEGV.
        (_with_replica_id, r"^Operation of type XlaReplicaId .* would end the proc"),
        (
            runs.model_fn_for(
                lambda loss: runs.sgd_step(tf.reduce_mean(loss)),
                lambda outputs, labels: tf.square(outputs - labels),
            ),
            r"Loss must be scalar, given: .*Square.*shape=\(4,\).*Average",
        ),
        # Keras optimizers sum over replicas, so Keras refuses its own mean, as in the original.
        (runs.model_fn_for(loss_fn=_keras_mean), r"Reduction.SUM.*Reduction.NONE"),
    ],
    ids=["replica_id", "each_row", "keras_mean"],
)
def test_a_model_that_can_not_run_on_replicas_is_refused(tmp_path, model_fn, says):
    estimator = runs.make(tmp_path, runs.mirrored(), model_fn)
    with pytest.raises(ValueError, match=says):
        estimator.train(runs.train_input_of(), steps=1)


def test_an_input_fn_must_give_a_dataset(tmp_path):
    estimator = runs.make(tmp_path, runs.mirrored())
    with pytest.raises(TypeError, match=r"input_fn must return a tf.data.Dataset"):
        estimator.train(lambda: ({"x": tf.zeros([4, 3])}, tf.zeros([4])), steps=1)


@pytest.mark.parametrize("name", ["mirrored", "central_storage"])
def test_a_strategy_of_one_process_is_refused_in_a_cluster(tmp_path, monkeypatch, name):
    cluster = {"worker": ["localhost:1", "localhost:2"]}
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    estimator = runs.make(tmp_path, runs.STRATEGIES[name][0]())
    says = r"\(2 replicas\) covers only this process, but.*2 tasks that train.*MultiWorkerMirrored"
    with pytest.raises(ValueError, match=says):
        estimator.train(runs.train_input_of(), steps=1)


def _tpu_estimator(folder: Any, **config: Any) -> tpu.TPUEstimator:
    return tpu.TPUEstimator(
        linear_model.model_fn_for(tpu, "sgd"),
        config=tpu.RunConfig(model_dir=str(folder), **config),
        **on_cores.BATCH_SIZES,
    )


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_cores_of_a_master_and_a_strategy_are_two_places(tmp_path, monkeypatch, mode):
    monkeypatch.delenv("TFX_TPU_TRAINER_EMULATE", raising=False)
    strategy = runs.mirrored()
    options = {"train_distribute": strategy, "eval_distribute": strategy}
    estimator = _tpu_estimator(tmp_path, master="emulated", **options)
    says = "two places for use_tpu=True: master 'emulated' and MirroredStrategy. Leave master"
    with pytest.raises(ValueError, match=says):
        on_cores.run(estimator, mode)


def test_cores_under_a_parameter_server_strategy_are_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("TFX_TPU_TRAINER_EMULATE", raising=False)
    strategy = v1.distribute.experimental.ParameterServerStrategy()
    estimator = _tpu_estimator(tmp_path, train_distribute=strategy)
    says = r"use_tpu=True can't run under a ParameterServerStrategy.*use_tpu=False"
    with pytest.raises(ValueError, match=says):
        on_cores.run(estimator, "train")


def test_an_assignment_in_a_condition_is_refused_where_variables_are_shared(tmp_path):
    def step(loss):
        moving = v1.get_variable("moving", initializer=0.0, trainable=False)
        changed = tf.cond(loss > 0, lambda: moving.assign_add(loss), moving.read_value)
        with tf.control_dependencies([tf.identity(changed)]):
            return runs.sgd_step(loss)

    estimator = runs.make(tmp_path, runs.central(), runs.model_fn_for(step))
    with pytest.raises(
        ValueError, match=r"changes a variable and returns a value.*MirroredStrategy"
    ):
        estimator.train(runs.train_input_of(), steps=1)
