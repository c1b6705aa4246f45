import os
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.estimator import linear_model
from tests.estimator._engine.log_lines import log_lines
from tests.estimator.schedule import plain
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer import estimator as tfe
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.schedule._local import EvaluationListener
from tfx_tpu_trainer.estimator.schedule._tasks import run_schedule

pytestmark = pytest.mark.matrix


def _specs(*, max_steps: int | None = 7, **eval_options):
    train = tfe.TrainSpec(plain.train_input, max_steps=max_steps)
    return train, tfe.EvalSpec(plain.eval_input, **{"throttle_secs": 0, **eval_options})


def _steps(recorder: plain.Recorder) -> list[int]:
    return [int(call["eval_result"]["global_step"]) for call in recorder.calls]


def _losses(steps: int) -> list[float]:
    """The mean loss over the evaluation's batches after each step, by formula."""
    batches = linear_model.batches(plain.BATCH, epochs=10)[:steps]
    evaluated = linear_model.batches(plain.BATCH)
    return [
        float(np.mean([linear_model.loss(batch, weights, bias) for batch in evaluated]))
        for _, weights, bias in linear_model.descend(batches)
    ]


@pytest.mark.parametrize("max_steps", [7, 6.5])
@pytest.mark.behaviour(405, 406, 407)
def test_an_evaluation_follows_each_checkpoint_but_the_first(tmp_path, max_steps):
    recorder, other = plain.Recorder(), plain.Recorder("other")
    estimator = plain.make(tmp_path, save=3)
    metrics, exports = tfe.train_and_evaluate(
        estimator, *_specs(max_steps=max_steps, exporters=[recorder, other])
    )
    # Checkpoints at 0, 3, 6 and 7.
    assert _steps(recorder) == _steps(other) == [3, 6, 7]
    np.testing.assert_allclose(
        [call["eval_result"]["loss"] for call in recorder.calls],
        [_losses(7)[step - 1] for step in (3, 6, 7)],
        rtol=1e-5,
    )
    assert [call["is_the_final_export"] for call in recorder.calls] == [False, False, True]
    assert {call["export_path"] for call in other.calls} == {str(tmp_path / "export" / "other")}
    assert recorder.calls[0]["checkpoint_path"] == str(tmp_path / "model.ckpt-3")
    assert recorder.calls[0]["estimator"] is estimator
    assert metrics["global_step"] == 7
    assert exports == [b"exported 3", b"exported 3"]


@pytest.mark.behaviour(405)
def test_throttling_spaces_the_evaluations(tmp_path):
    recorder = plain.Recorder()
    tfe.train_and_evaluate(
        plain.make(tmp_path, save=2), *_specs(max_steps=7, exporters=recorder, throttle_secs=3600)
    )
    # The first is not throttled; the last step is always evaluated.
    assert _steps(recorder) == [2, 7]


def test_a_training_that_is_done_evaluates_nothing(tmp_path):
    estimator = plain.make(tmp_path)
    estimator.train(plain.train_input, max_steps=7)
    assert tfe.train_and_evaluate(estimator, *_specs(max_steps=7)) == (None, None)


@pytest.mark.behaviour(408)
@row(
    "estimator",
    "`train_and_evaluate` without checkpoints",
    "CheckpointSaverHook",
    "save_checkpoints_steps",
)
def test_without_checkpoints_there_is_nothing_to_evaluate(tmp_path, refused):
    with refused(ValueError):
        tfe.train_and_evaluate(plain.make(tmp_path, save=None), *_specs())


@pytest.mark.parametrize(("when", "evaluated", "trained"), [("before", [3], 6), ("after", [3], 3)])
@pytest.mark.behaviour(409)
def test_a_listener_may_stop_it(tmp_path, when, evaluated, trained):
    class Stop(EvaluationListener):
        asked = 0

        def before_eval(self):
            self.asked += 1
            return when != "before" or self.asked < 2

        def after_eval(self, evaluated):
            return when != "after" or evaluated.global_step < 3

    recorder = plain.Recorder()
    estimator = plain.make(tmp_path, save=3)
    train, evaluate = _specs(max_steps=20, exporters=recorder)
    run_schedule(estimator, train, evaluate, listener=Stop())
    assert _steps(recorder) == evaluated
    assert estimator.get_variable_value("global_step") == trained


@mostly_swept(
    ("returned", "error", "says"),
    [
        ({}, ValueError, "should never return empty metrics"),
        ("loss: 3", TypeError, "should return dict. Given <class 'str'>"),
        ({"loss": 3.0}, ValueError, r"should have `global_step` in result. Given \{'loss': 3.0\}"),
    ],
    kept=[
        ({"loss": 3.0}, ValueError, r"should have `global_step` in result. Given \{'loss': 3.0\}")
    ],
)
@pytest.mark.behaviour(410)
def test_what_evaluate_returns_is_checked(tmp_path, monkeypatch, returned, error, says):
    estimator = plain.make(tmp_path)
    monkeypatch.setattr(estimator, "evaluate", lambda **arguments: returned)
    with pytest.raises(error, match=says):
        tfe.train_and_evaluate(estimator, *_specs())


@pytest.mark.behaviour(404)
def test_arguments_are_checked_the_eval_spec_first():
    with pytest.raises(TypeError, match=r"`eval_spec` must have type `tf\.estimator\.EvalSpec`"):
        tfe.train_and_evaluate(0, 0, 0)


@pytest.mark.behaviour(414)
def test_a_tpu_estimator_on_cores_works_like_any(tmp_path, caplog):
    estimator = on_cores.linear(tmp_path, loop=3, config={"save_checkpoints_steps": 3})
    recorder = plain.Recorder()
    train = tfe.TrainSpec(on_cores.train_input_fn, max_steps=6)
    evaluate = tfe.EvalSpec(linear_model.input_fn, steps=None, exporters=recorder, throttle_secs=0)
    with log_lines(caplog) as logged:
        metrics, _ = tfe.train_and_evaluate(estimator, train, evaluate)
    assert _steps(recorder) == [3, 6]
    _, weights, bias = on_cores.descended(6)
    expected = linear_model.loss(linear_model.rows(), weights, bias)
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-5)
    assert any("Start train and evaluate loop" in line for line in logged)
    with pytest.raises(ValueError, match="one of `steps` or `max_steps` must be set"):
        tfe.train_and_evaluate(estimator, tfe.TrainSpec(on_cores.train_input_fn), evaluate)
    assert isinstance(estimator, tpu.TPUEstimator)


def test_a_model_is_exported_at_the_end(tmp_path):
    final = tfe.FinalExporter("final", plain.receiver_fn)
    _, (path,) = tfe.train_and_evaluate(plain.make(tmp_path), *_specs(exporters=final))
    assert os.path.dirname(path.decode()) == str(tmp_path / "export" / "final")
    served = tf.saved_model.load(path.decode(), tags=["serve"]).signatures["serving_default"]
    features, _ = linear_model.rows()
    _, weights, bias = list(linear_model.descend(linear_model.batches(plain.BATCH, epochs=3)[:7]))[
        -1
    ]
    np.testing.assert_allclose(
        served(x=tf.constant(features))["y"],
        linear_model.output(features, weights, bias),
        rtol=1e-5,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tfe.Estimator:
    estimator = plain.make(tmp_path_factory.mktemp("model"))
    estimator.train(plain.train_input, max_steps=3)
    return estimator


def _export(exporter: tfe.Exporter, estimator: Any, folder: Any, *, final=False, **result) -> Any:
    return exporter.export(
        estimator=estimator,
        export_path=str(folder),
        checkpoint_path=estimator.latest_checkpoint(),
        eval_result={"loss": 1.0, "global_step": 3, **result},
        is_the_final_export=final,
    )


def _fake_versions(folder: Any, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)


@pytest.mark.behaviour(416)
def test_the_final_exporter_waits_for_the_end(trained, tmp_path):
    exporter = tfe.FinalExporter("f", plain.receiver_fn)
    assert exporter.name == "f"
    assert _export(exporter, trained, tmp_path) is None
    path = _export(exporter, trained, tmp_path, final=True)
    assert os.path.isdir(path)


@pytest.mark.behaviour(416)
def test_the_latest_exporter_keeps_the_newest(trained, tmp_path):
    # Not a version: too short, no number.
    _fake_versions(tmp_path, "1000000001", "1000000002", "1000000003", "12", "temp-1000000000")
    exporter = tfe.LatestExporter("l", plain.receiver_fn, exports_to_keep=2)
    path = _export(exporter, trained, tmp_path).decode()
    kept = sorted(os.listdir(tmp_path))
    assert kept == sorted(["1000000003", "12", "temp-1000000000", os.path.basename(path)])


@pytest.mark.behaviour(415)
def test_the_best_exporter_exports_what_is_better(trained, tmp_path):
    exporter = tfe.BestExporter(serving_input_receiver_fn=plain.receiver_fn, exports_to_keep=None)
    assert exporter.name == "best_exporter"
    losses = [5.0, 6.0, 4.0, 4.0, 3.0]
    exported = [_export(exporter, trained, tmp_path, loss=loss) is not None for loss in losses]
    assert exported == [True, False, True, False, True]
    assert len(os.listdir(tmp_path)) == 3


@pytest.mark.behaviour(415)
def test_a_restart_never_exports_a_worse_model(tmp_path):
    """The best result is in the evaluation's events; the original exports whatever comes first."""
    estimator = plain.make(tmp_path / "model", save=2)
    exports = tmp_path / "model" / "export" / "best_exporter"

    def run(max_steps: int, rate_of_loss: float) -> int:
        exporter = tfe.BestExporter(
            serving_input_receiver_fn=plain.receiver_fn,
            compare_fn=lambda best_eval_result, current_eval_result: (
                current_eval_result["loss"] * rate_of_loss < best_eval_result["loss"]
            ),
            exports_to_keep=None,
        )
        tfe.train_and_evaluate(
            estimator,
            tfe.TrainSpec(plain.train_input, max_steps=max_steps),
            tfe.EvalSpec(plain.eval_input, exporters=exporter, throttle_secs=0),
        )
        return len(os.listdir(exports))

    # The loss goes down with every step here, so each evaluation is the best so far.
    assert run(4, rate_of_loss=1) == 2
    # After the restart nothing is good enough, then everything is.
    assert run(8, rate_of_loss=1000) == 2
    assert run(10, rate_of_loss=1) == 3


@pytest.mark.behaviour(415)
def test_without_a_pattern_a_restart_forgets(trained, tmp_path):
    _fake_versions(tmp_path, "1000000001")
    forgetful = tfe.BestExporter("b", plain.receiver_fn, event_file_pattern=None)
    assert _export(forgetful, trained, tmp_path, loss=99.0) is not None
