"""Which slices train under a strategy, as far as a machine without a TPU can tell."""

from __future__ import annotations

import pytest

from tests.components.trainer import small_model
from tests.components.trainer.execution import Execution
from tfx_tpu_trainer import estimator as estimators
from tfx_tpu_trainer.components.trainer.estimators import run_config, strategies
from tfx_tpu_trainer.components.trainer.legacy.training_spec import TrainingSpec, WatchedSchedule
from tfx_tpu_trainer.components.trainer.settings import TrainSettings


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


def test_a_training_that_makes_no_step_ends_after_half_an_hour(tmp_path):
    folder = str(tmp_path)
    default, off = (TrainSettings.parse(values) for values in ({}, {"stall_timeout_secs": 0}))
    assert run_config(default, model_dir=folder).stall_timeout_secs == 1800
    assert run_config(off, model_dir=folder).stall_timeout_secs is None


def test_hosts_wait_for_each_other_as_long_as_the_settings_say(tmp_path):
    settings = TrainSettings.parse({"start_timeout_secs": 60})
    config = run_config(settings, model_dir=str(tmp_path))
    assert config.session_creation_timeout_secs == 60


@pytest.mark.parametrize(("own", "expected"), [(None, 1800), (60, 60)])
def test_a_module_with_an_estimator_of_its_own_ends_then_too(tmp_path, own, expected):
    config = estimators.RunConfig(model_dir=str(tmp_path), stall_timeout_secs=own)
    spec = TrainingSpec(
        estimator=estimators.Estimator(small_model.model_fn, config=config),
        train_spec=estimators.TrainSpec(lambda: None, max_steps=1),
        eval_spec=estimators.EvalSpec(lambda: None),
        eval_input_receiver_fn=lambda: None,
    )
    schedule = WatchedSchedule(spec, folder=str(tmp_path), stall_timeout_secs=1800)
    assert schedule.estimator.config.stall_timeout_secs == expected
    assert spec.estimator.config.stall_timeout_secs == own
