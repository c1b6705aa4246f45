"""Tests progress, history and summary on a real SQLite metadata file, written as TFX does."""

import dataclasses
import io
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from click.testing import CliRunner
from ml_metadata.proto import metadata_store_pb2 as mlmd
from rich.console import Console
from rich.text import Text

from tests.bad_input import case
from tfx_tpu_trainer._support.progress import Steps
from tfx_tpu_trainer._support.progress_views import StatusFile
from tfx_tpu_trainer._support.terminal import PlainConsole
from tfx_tpu_trainer.workbench.cli.main import main
from tfx_tpu_trainer.workbench.history import progress
from tfx_tpu_trainer.workbench.history.progress import (
    LiveDisplay,
    PlainDisplay,
    RunMonitor,
    make_display,
)
from tfx_tpu_trainer.workbench.history.report import Failure, Prediction, RunReport
from tfx_tpu_trainer.workbench.history.summary import curve_lines, print_summary, results_table
from tfx_tpu_trainer.workbench.project import metadata, roots
from tfx_tpu_trainer.workbench.project.metadata import NodeStatus, State
from tfx_tpu_trainer.workbench.run import local_runner

NODES = ["CsvExampleGen", "Transform", "TpuTrainer", "Pusher"]


class Writer:
    """Records executions the way TFX does: contexts for the run and the node, a state, an output."""

    def __init__(self, path: Path) -> None:
        self.store = metadata.open_store(path, read_only=False)
        self.types = {
            name: self.store.put_context_type(mlmd.ContextType(name=name))
            for name in (metadata.RUN_CONTEXT, metadata.NODE_CONTEXT)
        }
        self.execution_type = self.store.put_execution_type(mlmd.ExecutionType(name="component"))
        self.artifact_type = self.store.put_artifact_type(mlmd.ArtifactType(name="Model"))

    def _context(self, kind: str, name: str) -> int:
        found = self.store.get_context_by_type_and_name(kind, name)
        if found is not None:
            return found.id
        return self.store.put_contexts([mlmd.Context(type_id=self.types[kind], name=name)])[0]

    def execution(
        self,
        run: str,
        node: str,
        state: int,
        *,
        uri: str | None = None,
        properties: Mapping[str, str] = MappingProxyType({}),
        artifact_properties: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
        **outputs: str,
    ) -> int:
        execution = mlmd.Execution(type_id=self.execution_type, last_known_state=state)
        for name, value in properties.items():
            execution.custom_properties[name].string_value = value
        contexts = [
            mlmd.Context(
                id=self._context(metadata.RUN_CONTEXT, run), type_id=self.types["pipeline_run"]
            ),
            mlmd.Context(
                id=self._context(metadata.NODE_CONTEXT, f"taxi.{node}"), type_id=self.types["node"]
            ),
        ]
        for kind, name, context in zip(
            (metadata.RUN_CONTEXT, metadata.NODE_CONTEXT), (run, f"taxi.{node}"), contexts
        ):
            context.name = name
            assert kind in self.types
        pairs = []
        for key, each in {**({"model": uri} if uri else {}), **outputs}.items():
            event = mlmd.Event(type=mlmd.Event.OUTPUT)
            event.path.steps.add().key = key
            artifact = mlmd.Artifact(type_id=self.artifact_type, uri=each)
            for name, value in artifact_properties.get(key, {}).items():
                kind = "int_value" if isinstance(value, int) else "double_value"
                setattr(artifact.custom_properties[name], kind, value)
            pairs.append((artifact, event))
        return self.store.put_execution(execution, pairs, contexts)[0]

    def change(self, execution_id: int, state: int) -> None:
        (execution,) = self.store.get_executions_by_id([execution_id])
        execution.last_known_state = state
        self.store.put_executions([execution])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"


def test_a_monitor_follows_the_first_run_it_has_not_seen(path: Path) -> None:
    writer = Writer(path)
    writer.execution("old", "CsvExampleGen", mlmd.Execution.COMPLETE)
    monitor = RunMonitor(path)
    waiting = monitor.statuses(NODES)
    assert [status.state for status in waiting] == [State.WAITING] * 4
    assert monitor.run is None

    first = writer.execution("new", "CsvExampleGen", mlmd.Execution.CACHED)
    second = writer.execution("new", "Transform", mlmd.Execution.RUNNING)
    states = [status.state for status in monitor.statuses(NODES)]
    assert monitor.run == "new"
    assert states == [State.CACHED, State.RUNNING, State.WAITING, State.WAITING]

    writer.change(second, mlmd.Execution.FAILED)
    statuses = monitor.statuses(NODES)
    assert [status.execution_id for status in statuses] == [first, second, None, None]
    assert statuses[1].state is State.FAILED


def test_a_monitor_waits_for_a_file_that_does_not_exist_yet(path: Path) -> None:
    monitor = RunMonitor(path)
    assert monitor.statuses([]) == []
    Writer(path).execution("first", "CsvExampleGen", mlmd.Execution.COMPLETE)
    assert monitor.statuses(NODES)[0].state is State.COMPLETE


def test_watching_never_holds_up_the_writer(path: Path) -> None:
    writer = Writer(path)
    monitor = RunMonitor(path)
    errors: list[BaseException] = []

    def write() -> None:
        try:
            for index in range(60):
                writer.change(
                    writer.execution("run", f"node{index}", mlmd.Execution.RUNNING),
                    mlmd.Execution.COMPLETE,
                )
        except BaseException as error:
            errors.append(error)

    names = [f"node{index}" for index in range(60)]
    thread = threading.Thread(target=write)
    thread.start()
    while thread.is_alive():
        monitor.statuses(names)
    thread.join()
    assert errors == []
    assert {status.state for status in monitor.statuses(names)} == {State.COMPLETE}


def test_a_run_that_broke_off_is_marked_failed_with_its_reason(path: Path) -> None:
    writer = Writer(path)
    writer.execution("run", "CsvExampleGen", mlmd.Execution.COMPLETE)
    writer.execution("run", "Transform", mlmd.Execution.RUNNING)
    assert metadata.fail_unfinished(writer.store, "run", "ValueError: no") == "Transform"
    statuses = metadata.node_statuses(metadata.open_store(path), "run")
    assert statuses["CsvExampleGen"].state is State.COMPLETE
    assert statuses["Transform"].state is State.FAILED
    assert statuses["Transform"].error == "ValueError: no"


def test_a_plain_display_prints_each_change_once() -> None:
    text = io.StringIO()
    console = Console(file=text, width=100)
    assert isinstance(make_display(console, plain=False), PlainDisplay)
    with PlainDisplay(console) as display:
        display.update([NodeStatus("A"), NodeStatus("B")], "starting")
        display.update([NodeStatus("A", State.RUNNING, 1.0, 1), NodeStatus("B")], "running")
        display.update([NodeStatus("A", State.RUNNING, 2.0, 1), NodeStatus("B")], "running")
        display.update([NodeStatus("A", State.COMPLETE, 2.5, 1), NodeStatus("B")], "running")
    lines = [line.split("] ", 1)[1] for line in text.getvalue().splitlines()]
    assert lines == ["starting", "running", "A: running", "A: complete (2.5 s)"]


def test_a_live_display_draws_every_component() -> None:
    text = io.StringIO()
    console = Console(file=text, width=100, force_terminal=True)
    assert isinstance(make_display(console, plain=True), PlainDisplay)
    display = make_display(console, plain=False)
    assert isinstance(display, LiveDisplay)
    with display:
        display.update([NodeStatus("Alpha", State.RUNNING, 1.0, 1), NodeStatus("Beta")], "working")
    shown = text.getvalue()
    assert "Alpha" in shown
    assert "Beta" in shown
    assert "working" in shown


@pytest.mark.parametrize(
    "content",
    [
        case(
            "runners",
            f"`tfx-tpu-trainer history` of {given}",
            "Error: ",
            "text.sqlite' can't be read as ML Metadata: ",
            "; give the root of a pipeline's runs with --root",
            values=content,
        )
        for given, content in (
            ("a text", b"no database at all, but long enough to look like a file"),
            ("an empty file", b""),
        )
    ],
)
def test_the_history_of_what_is_no_metadata_is_refused(
    tmp_path: Path, content: bytes, refused
) -> None:
    (tmp_path / "text.sqlite").write_bytes(content)
    refused.output(CliRunner().invoke(main, ["history", "--root", str(tmp_path / "text.sqlite")]))


def test_the_history_lists_failed_runs_with_their_errors(path: Path) -> None:
    writer = Writer(path)
    writer.execution("monday", "TpuTrainer", mlmd.Execution.COMPLETE, uri="/models/1")
    writer.execution("tuesday", "Transform", mlmd.Execution.RUNNING)
    metadata.fail_unfinished(writer.store, "tuesday", "ValueError: bad label")
    result = CliRunner().invoke(main, ["history", "--root", str(path)])
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.output.splitlines()]
    assert ["monday", "not", "judged", "0", "s", "first", "run"] in rows
    assert ["tuesday", "failed", "0", "s", "nothing"] in rows
    assert "tuesday: Transform: ValueError: bad label" in result.output
    last = CliRunner().invoke(main, ["history", "--root", str(path), "--last", "1"]).output
    assert "monday" not in last


def history_of(path: Path) -> str:
    result = CliRunner().invoke(main, ["history", "--root", str(path)])
    assert result.exit_code == 0, result.output
    return result.output


def states_of(path: Path) -> dict[str, str]:
    rows = [line.split() for line in history_of(path).splitlines()]
    return {row[0]: row[1] for row in rows if row[0] in ("monday", "tuesday")}


def test_the_history_fits_80_columns_but_for_paths(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(path)
    run = "2026-11-23T15:35:10.123456"
    writer.execution(run, "Evaluator", mlmd.Execution.RUNNING)
    metadata.fail_unfinished(writer.store, run, "ValueError: " + "no such column " * 20)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    lines = Text.from_ansi(history_of(path)).plain.splitlines()
    assert max(len(line) for line in lines if "--root" not in line) <= 80
    assert sum("no such column" in line for line in lines) > 3


def test_a_run_whose_process_is_gone_was_killed(path: Path) -> None:
    Writer(path).execution("monday", "TpuTrainer", mlmd.Execution.RUNNING)
    # The owner of the file is unknown, so ML Metadata is believed.
    assert states_of(path)["monday"] == "running"
    with roots.locked(path.parent):
        pass
    assert states_of(path)["monday"] == "killed"
    assert "ended without reporting a result" in history_of(path)


def test_of_the_runs_of_a_locked_root_only_the_one_that_goes_on_is_running(path: Path) -> None:
    writer = Writer(path)
    writer.execution("monday", "TpuTrainer", mlmd.Execution.RUNNING)
    # ML Metadata counts in milliseconds.
    time.sleep(0.01)
    with roots.locked(path.parent):
        # Before its first component has begun, the newest recorded run is another one.
        assert states_of(path)["monday"] == "killed"
        time.sleep(0.01)
        writer.execution("tuesday", "TpuTrainer", mlmd.Execution.RUNNING)
        states = states_of(path)
    assert states == {"monday": "killed", "tuesday": "running"}


def test_what_a_killed_run_has_left_running_is_recorded_as_killed(path: Path) -> None:
    writer = Writer(path)
    writer.execution("run", "CsvExampleGen", mlmd.Execution.COMPLETE)
    writer.execution("run", "Transform", mlmd.Execution.RUNNING)
    metadata.mark_killed(writer.store)
    metadata.mark_killed(writer.store)
    statuses = metadata.node_statuses(metadata.open_store(path), "run")
    assert statuses["CsvExampleGen"].state is State.COMPLETE
    killed = statuses["Transform"]
    assert (killed.state, killed.seconds, killed.error) == (State.KILLED, 0.0, metadata.KILLED)


def summary_of(statuses: list[NodeStatus], report: RunReport) -> str:
    text = io.StringIO()
    console = Console(file=text, width=140)
    print_summary(
        console,
        statuses=statuses,
        report=report,
        metadata_file="/r/m.sqlite",
        log=Path("/r/log.txt"),
    )
    return text.getvalue()


def test_the_summary_says_of_a_loss_that_it_is_not_of_the_last_step() -> None:
    report = RunReport(train_loss=0.69, train_step=1, trained_steps=50)
    assert "0.6900 (step 1 of 50, the last recorded)" in summary_of([], report)


def advised(report: RunReport) -> RunReport:
    """A report as `collect` ends it."""
    return dataclasses.replace(report, advice=report.compared_losses())


def test_the_summary_says_why_a_model_may_not_be_blessed() -> None:
    refused = RunReport(
        train_loss=0.047,
        train_step=900,
        eval_metrics={"loss": 2.23},
        blessed=False,
        pusher="Pusher",
    )
    text = summary_of([NodeStatus("Pusher", State.COMPLETE, 0.1, 1)], advised(refused))
    assert text.splitlines()[-1].startswith(
        "Not blessed. It overfits: the training loss is far below"
    )
    assert "nothing pushed" in text
    # The last evaluation, not that of the best checkpoint: overfitting comes after it.
    curve = [{"loss": 0.5, "global_step": 100.0}, {"loss": 0.06, "global_step": 900.0}]
    other = dataclasses.replace(refused, learning_curve=curve)
    assert "It does not overfit (training 0.047, evaluation 0.06)" in summary_of([], advised(other))
    assert "overfit" not in summary_of([], advised(dataclasses.replace(refused, blessed=True)))


def test_the_summary_says_what_came_out() -> None:
    report = RunReport(
        train_loss=0.1234,
        train_step=3000,
        eval_metrics={"accuracy": 0.91, "auc": 0.95},
        eval_examples=5091,
        blessed=True,
        verdict="blessed: auc is 0.95 (>= 0.9)",
        pushed="/r/serving/1",
        model="/r/serving/1",
        signatures={
            "serve": ["serving_default", "transform_features"],
            "serve, tpu": ["serving_default"],
        },
        prediction=Prediction({"fare": "12.5"}, {"tips": "3"}, {"probability": "0.87"}),
        model_run="/r/model_run",
        best_params={"rate": 0.5, "units": [8, 4]},
        trials=7,
    )
    text = summary_of(
        [NodeStatus("A", State.CACHED, 0.1, 1), NodeStatus("B", State.COMPLETE, 5.0, 2)], report
    )
    for part in (
        "1 of 2 components came from TFX's cache",
        "0.1234 (step 3,000)",
        "eval metrics (5,091 rows)",
        "accuracy 0.9100  auc 0.9500",
        "the gate",
        "/r/serving/1",
        "SavedModel [serve, tpu]",
        "probability=0.87",
        "tips=3",
        "The best settings of 7 trials, with which the model above was trained.",
        "write them into config.yaml:\n\nmodel:\n  rate: 0.5\n  units: [8, 4]\n",
        "--logdir /r/model_run",
        "tfx-tpu-trainer history --root /r/m.sqlite",
        "less /r/log.txt",
        "less /r/debug.txt",
    ):
        assert part in text


def test_the_learning_curve_is_a_line_for_each_metric() -> None:
    curve = [
        {"global_step": 200.0, "auc": 0.5, "loss": 0.7},
        {"global_step": 400.0, "auc": 0.75, "loss": float("nan")},
        {"global_step": 1000.0, "auc": 1.0, "loss": 0.1},
    ]
    text = summary_of([], RunReport(learning_curve=curve, best_step=1000))
    assert "auc while training" in text
    assert "▁▅█  0.5000 (step 200) to 1.0000 (step 1,000)" in text
    assert "█ ▁  0.7000 (step 200) to 0.1000 (step 1,000)" in text
    assert text.partition("best evaluation")[2].split()[:2] == ["step", "1,000"]
    assert "while training" not in summary_of([], RunReport(learning_curve=curve[:1]))


def test_a_long_learning_curve_keeps_its_line_short_and_its_last_evaluation() -> None:
    curve = [{"global_step": float(step), "auc": step / 1000} for step in range(10, 1001, 10)]
    ((name, line),) = curve_lines(curve)
    assert name == "auc"
    assert line.endswith("to 1.0000 (step 1,000)")
    assert line.split()[0] == "".join(sorted(line.split()[0]))
    assert 10 <= len(line.split()[0]) <= 20


def test_the_summary_of_a_failed_run_ends_with_its_reason() -> None:
    report = RunReport(failure=Failure("Transform", "ValueError: [red]no[/red] such column"))
    text = summary_of(
        [NodeStatus("A", State.COMPLETE, 1.0, 1), NodeStatus("Transform", State.FAILED, 2.0, 2)],
        report,
    )
    assert text.rstrip().endswith("Transform failed: ValueError: [red]no[/red] such column")
    assert "Results" not in text


def test_a_report_survives_the_way_through_its_file(tmp_path: Path) -> None:
    report = RunReport(
        failure=Failure(None, "x"),
        eval_metrics={"loss": 0.5},
        signatures={"serve": ["a"]},
        prediction=Prediction({"a": "1"}, {}, {"b": "2"}),
    )
    report.write(tmp_path / "report.json")
    assert RunReport.read(tmp_path / "report.json") == report
    assert RunReport.read(tmp_path / "other.json") is None


TRAINER = NodeStatus("TpuTrainer", State.RUNNING, seconds=3.0)
SAID = "TpuTrainer: train: step 500 of 5,000 (10 %)"


def test_the_line_is_the_running_components_own_and_is_gone_with_it(tmp_path):
    view = StatusFile(str(tmp_path / local_runner.PROGRESS))
    view.shown("train", Steps(reached=500, last=5000))
    done = NodeStatus("Transform", State.COMPLETE)
    assert local_runner._progress([done, TRAINER], tmp_path) == SAID
    assert local_runner._progress([done], tmp_path) is None
    view.close()
    assert local_runner._progress([done, TRAINER], tmp_path) is None


def test_the_live_table_shows_it_below():
    stream = io.StringIO()
    console = PlainConsole(file=stream, width=100, force_terminal=True, color_system=None)
    with LiveDisplay(console) as display:
        display.update([TRAINER], "running", SAID)
    assert SAID in stream.getvalue()


@pytest.mark.parametrize(("seconds", "lines"), [(0.0, 3), (3600.0, 0)])
def test_without_a_terminal_it_is_a_line_now_and_then(monkeypatch, seconds, lines):
    monkeypatch.setattr(progress, "PROGRESS_SECONDS", seconds)
    stream = io.StringIO()
    display = PlainDisplay(PlainConsole(file=stream, width=100))
    for _ in range(3):
        display.update([TRAINER], "running", SAID)
    assert stream.getvalue().count(SAID) == lines


def test_the_results_say_where_it_ran():
    console = PlainConsole(file=io.StringIO(), width=100)
    console.print(results_table(RunReport(ran_on="4 emulated TPU cores")))
    assert "ran on     4 emulated TPU cores" in console.file.getvalue()
