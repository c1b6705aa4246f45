"""Which slices train under a strategy, as far as a machine without a TPU can tell."""

from __future__ import annotations

import pytest

from tests.component.execution import Execution
from tfx_tpu_trainer.component.estimators import strategies
from tfx_tpu_trainer.component.trainer_parameters import TrainSettings


def _settings(**values):
    return TrainSettings.parse({"tpu": "v5e:2x4", **values})


def test_a_session_will_do_for_old_chips_a_master_and_emulated_cores(monkeypatch):
    assert strategies(TrainSettings.parse({})) == {}
    assert strategies(_settings(tpu="v3:2x2")) == {}
    assert strategies(_settings(master="emulated")) == {}
    assert strategies(_settings(master="grpc://10.0.0.1:8470")) == {}
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", "1")
    assert strategies(_settings()) == {}


def test_on_the_host_there_is_no_strategy():
    assert strategies(_settings().model_copy(update={"use_tpu": False})) == {}


def test_a_machine_without_the_slice_says_so_and_trains_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("TFX_TPU_TRAINER_EMULATE", raising=False)
    execution = Execution.of_trainer(tmp_path, tpu='{"slice_name":"v5e:2x4"}')
    with pytest.raises(RuntimeError, match=r"tpu='v5e:2x4', but this machine has no TPU .*emulate"):
        execution.run()
    assert not execution.files()
