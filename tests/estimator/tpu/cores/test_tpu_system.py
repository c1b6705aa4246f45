from __future__ import annotations

import time

import pytest
import tensorflow as tf

from tests.bad_input import row
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import placed_by_need
from tfx_tpu_trainer.estimator.tpu.cores import tpu_system
from tfx_tpu_trainer.estimator.tpu.cores.tpu_system import (
    TPUSystemHook,
    find_tpu_system,
    list_tpu_cores,
    translated_tpu_errors,
)

v1 = tf.compat.v1

WAYS_OUT = r"(?s)RunConfig\(master='emulated'\).*TFX_TPU_TRAINER_EMULATE=1.*use_tpu=False"


@pytest.mark.behaviour(92)
def test_a_master_without_tpu_is_named_with_the_ways_out():
    with pytest.raises(RuntimeError, match=WAYS_OUT) as error:
        list_tpu_cores("")
    assert "''" in str(error.value)
    assert "CPU" in str(error.value)


@row(
    "estimator",
    "`RunConfig(master='not an address')` of a TPUEstimator",
    "Failed to find TPU cores through the master 'not an address': it is not the address of a "
    "session",
    "or emulate TPU cores on this host with RunConfig(master='emulated')",
)
def test_a_master_that_is_no_address_is_named(refused):
    with refused(RuntimeError):
        list_tpu_cores("not an address")


@pytest.mark.behaviour(92)
def test_a_master_that_does_not_answer_is_named_in_time():
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=WAYS_OUT) as error:
        list_tpu_cores("grpc://localhost:1", timeout_secs=1)
    assert "grpc://localhost:1" in str(error.value)
    assert time.monotonic() - started < 10


def test_a_session_without_tpu_fails_with_the_ways_out():
    with tf.Graph().as_default():
        creator = v1.train.ChiefSessionCreator(config=placed_by_need(None))
        with (
            pytest.raises(RuntimeError, match=WAYS_OUT) as error,
            v1.train.MonitoredSession(creator, hooks=[TPUSystemHook(master="")]),
        ):
            pass
    assert "No OpKernel was registered" in str(error.value)


def test_a_topology_that_nobody_can_tell_fails_with_the_ways_out(monkeypatch):
    # A master that lists cores, and has no system to initialize.
    listed = [f"/job:localhost/task:0/device:TPU:{number}" for number in range(8)]
    monkeypatch.setattr(tpu_system, "list_tpu_cores", lambda *_, **__: listed)
    assert find_tpu_system("").num_cores == 8
    with pytest.raises(RuntimeError, match=WAYS_OUT):
        find_tpu_system("", with_topology=True)


def test_an_error_of_the_model_stays_what_it_is():
    with (
        pytest.raises(tf.errors.InvalidArgumentError, match="shapes"),
        translated_tpu_errors("grpc://tpu"),
    ):
        raise tf.errors.InvalidArgumentError(None, None, "shapes do not match")
