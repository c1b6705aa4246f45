from __future__ import annotations

import pytest

from tfx_tpu_trainer.estimator.tpu.run_place import RunPlace, choose_place, session_master


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch):
    monkeypatch.delenv("TFX_TPU_TRAINER_EMULATE", raising=False)


def test_use_tpu_false_is_the_host():
    assert choose_place(use_tpu=False, master="emulated")[0] is RunPlace.HOST


def test_the_master_emulated_chooses_emulated_cores():
    place, reason = choose_place(use_tpu=True, master="emulated")
    assert place is RunPlace.EMULATED
    assert reason == "RunConfig(master='emulated')"
    assert session_master("emulated") == ""
    assert session_master("grpc://host:1") == "grpc://host:1"


def test_the_environment_variable_wins_over_an_address(monkeypatch):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", "1")
    place, reason = choose_place(use_tpu=True, master="grpc://host:1")
    assert place is RunPlace.EMULATED
    assert reason == "TFX_TPU_TRAINER_EMULATE=1"
    assert session_master("grpc://host:1") == ""


def test_b92_no_tpu_and_no_emulation_names_the_ways():
    says = "RunConfig.master='emulated'.*TFX_TPU_TRAINER_EMULATE=1.*use_tpu=False"
    with pytest.raises(RuntimeError, match=says):
        choose_place(use_tpu=True, master="")
