"""Hooks and warm start: groups M and P of behaviours.md."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.export import build_raw_serving_input_receiver_fn

v1 = tf.compat.v1

pytestmark = pytest.mark.matrix


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


def _exported_output(estimator, folder, features):
    receiver_fn = build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 3])})
    path = estimator.export_saved_model(str(folder), receiver_fn).decode()
    serve = tf.saved_model.load(path, tags=["serve"]).signatures["serving_default"]
    return serve(x=tf.constant(features))["y"]


@mostly_swept("use_tpu", [True, False], kept=[True])
@mostly_swept("checkpoint", ["", "model.ckpt-3"], kept=["model.ckpt-3"])
@pytest.mark.behaviour(288)
def test_an_untrained_estimator_exports_the_warm_start_checkpoint(tmp_path, checkpoint, use_tpu):
    trained = on_cores.linear(tmp_path / "trained", use_tpu=use_tpu)
    trained.train(on_cores.train_input_fn, steps=3)
    features, _ = linear_model.rows(4)
    _, weights, bias = on_cores.descended(3)
    expected = linear_model.output(features, weights, bias)
    start = str(tmp_path / "trained" / checkpoint)
    fresh = on_cores.linear(tmp_path / "fresh", use_tpu=use_tpu, warm_start_from=start)
    found = _exported_output(fresh, tmp_path / "exports", features)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert fresh.latest_checkpoint() is None


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
