"""CheckpointInputPipelineHook against what the original's did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tensorflow as tf

from tests.estimator.hooks import input_pipeline_runs
from tfx_tpu_trainer import compat, estimator
from tfx_tpu_trainer.estimator.hooks import CheckpointInputPipelineHook

_ORIGINAL = Path(__file__).with_name("original_input_pipeline.json")


def test_rows_and_files_are_the_originals():
    expected = json.loads(_ORIGINAL.read_text(encoding="utf-8"))
    assert input_pipeline_runs.run(estimator, CheckpointInputPipelineHook) == expected


@pytest.mark.parametrize("policy", ["never", 2])
def test_an_unknown_policy_is_refused(policy, tmp_path):
    config = estimator.RunConfig(model_dir=str(tmp_path))
    trained = estimator.Estimator(lambda features: None, config=config)
    with pytest.raises(ValueError, match=rf"Invalid `ExternalStatePolicy.*Received {policy}"):
        CheckpointInputPipelineHook(trained, policy)


def test_several_workers_have_a_position_each(tmp_path):
    cluster = {"chief": ["a:1"], "worker": ["b:1"]}
    config = estimator.RunConfig(
        model_dir=str(tmp_path),
        tf_config={"cluster": cluster, "task": {"type": "worker", "index": 0}},
    )
    hook = CheckpointInputPipelineHook(estimator.Estimator(lambda features: None, config=config))
    assert hook._path == str(tmp_path / "input_worker_0.ckpt")


def test_compat_puts_it_back():
    places = (tf.data.experimental, tf.compat.v1.data.experimental)
    assert not any(hasattr(place, "CheckpointInputPipelineHook") for place in places)
    compat.install()
    try:
        for place in places:
            assert place.CheckpointInputPipelineHook is CheckpointInputPipelineHook
    finally:
        compat.uninstall()
    assert not any(hasattr(place, "CheckpointInputPipelineHook") for place in places)
