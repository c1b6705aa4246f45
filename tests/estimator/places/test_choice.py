import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator.places.choice import Choice, Kind, choose_place, session_master


def _no_cores():
    raise RuntimeError("no TPU system here")


def _choose(**given):
    return choose_place(**{"use_tpu": True, "master": "", "count_cores": _no_cores, **given})


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch):
    monkeypatch.delenv("TFX_TPU_TRAINER_EMULATE", raising=False)


def test_use_tpu_false_is_the_host():
    assert _choose(use_tpu=False, master="emulated").kind is Kind.HOST


def test_the_master_emulated_chooses_emulated_cores():
    assert _choose(master="emulated") == Choice(
        Kind.EMULATED_CORES, "emulated TPU cores (RunConfig(master='emulated'))"
    )
    assert session_master("emulated") == ""
    assert session_master("grpc://host:1") == "grpc://host:1"


def test_the_environment_variable_wins_over_an_address(monkeypatch):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", "1")
    assert _choose(master="grpc://host:1") == Choice(
        Kind.EMULATED_CORES, "emulated TPU cores (TFX_TPU_TRAINER_EMULATE=1)"
    )
    assert session_master("grpc://host:1") == ""


@pytest.mark.parametrize("text", ["true", "yes", "2", " 1"])
def test_another_value_of_the_variable_is_refused(monkeypatch, text):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", text)
    with pytest.raises(ValueError, match=f"TFX_TPU_TRAINER_EMULATE='{text}' is not valid; give 1"):
        _choose(master="grpc://host:1")
    for off in ("", "0"):
        monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", off)
        assert _choose(master="grpc://host:1").kind is Kind.TPU


@pytest.mark.behaviour(92)
def test_no_tpu_and_no_emulation_names_the_ways():
    says = "RunConfig.master='emulated'.*TFX_TPU_TRAINER_EMULATE=1.*use_tpu=False"
    with pytest.raises(RuntimeError, match=says):
        _choose()


def test_a_master_or_a_strategy_is_where_cores_are():
    assert _choose(master="grpc://host:1") == Choice(
        Kind.TPU,
        "TPU cores (master 'grpc://host:1')",
    )
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    assert _choose(master="grpc://host:1", strategy=strategy) == Choice(
        Kind.STRATEGY,
        "a tf.distribute strategy (RunConfig has a OneDeviceStrategy)",
    )


def test_this_machines_own_cores_are_counted_where_nothing_else_says_where():
    assert _choose(count_cores=lambda: 4) == Choice(
        Kind.TPU, "TPU cores (this machine has 4 TPU cores)"
    )
