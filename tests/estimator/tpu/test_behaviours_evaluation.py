"""Evaluation, prediction, host_call, hooks, warm start and summaries: groups J to M, P and U of behaviours.md."""

import itertools
import os
import signal
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator._engine.event_files import read_values
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import LoopEndHook

v1 = tf.compat.v1


pytestmark = pytest.mark.matrix


@pytest.mark.behaviour(201)
def test_sliced_gathers_all_cores_however_training_is_fed(tmp_path):
    # A lift: where training is BROADCAST, the original takes the first core's tensors only.
    seen = []

    def model_fn(features, labels, mode, params):
        keep = on_cores.recorder(seen, 0)
        metrics = (lambda x: {"seen": (tf.constant(0.0), keep(x))}), [features["x"]]
        return tpu.TPUEstimatorSpec(mode, loss=tf.reduce_mean(labels), eval_metrics=metrics)

    options = {
        "per_host_input_for_training": on_cores.BROADCAST,
        "eval_training_input_configuration": on_cores.SLICED,
    }
    estimator = on_cores.make(tmp_path, model_fn, cores=4, tpu_options=options)
    estimator.evaluate(linear_model.input_fn)
    rows = np.concatenate([x for (x,) in seen])
    np.testing.assert_array_equal(rows, linear_model.rows()[0])


class _Address(v1.train.SessionRunHook):
    """Keeps the address that a session was opened at."""

    def after_run(self, run_context, run_values):
        self.seen = run_context.session.sess_str.decode()


@pytest.mark.behaviour(218)
def test_evaluation_is_at_the_evaluation_master(tmp_path):
    server = tf.distribute.Server.create_local_server()
    estimator = on_cores.linear(
        tmp_path, use_tpu=False, config={"evaluation_master": server.target}
    )
    training, evaluation, prediction = _Address(), _Address(), _Address()
    estimator.train(on_cores.train_input_fn, steps=2, hooks=[training])
    metrics = estimator.evaluate(linear_model.input_fn, hooks=[evaluation])
    next(estimator.predict(linear_model.input_fn, hooks=[prediction]))
    assert (training.seen, evaluation.seen, prediction.seen) == ("", server.target, "")
    assert metrics["global_step"] == 2


@mostly_swept("use_tpu", [True, False], kept=[True])
@pytest.mark.behaviour(239)
def test_generators_may_be_interleaved(tmp_path, use_tpu):
    # A lift: on a TPU the original's would fight over the one system.
    estimator = on_cores.linear(tmp_path, use_tpu=use_tpu)
    pairs = list(
        itertools.zip_longest(
            (row["y"] for row in estimator.predict(linear_model.input_fn)),
            (row["y"] for row in estimator.predict(linear_model.input_fn)),
        )
    )
    expected = linear_model.output(linear_model.rows()[0])
    np.testing.assert_allclose(pairs, np.stack([expected] * 2, axis=1), rtol=1e-5, atol=1e-6)


STEPS = 10**9


class _Stop(LoopEndHook):
    """Stops after the second session call."""

    calls = 0

    def after_run(self, run_context, run_values):
        self.calls += 1
        if self.calls == 2:
            run_context.request_stop()


class _Interrupt(LoopEndHook):
    """Sends what Ctrl-C sends, once the session runs."""

    def after_create_session(self, session, coord):
        sent = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        sent.daemon = True
        sent.start()


def _constant_batch(params):
    return {"x": tf.ones([params["batch_size"], 3])}, tf.ones([params["batch_size"]])


@pytest.mark.parametrize(
    "use_tpu", [pytest.param(False, marks=pytest.mark.sweep), True], ids=["host", "cores"]
)
def test_a_hook_ends_the_evaluation_of_input_without_an_end(tmp_path, use_tpu):
    estimator = on_cores.linear(tmp_path, use_tpu=use_tpu)
    hook = _Stop()
    result = estimator.evaluate_result(on_cores.train_input_fn, hooks=[hook])
    assert hook.calls == 2
    # Two calls of a loop, and not two batches.
    assert result.num_examples > 2 * on_cores.BATCH


@pytest.mark.parametrize(
    ("use_tpu", "input_fn", "steps"),
    [
        pytest.param(False, on_cores.train_input_fn, STEPS, marks=pytest.mark.sweep, id="host"),
        pytest.param(True, _constant_batch, None, id="cores"),
        pytest.param(False, _constant_batch, None, marks=pytest.mark.sweep, id="host-endless"),
        pytest.param(
            True, on_cores.train_input_fn, STEPS, marks=pytest.mark.sweep, id="cores-steps"
        ),
    ],
)
def test_ctrl_c_ends_an_evaluation_within_a_loop(request, tmp_path, use_tpu, input_fn, steps):
    # A shell that starts the tests in the background lets them ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    estimator = on_cores.linear(tmp_path, use_tpu=use_tpu)
    with pytest.raises(KeyboardInterrupt):
        estimator.evaluate(input_fn, steps=steps, hooks=[_Interrupt()])


def test_batches_are_told_once_over_many_calls(tmp_path, caplog):
    # Each batch takes a third of a second: three calls or so.
    def input_fn(params):
        def slow(row):
            time.sleep(0.3)
            return row

        dataset = on_cores.train_input_fn(params)
        slowed = dataset.map(
            lambda features, labels: (
                {"x": tf.ensure_shape(tf.py_function(slow, [features["x"]], tf.float32), [8, 3])},
                labels,
            )
        )
        return slowed.prefetch(0)

    hook = LoopEndHook()
    seen = []
    hook.after_run = lambda run_context, run_values: seen.append(run_context)
    with caplog.at_level("INFO", logger="tensorflow"):
        result = on_cores.linear(tmp_path, use_tpu=False).evaluate_result(
            input_fn, steps=6, hooks=[hook]
        )
    assert result.num_examples == 6 * on_cores.BATCH
    assert len(seen) > 1
    told = [line for line in caplog.messages if line.startswith("Evaluation [")]
    assert told == [f"Evaluation [{done}/6]" for done in range(1, 7)]


class _FetchesWithTheCall(v1.train.SessionRunHook):
    def __init__(self, get_tensor):
        self._get_tensor = get_tensor

    def before_run(self, run_context):
        return v1.train.SessionRunArgs({"kept": [self._get_tensor()]})


class _FetchesWhatItMadeOfIt(_FetchesWithTheCall):
    def begin(self):
        made = self._get_tensor() + 1
        self._get_tensor = lambda: made


class _FetchesByItself(v1.train.SessionRunHook):
    def __init__(self, get_tensor):
        self._get_tensor = get_tensor

    def after_run(self, run_context, run_values):
        run_context.session.run(self._get_tensor())


class _FetchesAtTheEnd(_FetchesByItself):
    def after_run(self, run_context, run_values):
        pass

    def end(self, session):
        session.run(self._get_tensor())


@pytest.mark.parametrize(
    ("mode", "kinds"),
    [
        ("train", (_FetchesWithTheCall,)),
        ("eval", (_FetchesByItself,)),
        pytest.param("train", (_FetchesWhatItMadeOfIt, _FetchesAtTheEnd), marks=pytest.mark.sweep),
    ],
)
@pytest.mark.behaviour(260)
def test_a_hook_that_fetches_a_tensor_of_the_computation_is_named(tmp_path, mode, kinds):
    kept = []

    def model_fn(features, labels, mode, params):
        spec = linear_model.model_fn_for(tpu)(features, labels, mode, params)
        kept.append(spec.loss)
        return spec

    estimator = on_cores.make(tmp_path, model_fn)
    call = {"train": estimator.train, "eval": estimator.evaluate}[mode]
    for kind in kinds:
        says = (
            rf"^Operation .* has been marked as not fetchable\..* hook {kind.__name__} .*host_call"
        )
        with pytest.raises(ValueError, match=says):
            call(on_cores.train_input_fn, steps=1, hooks=[kind(lambda: kept[-1])])


def test_a_hook_fetches_what_is_there_without_the_cores(tmp_path):
    kept, seen = [], []

    def model_fn(features, labels, mode, params):
        kept.append(v1.train.get_global_step() * 2)
        return linear_model.model_fn_for(tpu)(features, labels, mode, params)

    class Fetches(_FetchesWithTheCall):
        def after_run(self, run_context, run_values):
            seen.append(run_values.results["kept"][0])

    estimator = on_cores.make(tmp_path, model_fn, loop=1)
    estimator.train(on_cores.train_input_fn, steps=3, hooks=[Fetches(lambda: kept[-1])])
    assert len(seen) == 3


@pytest.mark.behaviour(289)
def test_a_warm_start_is_applied_after_model_fn_over_its_initial_values(tmp_path):
    trained = tmp_path / "trained"
    on_cores.linear(trained, loop=1, save_checkpoints_steps=1).train(
        on_cores.train_input_fn, steps=4
    )
    first, second = trained / "model.ckpt-1", trained / "model.ckpt-4"

    def model_fn(features, labels, mode, params):
        spec = linear_model.model_fn_for(tpu)(features, labels, mode, params)
        v1.train.init_from_checkpoint(str(first), {"linear/": "linear/"})
        return spec

    for start, steps in ((None, 1), (str(second), 4)):
        estimator = on_cores.make(tmp_path / f"new{steps}", model_fn, warm_start_from=start)
        _, weights, bias = on_cores.descended(steps)
        metrics = estimator.evaluate(linear_model.input_fn)
        loss = linear_model.loss(linear_model.rows(), weights, bias)
        assert metrics["loss"] == pytest.approx(loss, rel=1e-4)
        assert metrics["global_step"] == 0


@mostly_swept(
    ("loop", "every", "steps"),
    [(1, 1, [1, 2, 3, 4, 5, 6]), (4, 1, [4, 6]), (4, 0, [])],
    kept=[(4, 1, [4, 6]), (4, 0, [])],
)
@pytest.mark.behaviour(173, 389)
def test_the_loss_is_in_the_events_every_save_summary_steps(tmp_path, loop, every, steps):
    # A lift: the original shows the first core's loss, not the mean over the cores.
    estimator = on_cores.linear(tmp_path, loop=loop, save_summary_steps=every)
    estimator.train(on_cores.train_input_fn, steps=6)
    shown = read_values(tmp_path).get("loss", {})
    losses, *_ = on_cores.descended(6)
    assert sorted(shown) == steps
    assert [shown[step] for step in steps] == pytest.approx(
        [losses[step - 1] for step in steps], rel=1e-4
    )


@pytest.mark.behaviour(398)
def test_v2_summaries_of_the_computation_are_those_of_the_first_core(tmp_path):
    folder = str(tmp_path / "summaries")

    def model_fn(features, labels, mode, params):
        step = v1.train.get_global_step().read_value()
        with tf.control_dependencies([step]):
            spec = linear_model.model_fn_for(tpu)(features, labels, mode, params)
        with tf.summary.create_file_writer(folder).as_default(step):
            tf.summary.scalar("x", tf.reduce_mean(features["x"]))
        written = v1.summary.all_v2_summary_ops()
        return spec._replace(train_op=tf.group(spec.train_op, *written))

    estimator = on_cores.make(tmp_path, model_fn, cores=2)
    estimator.train(on_cores.train_input_fn, steps=3)
    shown = read_values(folder)["x"]
    batches = linear_model.batches(on_cores.BATCH, epochs=2)[:3]
    expected = {step: x[: on_cores.BATCH // 2].mean() for step, (x, _) in enumerate(batches)}
    assert shown == pytest.approx(expected, rel=1e-4)
