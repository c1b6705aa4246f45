"""The taxi pipeline, run once by the command that a newcomer types."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner
from sklearn.metrics import roc_auc_score
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

from tests.components.report.pages import Page
from tests.pipeline_runs import TAXI, PipelineRun, completed, run_local
from tfx_tpu_trainer.components.report import read_run_data
from tfx_tpu_trainer.serving import describe_saved_model
from tfx_tpu_trainer.workbench.cli.main import main
from tfx_tpu_trainer.workbench.history.run_log import BEFORE_COMPONENTS
from tfx_tpu_trainer.workbench.project.metadata import State

pytestmark = pytest.mark.e2e

COMPONENTS = [
    "CsvExampleGen",
    "StatisticsGen",
    "SchemaGen",
    "ExampleValidator",
    "Transform",
    "latest_blessed_model",
    "TpuTrainer",
    "Evaluator",
    "EvalMetricsGate",
    "Pusher",
]

LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?P<level>[A-Z]+) +(?P<component>\w+): \S")


def raw_rows(run: PipelineRun) -> list[tf.train.Example]:
    """The raw eval split."""
    folder = run.output_folder("CsvExampleGen", "examples") / "Split-eval"
    dataset = tf.data.TFRecordDataset(
        [str(path) for path in folder.iterdir()], compression_type="GZIP"
    )
    return [tf.train.Example.FromString(row) for row in dataset.as_numpy_iterator()]


def number(example: tf.train.Example, name: str) -> float:
    feature = example.features.feature[name]
    return float([*feature.float_list.value, *feature.int64_list.value][0])


def test_every_component_completes(taxi_run: PipelineRun) -> None:
    assert sorted(taxi_run.statuses) == sorted(COMPONENTS)
    assert {status.state for status in taxi_run.statuses.values()} == {State.COMPLETE}


def test_nothing_is_packaged_for_workers_that_run_in_this_process(taxi_run: PipelineRun) -> None:
    assert "Running launcher for node_info" in taxi_run.debug_log
    # TFX's messages when it packages a copy of itself, and when it packages a module file.
    for packed in ("infer TFX Python dependency", "ephemeral wheel"):
        assert packed not in taxi_run.debug_log


def test_a_first_runs_log_fits_300_lines_that_say_when_how_bad_and_where(
    taxi_run: PipelineRun,
) -> None:
    lines = taxi_run.log.splitlines()
    assert len(lines) <= 300
    heads = [LOG_LINE.match(line) for line in lines]
    assert all(heads), [line for line, head in zip(lines, heads) if not head]
    assert {head["component"] for head in heads} == {*COMPONENTS, BEFORE_COMPONENTS}
    assert {head["level"] for head in heads} <= {"INFO", "WARNING"}
    for text, times in (
        ("Parsed the training input", 1),
        ("Loss for final step", 1),
        ("The pipeline has ended: ", 1),
        (" TpuTrainer: the page is ", 1),
        (" EvalMetricsGate: blessed", 1),
        (" EvalMetricsGate: the page is ", 1),
    ):
        assert sum(text in line for line in lines) == times, text
    # No dump of TFX's, and no warning that calls ours deprecated.
    for text in ("node_info", "MetadataStore", "deprecated"):
        assert text not in taxi_run.log, text
    assert len(taxi_run.debug_log.splitlines()) > 5000


def test_tensorboard_shows_the_run_by_its_name(taxi_run: PipelineRun) -> None:
    board = EventMultiplexer().AddRunsFromDirectory(taxi_run.report.tensorboard)
    name = f"taxi-{taxi_run.folder.name}"
    assert sorted(board.Runs()) == [f"{name}/eval", f"{name}/train"]


def test_the_model_is_blessed_by_the_gate_and_pushed(taxi_run: PipelineRun) -> None:
    report = taxi_run.report
    assert report.blessed is True
    assert "accuracy" in report.verdict
    assert report.pushed is not None
    assert Path(report.pushed).parent == taxi_run.root / "serving"
    assert report.eval_examples == 4966
    assert report.eval_metrics["accuracy"] >= 0.87
    assert report.eval_metrics["auc"] >= 0.93
    assert report.train_loss is not None
    assert report.train_loss < 0.35


def test_the_summary_shows_it_all(taxi_run: PipelineRun) -> None:
    report = taxi_run.report
    for text in (
        *COMPONENTS,
        "train loss",
        "auc 0.9",
        "blessed",
        Path(report.pushed).name,
        "SavedModel [serve]",
        "SavedModel [serve, tpu]",
        "probability=",
        "tensorboard --logdir",
        "log.txt",
    ):
        assert text in taxi_run.output, text
    assert "Traceback" not in taxi_run.output
    assert "Warning" not in taxi_run.output
    assert all(line == line.rstrip() for line in taxi_run.output.splitlines())


def test_the_pushed_model_has_both_metagraphs(taxi_run: PipelineRun) -> None:
    graphs = {
        graph.tags: graph.signatures for graph in describe_saved_model(taxi_run.report.pushed)
    }
    assert {frozenset(tags) for tags in graphs} == {
        frozenset({"serve"}),
        frozenset({"serve", "tpu"}),
    }
    by_tags = {frozenset(tags): signatures for tags, signatures in graphs.items()}
    assert set(by_tags[frozenset({"serve"})]) == {
        "serving_default",
        "predict_raw",
        "transform_features",
    }
    assert "serving_default" in by_tags[frozenset({"serve", "tpu"})]


def test_the_pushed_model_predicts_for_raw_rows_without_tips(taxi_run: PipelineRun) -> None:
    rows = raw_rows(taxi_run)
    labels = [number(row, "tips") > 0.2 * number(row, "fare") for row in rows]
    for row in rows:
        del row.features.feature["tips"]
    model = tf.saved_model.load(taxi_run.report.pushed, tags=["serve"])
    serialized = tf.constant([row.SerializeToString() for row in rows])
    probability = model.signatures["serving_default"](examples=serialized)["probability"].numpy()
    accuracy = np.mean((probability > 0.5) == labels)
    # The metrics of the graph that trained, found again through the exported one.
    assert accuracy == pytest.approx(taxi_run.report.eval_metrics["accuracy"], abs=1e-3)
    exact_auc = roc_auc_score(labels, probability)
    assert exact_auc == pytest.approx(taxi_run.report.eval_metrics["auc"], abs=1e-3)


def test_the_stock_evaluator_agrees_and_blesses_nothing(taxi_run: PipelineRun) -> None:
    import tensorflow_model_analysis as tfma

    folder = taxi_run.output_folder("Evaluator", "evaluation")
    result = tfma.load_eval_result(str(folder))
    overall = {
        name: value["doubleValue"]
        for key, metrics in result.slicing_metrics
        if key == ()
        for name, value in metrics[""][""].items()
    }
    metrics = taxi_run.report.eval_metrics
    assert overall["example_count"] == 4966
    assert overall["binary_accuracy"] == pytest.approx(metrics["accuracy"], abs=1e-3)
    assert overall["auc"] == pytest.approx(metrics["auc"], abs=2e-3)
    blessing = taxi_run.output_folder("Evaluator", "blessing")
    assert not list(blessing.glob("*BLESSED"))


@pytest.mark.sweep
def test_a_second_run_is_answered_from_the_cache(taxi_run: PipelineRun) -> None:
    second = completed(run_local("taxi", taxi_run.root, *TAXI))
    cached = {node for node, status in second.statuses.items() if status.state is State.CACHED}
    # The gate has a baseline now, the model that the first run pushed, so it judges again.
    assert cached == set(COMPONENTS) - {"latest_blessed_model", "EvalMetricsGate", "Pusher"}
    assert "7 of 10 components came from TFX's cache" in second.output
    assert second.report.blessed is True
    assert "first model" not in second.report.verdict
    assert second.report.eval_metrics == taxi_run.report.eval_metrics

    third = completed(run_local("taxi", taxi_run.root, *TAXI))
    assert "9 of 10 components came from TFX's cache" in third.output
    assert third.report.pushed == second.report.pushed


def test_the_run_is_shown_again(taxi_run: PipelineRun) -> None:
    shown = CliRunner().invoke(main, ["show", "--root", str(taxi_run.root)])
    assert shown.exit_code == 0, shown.output
    run, *again = shown.stdout.splitlines()
    assert run.startswith(f"Run {taxi_run.name}: complete, started ")
    # All that the run itself has printed at its end.
    before = taxi_run.output[taxi_run.output.index("Components\n") :].splitlines()
    artifacts = slice(again.index("Artifacts"), again.index("Look further"))
    model = taxi_run.output_folder("TpuTrainer", "model")
    assert any(line.endswith(f" {model}") for line in again[artifacts])
    del again[artifacts]
    assert again == before
    # It ends with the page, which has the gate's word.
    page = Path(before[-1].split()[-1])
    assert page.parent.parent == taxi_run.root / "reports"
    assert taxi_run.report.verdict[1:] in Page(page.read_text("utf-8")).text


def test_the_page_of_the_run_has_the_gates_verdict(taxi_run: PipelineRun, tmp_path: Path) -> None:
    where = ("--root", str(taxi_run.root), "--output", str(tmp_path / "page"))
    written = CliRunner().invoke(main, ["report", taxi_run.name, *where])
    assert written.exit_code == 0, written.output
    report, run = taxi_run.report, read_run_data(str(tmp_path / "page"))
    assert re.fullmatch(r"taxi, \d{4}-\d\d-\d\d \d\d:\d\d UTC", run.title)
    assert written.stdout == f"{run.title}: {tmp_path}/page/run.html\n"
    assert run.measured.metrics == report.eval_metrics
    assert (run.verdict.blessed, run.verdict.says) == (True, report.verdict)
    assert {", ".join(graph.tags) for graph in run.exported.meta_graphs} == set(report.signatures)
    assert run.lineage.settings["train_steps"] == "1000"
    assert run.unread == ()
    page = Page((tmp_path / "page" / "run.html").read_text("utf-8"))
    assert report.verdict[1:] in page.text
    assert report.verdict.startswith("blessed")
    assert f"{report.eval_metrics['auc']:.6g}" in page.row("auc")


def test_the_summary_has_the_learning_curve(taxi_run: PipelineRun) -> None:
    steps = [point["global_step"] for point in taxi_run.report.learning_curve]
    assert steps == [500, 1000]
    last = taxi_run.report.learning_curve[-1]
    assert last["auc"] == taxi_run.report.eval_metrics["auc"]
    assert f"to {last['auc']:.4f} (step 1,000)" in taxi_run.output
