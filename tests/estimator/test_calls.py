from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_tpu_trainer import estimator as tfe
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.places.host import OnHost
from tfx_tpu_trainer.estimator.places.strategy.place import UnderStrategy
from tfx_tpu_trainer.estimator.tpu.cores.emulated import OnEmulatedCores
from tfx_tpu_trainer.estimator.tpu.cores.trace import trace_on_cores

MODES = ("train", "eval", "infer")


def _model_fn(features, labels, mode, params):
    raise AssertionError("no place calls model_fn before it is asked to plan")


def _places(estimator: tfe.Estimator) -> list[type]:
    return [type(estimator._calls.place(lambda params: None, mode)) for mode in MODES]


def test_each_mode_has_its_own_place(tmp_path):
    folder, strategy = str(tmp_path), tf.distribute.OneDeviceStrategy("/cpu:0")
    plain = tfe.Estimator(_model_fn, config=tfe.RunConfig(folder), params={"rate": 1})
    assert _places(plain) == [OnHost] * 3
    config = tfe.RunConfig(folder, train_distribute=strategy)
    assert _places(tfe.Estimator(_model_fn, config=config, params={"rate": 1})) == [
        UnderStrategy,
        OnHost,
        OnHost,
    ]


@pytest.mark.parametrize(
    ("options", "places"),
    [
        ({"use_tpu": False}, [OnHost] * 3),
        ({"eval_on_tpu": False}, [OnEmulatedCores, OnHost, OnEmulatedCores]),
        ({}, [OnEmulatedCores] * 3),
    ],
)
def test_use_tpu_and_eval_on_tpu_say_which_modes_run_on_cores(options, places, tmp_path):
    config = tpu.RunConfig(master="emulated", model_dir=str(tmp_path), log_step_count_steps=None)
    estimator = tpu.TPUEstimator(_model_fn, config=config, train_batch_size=8, **options)
    assert _places(estimator) == places


def test_only_calls_with_embeddings_are_wrapped(tmp_path):
    config = tpu.RunConfig(master="emulated", model_dir=str(tmp_path))
    estimator = tpu.TPUEstimator(_model_fn, config=config, train_batch_size=8)
    place = estimator._calls.on_emulated_cores(lambda params: None, "train")
    assert place.core_call.trace is trace_on_cores
