"""An evaluation of endless input comes back: to Ctrl-C and to hooks, where it runs loops too."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import tensorflow as tf

from tests.estimator.tpu import on_cores
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import LoopEndHook

pytestmark = pytest.mark.matrix

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
