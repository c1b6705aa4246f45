from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator.tpu._run_place import choose_place, session_master


class _Places:
    """Names in the place of placements."""

    def on_host(self):
        return "host"

    def under_strategy(self, strategy):
        return strategy

    def on_emulated_cores(self):
        return "emulated"

    def on_tpu(self):
        return "tpu"


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch):
    monkeypatch.delenv("TFX_TPU_TRAINER_EMULATE", raising=False)


def test_use_tpu_false_is_the_host():
    assert choose_place(_Places(), use_tpu=False, master="emulated")[0] == "host"


def test_the_master_emulated_chooses_emulated_cores():
    place, reason = choose_place(_Places(), use_tpu=True, master="emulated")
    assert place == "emulated"
    assert reason == "emulated TPU cores (RunConfig(master='emulated'))"
    assert session_master("emulated") == ""
    assert session_master("grpc://host:1") == "grpc://host:1"


def test_the_environment_variable_wins_over_an_address(monkeypatch):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", "1")
    place, reason = choose_place(_Places(), use_tpu=True, master="grpc://host:1")
    assert place == "emulated"
    assert reason == "emulated TPU cores (TFX_TPU_TRAINER_EMULATE=1)"
    assert session_master("grpc://host:1") == ""


@pytest.mark.parametrize("text", ["true", "yes", "2", " 1"])
def test_another_value_of_the_variable_is_refused(monkeypatch, text):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", text)
    with pytest.raises(ValueError, match=f"TFX_TPU_TRAINER_EMULATE='{text}' is not valid; give 1"):
        choose_place(_Places(), use_tpu=True, master="grpc://host:1")
    for off in ("", "0"):
        monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", off)
        assert choose_place(_Places(), use_tpu=True, master="grpc://host:1")[0] == "tpu"


@pytest.mark.behaviour(92)
def test_no_tpu_and_no_emulation_names_the_ways():
    says = "RunConfig.master='emulated'.*TFX_TPU_TRAINER_EMULATE=1.*use_tpu=False"
    with pytest.raises(RuntimeError, match=says):
        choose_place(_Places(), use_tpu=True, master="")


def test_a_master_or_a_strategy_is_where_cores_are():
    assert choose_place(_Places(), use_tpu=True, master="grpc://host:1") == (
        "tpu",
        "TPU cores (master 'grpc://host:1')",
    )
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    assert choose_place(_Places(), use_tpu=True, master="grpc://host:1", strategy=strategy) == (
        strategy,
        "a tf.distribute strategy (RunConfig has a OneDeviceStrategy)",
    )
