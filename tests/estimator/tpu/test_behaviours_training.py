"""Layout, input, training, optimizers and errors on emulated cores: groups A, D to F, H, I and T of behaviours.md."""

import functools
import signal
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.estimator import linear_model
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator._engine.sessions.reconnecting import RETRIES
from tfx_tpu_trainer.estimator.export import build_raw_serving_input_receiver_fn

v1 = tf.compat.v1


pytestmark = pytest.mark.matrix


@pytest.mark.parametrize(
    "hooks",
    [
        pytest.param([], id="in_loops"),
        pytest.param([on_cores.Steps()], marks=pytest.mark.sweep, id="step_by_step"),
    ],
)
@pytest.mark.behaviour(162)
def test_the_host_takes_any_number_of_steps(tmp_path, hooks):
    estimator = on_cores.linear(tmp_path, use_tpu=False)
    estimator.train(on_cores.train_input_fn, steps=2.5, hooks=hooks)
    assert estimator.get_variable_value("global_step") == 3
    estimator.train(on_cores.train_input_fn, max_steps=4.5, hooks=hooks)
    assert estimator.get_variable_value("global_step") == 5


@pytest.mark.behaviour(172)
def test_a_train_op_that_leaves_the_global_step_alone_never_ends(tmp_path):
    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean(tf.square(linear_model.outputs_of(features) - labels))
        optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(linear_model.RATE))
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    class StopAfterFiveCalls(on_cores.Steps):
        def after_run(self, run_context, run_values):
            super().after_run(run_context, run_values)
            self.weights = run_context.session.run(v1.trainable_variables()[0])
            if len(self.seen) == 5:
                run_context.request_stop()

    hook = StopAfterFiveCalls()
    estimator = on_cores.make(tmp_path, model_fn, loop=1)
    estimator.train(on_cores.train_input_fn, steps=2, hooks=[hook])
    assert hook.seen == [0] * 5
    np.testing.assert_allclose(hook.weights, on_cores.descended(5)[1], rtol=1e-4)


class _Handlers(v1.train.SessionRunHook):
    """Keeps what would handle SIGINT in the middle of training."""

    def after_run(self, run_context, run_values):
        self.seen = signal.getsignal(signal.SIGINT)


@pytest.fixture
def default_sigint():
    """Handles SIGINT as Python does, which it doesn't in a shell's background jobs: they ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def _never_made(*args, **kwargs):
    pytest.fail("experimental_feed_hook is used")


@mostly_swept("cores_per_replica", [None, 2], kept=[2])
@pytest.mark.behaviour(178, 181, 182, 183)
def test_broadcast_trains_as_one_core_on_the_whole_batch(
    tmp_path, cores_per_replica, default_sigint
):
    options = {
        "per_host_input_for_training": on_cores.BROADCAST,
        "num_cores_per_replica": cores_per_replica,
        "experimental_feed_hook": _never_made,
    }
    hook = _Handlers()
    estimator = on_cores.linear(tmp_path, cores=4, loop=3, tpu_options=options)
    estimator.train(on_cores.train_input_fn, steps=4, hooks=[hook])
    on_cores.assert_descended(estimator, 4)
    # The original lets SIGINT kill the process while it trains on a TPU; here it ends the loop politely.
    assert hook.seen not in (signal.SIG_DFL, signal.SIG_IGN, default_sigint)
    assert signal.getsignal(signal.SIGINT) is default_sigint


@pytest.mark.behaviour(186)
def test_other_reductions_and_keras_optimizers_are_refused_at_once():
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    for reduction in ("mean", v1.losses.Reduction.NONE, None):
        with pytest.raises(ValueError, match="`reduction` should be one of"):
            tpu.CrossShardOptimizer(optimizer, reduction=reduction)
    for made in (tf_keras.optimizers.SGD(), keras.optimizers.SGD()):
        with pytest.raises(TypeError, match=r"Keras|Optimizer"):
            tpu.CrossShardOptimizer(made)


@pytest.mark.behaviour(188)
def test_slots_are_those_of_the_wrapped_optimizer(tmp_path):
    seen = []

    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean(tf.square(linear_model.outputs_of(features) - labels))
        wrapped = v1.train.AdamOptimizer(linear_model.RATE)
        optimizer = tpu.CrossShardOptimizer(wrapped)
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        (weights, _) = v1.trainable_variables()
        seen.append((optimizer.get_slot_names(), optimizer.get_slot(weights, "m").op.name))
        assert optimizer.get_slot(weights, "v") is wrapped.get_slot(weights, "v")
        assert optimizer.variables() == wrapped.variables()
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = on_cores.make(tmp_path, model_fn)
    estimator.train(on_cores.train_input_fn, steps=1)
    assert seen == [(["m", "v"], "linear/weights/Adam")]
    features, labels = linear_model.batches(on_cores.BATCH)[0]
    error = linear_model.output(features) - labels
    np.testing.assert_allclose(
        estimator.get_variable_value("linear/weights/Adam"),
        0.1 * 2 * features.T @ error / len(labels),
        rtol=1e-4,
    )


@pytest.mark.behaviour(12)
def test_one_core_is_an_ordinary_layout_and_eval_on_tpu_false_holds_in_it(tmp_path):
    seen = []

    def model_fn(features, labels, mode, params):
        context = params.get("context")
        layout = context and (context.num_replicas, context.num_hosts)
        seen.append((mode, params["use_tpu"], params["batch_size"], layout))
        return linear_model.model_fn_for(tpu)(features, labels, mode, params)

    estimator = on_cores.make(tmp_path, model_fn, cores=1, eval_on_tpu=False, eval_batch_size=5)
    estimator.train(on_cores.train_input_fn, steps=2)
    on_cores.assert_descended(estimator, 2)
    estimator.evaluate(linear_model.input_fn)
    assert seen == [("train", True, 8, (1, 1)), ("eval", False, 5, None)]


@mostly_swept("size", [None, 7], kept=[None])
@pytest.mark.behaviour(87)
def test_an_export_looks_at_no_batch_size(tmp_path, size):
    estimator = on_cores.linear(tmp_path, cores=4, predict_batch_size=size)
    estimator.train(on_cores.train_input_fn, steps=1)
    receiver_fn = build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 3])})
    path = estimator.export_saved_model(str(tmp_path / "exports"), receiver_fn).decode()
    serve = tf.saved_model.load(path, tags=["serve"]).signatures["serving_default"]
    features, _ = linear_model.rows(5)
    _, weights, bias = on_cores.descended(1)
    np.testing.assert_allclose(
        serve(x=tf.constant(features))["y"],
        linear_model.output(features, weights, bias),
        rtol=1e-4,
        atol=1e-6,
    )


@mostly_swept("mode", on_cores.MODES, kept=["infer"])
@pytest.mark.behaviour(88)
def test_every_call_is_checked_and_nothing_is_remembered(tmp_path, monkeypatch, mode):
    # A lift: the original checks a mode's configuration once in an estimator's life.
    config = tpu.RunConfig(model_dir=str(tmp_path), tpu_config=tpu.TPUConfig(num_shards=2))
    estimator = tpu.TPUEstimator(
        linear_model.model_fn_for(tpu), config=config, **on_cores.BATCH_SIZES
    )
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", "1")
    on_cores.run(estimator, mode)
    monkeypatch.delenv("TFX_TPU_TRAINER_EMULATE")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="TFX_TPU_TRAINER_EMULATE=1"):
            on_cores.run(estimator, mode)


@pytest.mark.behaviour(91)
def test_emulated_there_are_as_many_replicas_as_num_shards_says(tmp_path):
    seen = []

    def model_fn(features, labels, mode, params):
        seen.append((params["context"].num_replicas, features["x"].shape[0]))
        return linear_model.model_fn_for(tpu)(features, labels, mode, params)

    estimator = on_cores.make(tmp_path, model_fn, cores=3, train_batch_size=6)
    estimator.train(on_cores.train_input_fn, steps=2)
    assert seen == [(3, 2)]
    on_cores.assert_descended(estimator, 2, batch=6)


@pytest.mark.parametrize(
    ("options", "batch_size", "hosts"),
    [
        pytest.param(
            {"per_host_input_for_training": on_cores.PER_HOST_V1}, 32, 1, marks=pytest.mark.sweep
        ),
        pytest.param(
            {"per_host_input_for_training": on_cores.PER_HOST_V2}, 2, 1, marks=pytest.mark.sweep
        ),
        ({"eval_training_input_configuration": on_cores.SLICED}, 32, 2),
    ],
    ids=["PER_HOST_V1", "PER_HOST_V2", "SLICED"],
)
@pytest.mark.behaviour(95, 96)
def test_two_hosts_of_cores_evaluate_and_predict_each_row_once(
    tmp_path, options, batch_size, hosts
):
    # A lift: the original wants BROADCAST, or PER_HOST_V2 of a single replica.
    calls = []

    def input_fn(params):
        calls.append((params["batch_size"], params["context"].num_hosts))
        return linear_model.input_fn(params, count=37)

    estimator = on_cores.linear(
        tmp_path, cores=16, eval_batch_size=32, predict_batch_size=32, tpu_options=options
    )
    result = estimator.evaluate_result(input_fn)
    features, labels = linear_model.rows(37)
    outputs = linear_model.output(features)
    assert result.num_examples == 37
    assert result.metrics["mae"] == pytest.approx(np.mean(np.abs(outputs - labels)), rel=1e-5)
    rows = [row["y"] for row in estimator.predict(input_fn)]
    np.testing.assert_allclose(rows, outputs, rtol=1e-5, atol=1e-6)
    assert calls == [(batch_size, hosts)] * 2


@pytest.mark.behaviour(105)
def test_each_hosts_input_has_its_name_scope_and_is_on_the_cpu(tmp_path):
    made = []

    def input_fn(params):
        features, labels = linear_model.rows(on_cores.BATCH)
        tensor = tf.constant(features, name="mine")
        made.append((params["context"].current_host, tensor.op.name, tensor.device))
        return {"x": tensor}, tf.constant(labels)

    estimator = on_cores.linear(tmp_path, cores=16, train_batch_size=16, fed=on_cores.PER_HOST_V1)
    estimator.train(input_fn, steps=1)
    assert made == [(host, f"input_pipeline_task{host}/mine", "/device:CPU:0") for host in (0, 1)]


@mostly_swept("mode", on_cores.MODES, kept=["infer"])
@pytest.mark.behaviour(115)
def test_on_the_host_each_call_calls_input_fn_and_model_fn_once(tmp_path, mode):
    calls = []

    def input_fn(params):
        calls.append("input_fn")
        return linear_model.input_fn(params)

    def model_fn(features, labels, mode, params):
        calls.append("model_fn")
        return linear_model.model_fn_for(tpu)(features, labels, mode, params)

    estimator = on_cores.make(tmp_path, model_fn, cores=4, use_tpu=False)
    for number in (1, 2):
        on_cores.run(estimator, mode, input_fn)
        assert calls == ["input_fn", "model_fn"] * number


@pytest.mark.behaviour(141)
def test_prediction_ends_with_its_data_and_only_there(tmp_path):
    estimator = on_cores.linear(tmp_path, cores=4)
    endless = estimator.predict(functools.partial(linear_model.input_fn, epochs=50))
    rows = [next(endless)["y"] for _ in range(3 * linear_model.ROWS)]
    endless.close()
    expected = linear_model.output(linear_model.rows()[0])
    np.testing.assert_allclose(rows, np.tile(expected, 3), rtol=1e-5, atol=1e-6)
    finite = estimator.predict(functools.partial(linear_model.input_fn, count=9))
    for _ in range(9):
        next(finite)
    with pytest.raises(StopIteration):
        next(finite)


class _Gone(v1.train.SessionRunHook):
    """Stands for a worker that goes away at the second session call, for that call or for good."""

    def __init__(self, error: Exception, *, for_good: bool = False) -> None:
        self.calls = 0
        self._error, self._for_good = error, for_good

    def before_run(self, run_context):
        self.calls += 1
        if self.calls == 2 or (self.calls > 2 and self._for_good):
            raise self._error


@mostly_swept("use_tpu", [True, False], kept=[True])
@mostly_swept(
    "error",
    [tf.errors.AbortedError, tf.errors.UnavailableError],
    kept=[tf.errors.AbortedError],
)
@pytest.mark.behaviour(381)
def test_training_goes_on_from_its_checkpoint_when_a_worker_comes_back(tmp_path, use_tpu, error):
    hook = _Gone(error(None, None, "worker gone"))
    estimator = on_cores.linear(tmp_path, use_tpu=use_tpu, loop=1, save_checkpoints_steps=1)
    estimator.train(on_cores.train_input_fn, steps=4, hooks=[hook])
    assert hook.calls == 5
    assert estimator.get_variable_value("global_step") == 4
    # The input starts anew with the session: batch 0, and then 0, 1, 2 again.
    batches = linear_model.batches(on_cores.BATCH, epochs=2)
    *_, (_, weights, _) = linear_model.descend([batches[0], *batches[:3]])
    assert estimator.get_variable_value("linear/weights") == pytest.approx(weights, rel=1e-5)


@pytest.mark.sweep
@pytest.mark.parametrize("use_tpu", [True, False])
@pytest.mark.behaviour(382)
def test_a_worker_that_stays_away_ends_the_call_with_its_error(tmp_path, use_tpu):
    # A lift: the original retries forever, or drops the error and returns None.
    estimator = on_cores.linear(tmp_path, use_tpu=use_tpu, loop=1, save_checkpoints_steps=1)
    gone = tf.errors.UnavailableError(None, None, "worker gone")
    training, prediction = _Gone(gone, for_good=True), _Gone(gone, for_good=True)
    with pytest.raises(tf.errors.UnavailableError, match="worker gone"):
        estimator.train(on_cores.train_input_fn, steps=4, hooks=[training])
    assert training.calls == 2 + RETRIES
    assert estimator.get_variable_value("global_step") == 1
    with pytest.raises(tf.errors.UnavailableError, match="worker gone"):
        list(estimator.predict(linear_model.input_fn, hooks=[prediction]))
    # A retry would begin with the first row again.
    assert prediction.calls == 2


@mostly_swept("use_tpu", [True, False], kept=[True])
@mostly_swept(
    "error",
    [tf.errors.AbortedError, tf.errors.UnavailableError],
    kept=[tf.errors.UnavailableError],
)
@pytest.mark.behaviour(382)
def test_a_call_that_ends_in_such_an_error_raises_it(tmp_path, use_tpu, error):
    # A lift: the original drops it and returns None.
    def input_fn(params):
        raise error(None, None, "file server gone")

    estimator = on_cores.linear(tmp_path, use_tpu=use_tpu)
    for mode in on_cores.MODES:
        with pytest.raises(error, match="file server gone"):
            on_cores.run(estimator, mode, input_fn)


@mostly_swept("mode", on_cores.MODES, kept=["infer"])
@pytest.mark.behaviour(381, 383)
def test_an_error_of_the_input_comes_out_as_itself_and_at_once(tmp_path, mode):
    # A lift of 383: the original closes the session 5 seconds later.
    failed = []

    def fail(value):
        failed.append(time.monotonic())
        raise ZeroDivisionError("in the input")

    def input_fn(params):
        def failing(features, labels):
            result = tf.py_function(fail, [labels], labels.dtype)
            return features, tf.ensure_shape(result, labels.shape)

        return on_cores.train_input_fn(params).map(failing)

    with pytest.raises(tf.errors.OpError, match="in the input") as raised:
        on_cores.run(on_cores.linear(tmp_path), mode, input_fn)
    assert time.monotonic() - failed[0] < 4
    assert not isinstance(raised.value, tf.errors.CancelledError)


@pytest.mark.behaviour(386)
def test_after_an_input_fn_that_raised_an_export_gets_no_batch_size(tmp_path):
    # A lift: in the original a flag stays set, and model_fn gets one.
    seen = []

    def model_fn(features, labels, mode, params):
        seen.append((mode, sorted(params)))
        return linear_model.model_fn_for(tpu)(features, labels, mode, params)

    def fails(params):
        raise ZeroDivisionError

    estimator = on_cores.make(tmp_path, model_fn, use_tpu=False, export_to_tpu=False)
    estimator.train(on_cores.train_input_fn, steps=1)
    with pytest.raises(ZeroDivisionError):
        estimator.evaluate(fails)
    receiver_fn = build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 3])})
    estimator.export_saved_model(str(tmp_path / "exports"), receiver_fn)
    assert seen == [("train", ["batch_size", "use_tpu"]), ("infer", ["use_tpu"])]


@pytest.mark.behaviour(387, 388)
def test_an_emulated_run_has_no_tpu_to_shut_down_compile_for_or_watch(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_TPU_GRACEFUL_SHUTDOWN_MODE", "no such mode")
    monkeypatch.setenv("TPU_SPLIT_COMPILE_AND_EXECUTE", "1")
    monkeypatch.setenv("TF_TPU_WATCHDOG_TIMEOUT", "1")
    estimator = on_cores.linear(tmp_path)
    estimator.train(on_cores.train_input_fn, steps=3)
    on_cores.assert_descended(estimator, 3)
