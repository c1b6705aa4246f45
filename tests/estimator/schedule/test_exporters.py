from __future__ import annotations

import os
from typing import Any

import pytest

from tests.estimator.schedule import plain
from tfx_tpu_trainer import estimator as tfe

pytestmark = pytest.mark.matrix


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


@pytest.mark.sweep
@pytest.mark.behaviour(415)
def test_a_compare_fn_decides(trained, tmp_path):
    def higher(best_eval_result, current_eval_result):
        return current_eval_result["mae"] > best_eval_result["mae"]

    exporter = tfe.BestExporter("b", plain.receiver_fn, compare_fn=higher)
    exported = [_export(exporter, trained, tmp_path, mae=mae) is not None for mae in (1, 0.5, 2)]
    assert exported == [True, False, True]


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


@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("kind", [tfe.BestExporter, tfe.LatestExporter])
@pytest.mark.behaviour(415)
def test_exports_to_keep_is_positive(kind, number):
    with pytest.raises(ValueError, match=f"must be .*positive number. Got {number}"):
        kind("name", plain.receiver_fn, exports_to_keep=number)


@pytest.mark.parametrize(
    ("compare_fn", "says"),
    [
        (None, "must not be None"),
        (lambda best_eval_result: True, "must include current_eval_result"),
        (lambda current_eval_result: True, "must include best_eval_result"),
        (
            lambda best_eval_result, current_eval_result, extra: True,
            r"not expected args: \['extra'\]",
        ),
    ],
)
@pytest.mark.behaviour(415)
def test_compare_fn_is_checked(compare_fn, says):
    with pytest.raises(ValueError, match=says):
        tfe.BestExporter("b", plain.receiver_fn, compare_fn=compare_fn)


@pytest.mark.parametrize("result", [{}, {"mae": 1.0}])
@pytest.mark.behaviour(415)
def test_the_loss_must_be_there_to_be_compared(trained, tmp_path, result):
    exporter = tfe.BestExporter("b", plain.receiver_fn)
    _export(exporter, trained, tmp_path)
    with pytest.raises(ValueError, match="current_eval_result cannot be empty or no loss"):
        exporter.export(trained, str(tmp_path), trained.latest_checkpoint(), result, False)
