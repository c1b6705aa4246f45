"""Tests the list of runs, its page and comparisons, on a real metadata file with its folders."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from ml_metadata.proto import metadata_store_pb2 as mlmd

from tests.bad_input import row
from tests.components.report.pages import Page
from tests.components.report.runs import run_of, series_of
from tests.workbench.project.test_metadata import Writer
from tfx_tpu_trainer.components.evaluation import EvalMetrics, write_eval_metrics
from tfx_tpu_trainer.components.report import write_run_data
from tfx_tpu_trainer.components.report._run_data import Learning, Lineage
from tfx_tpu_trainer.workbench.cli.main import main
from tfx_tpu_trainer.workbench.history.listing import read_rows
from tfx_tpu_trainer.workbench.history.pages import Provenance
from tfx_tpu_trainer.workbench.history.report import REPORT, RunReport
from tfx_tpu_trainer.workbench.project import metadata
from tfx_tpu_trainer.workbench.project.roots import Root


def _trained(writer: Writer, root: Path, run: str, *, accuracy: float, rate: str) -> None:
    """Writes a run that has trained a model, as far as a page reads it."""
    folders = {key: root / "artifacts" / key / run for key in ("model", "model_run")}
    metrics = EvalMetrics(overall={"accuracy": accuracy}, global_step=3, num_examples=100)
    write_eval_metrics(str(folders["model"]), metrics)
    measured = dataclasses.replace(
        run_of().measured,
        num_examples=100,
        metrics={"accuracy": accuracy},
        slices=(),
        intervals={"accuracy": (accuracy - 0.0625, accuracy + 0.0625)},
        deviations={"accuracy": (-0.01, 0.01)},
        sampled_rows=100,
    )
    known = run_of(
        measured=measured,
        lineage=Lineage(settings={"rate": rate, "same": "1"}),
        learning=Learning(series=(series_of([0.5, 0.25]),)),
    )
    write_run_data(known, str(folders["model_run"]))
    writer.execution(
        run,
        "TpuTrainer",
        mlmd.Execution.COMPLETE,
        properties={
            "module_hash": rate,
            "best_metric": "accuracy",
            "params": f'{{"rate": {rate}, "same": 1}}',
        },
        artifact_properties={"model": {"eval_accuracy": accuracy, "eval_loss": 1.0}},
        **{key: str(folder) for key, folder in folders.items()},
    )


_CHANGED = "code of TpuTrainer; TpuTrainer.params.rate 0.1 → 0.01"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    writer = Writer(tmp_path / "metadata.sqlite")
    _trained(writer, tmp_path, "monday", accuracy=0.5, rate="0.1")
    _trained(writer, tmp_path, "tuesday", accuracy=0.75, rate="0.01")
    writer.execution(
        "tuesday",
        "Gate",
        mlmd.Execution.COMPLETE,
        artifact_properties={"blessing": {"blessed": 0}},
        blessing=str(tmp_path / "blessing"),
    )
    # As an Evaluator without thresholds leaves it.
    writer.execution(
        "tuesday", "Evaluator", mlmd.Execution.COMPLETE, blessing=str(tmp_path / "evaluator")
    )
    # As a Pusher leaves it that has pushed nothing.
    (tmp_path / "pushed").mkdir()
    writer.execution(
        "tuesday", "Pusher", mlmd.Execution.COMPLETE, pushed_model=str(tmp_path / "pushed")
    )
    writer.execution("wednesday", "Transform", mlmd.Execution.FAILED)
    return tmp_path


def _page(root: Path, *words: str) -> Page:
    output = root / "history.html"
    ended = CliRunner().invoke(
        main, ["history", "--root", str(root), "--html", str(output), *words]
    )
    assert ended.exit_code == 0, ended.output
    assert ended.output == f"The page: {output}\n"
    return Page(output.read_text("utf-8"))


def test_the_page_says_what_became_of_each_run_and_what_differs(root):
    page = _page(root)
    listed = {row[0]: row[1:] for row in page.rows if len(row) == 5}
    assert listed["monday"] == ["not judged", "0.5000", "0 s", "first run"]
    assert listed["tuesday"] == ["not blessed", "0.7500", "0 s", _CHANGED]
    assert listed["wednesday"][0].startswith("Transform: ")
    assert listed["wednesday"][1] == "–"
    assert page.row("rate") == ["0.1", "0.01"]
    assert not any(row and row[0] == "same" for row in page.rows)
    # Each metric with its interval, run by run.
    assert ["monday", "0.5", "0.4375 to 0.5625"] in page.rows
    assert ["tuesday", "0.75", "0.6875 to 0.8125"] in page.rows
    assert "tuesday is better by accuracy (0.25)" in page.text
    assert not page.unclosed


def test_one_run_is_listed_and_not_compared(root):
    page = _page(root, "--last", "1")
    assert page.links == ["#runs"]
    assert "1 run of " in page.text


_IMPORTS_NOTHING = """
import sys
from tfx_tpu_trainer.workbench.cli.main import main
try: main(sys.argv[1:])
finally: print([name for name in ("tensorflow", "tfx", "apache_beam") if name in sys.modules])
"""


def _typed(*words: str) -> list[str]:
    """Runs a command in its own process, and checks that it did not import TensorFlow."""
    ended = subprocess.run(
        [sys.executable, "-c", _IMPORTS_NOTHING, *words], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    *lines, imported = ended.stdout.splitlines()
    assert imported == "[]"
    return lines


def test_a_row_says_what_the_gate_did_and_what_was_changed(root):
    lines = [line.split() for line in _typed("history", "--root", str(root))]
    assert lines[0] == ["run", "model", "accuracy", "took", "changed"]
    assert ["monday", "not", "judged", "0.5000", "0", "s", "first", "run"] in lines
    row = next(line for line in lines if line[:1] == ["tuesday"])
    assert row[1:6] == ["not", "blessed", "0.7500", "0", "s"]


@pytest.mark.parametrize("last", [1, 2])
def test_the_settings_of_two_runs_with_logs_are_compared_by_their_configs(root, last):
    for number, steps in enumerate((100, 200)):
        folder = root / "logs" / str(number)
        folder.mkdir(parents=True)
        config = {"root": f"r{number}", "trainer": {"train_steps": steps, "tpu": None}}
        (folder / "config.json").write_text(json.dumps(config))
        # It was made before its run's first component.
        os.utime(folder / "config.json", (number, number))
    store = Root.at(str(root)).store()
    runs = {name: _began(store, name) for name in ("monday", "tuesday")}
    os.utime(root / "logs" / "1" / "config.json", (runs["tuesday"], runs["tuesday"]))
    rows = read_rows(Root.at(str(root)), store, last=last + 1)
    tuesday = next(row for row in rows if row.name == "tuesday")
    assert tuesday.changed == ("trainer.train_steps 100 → 200", "code of TpuTrainer")


def _began(store, run: str) -> float:
    return min(status.started for status in metadata.node_statuses(store, run).values())


def test_without_names_the_last_two_trained_runs_are_compared(root):
    lines = _typed("compare", "--root", str(root))
    text = "\n".join(lines)
    assert "Against monday: tuesday is better by accuracy (0.25)." in text
    assert ["rate", "0.1", "0.01"] in [line.split() for line in lines]
    assert lines[-1] == f"The page: {root}/reports/compare.html"
    assert Page((root / "reports" / "compare.html").read_text("utf-8")).row("rate") == [
        "0.1",
        "0.01",
    ]


@row(
    "runners",
    "`compare` where fewer than two runs have trained a model",
    "has 1 run that trained a model, and a comparison needs 2; run the pipeline again",
)
def test_one_trained_run_is_no_comparison(tmp_path, refused):
    _trained(Writer(tmp_path / "metadata.sqlite"), tmp_path, "monday", accuracy=0.5, rate="0.1")
    refused.output(CliRunner().invoke(main, ["compare", "--root", str(tmp_path)]))
    assert not (tmp_path / "reports").exists()


def test_show_is_what_the_run_has_written_of_itself_and_names_no_empty_folder(root):
    folder = root / "logs" / "0"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    os.utime(folder / "config.json", (0, 0))
    said = RunReport(
        run="tuesday",
        eval_metrics={"accuracy": 0.75},
        blessed=False,
        pusher="Pusher",
        advice="Wait.",
    )
    said.write(folder / REPORT)
    lines = _typed("show", "--root", str(root), "tuesday")
    assert lines[-1] == "Not blessed. Wait."
    assert any(line.endswith(f"  {root}/artifacts/model/tuesday") for line in lines)
    assert not any(str(root / "pushed") in line for line in lines)
    assert any("nothing pushed" in line for line in lines)


def test_pages_and_cards_land_below_the_root(root):
    ended = CliRunner().invoke(main, ["report", "monday", "--root", str(root), "--model-card"])
    assert ended.exit_code == 0, ended.output
    below = sorted(
        str(path.relative_to(root)) for path in (root / "reports").rglob("*") if path.is_file()
    )
    assert below == [
        "reports/model_card.json",
        "reports/model_card.md",
        "reports/monday/run.html",
        "reports/monday/run.json",
    ]
    assert f": {root}/reports/monday/run.html" in ended.output


@row("runners", "`history --html` of a root without runs", "has no runs; run the pipeline first")
def test_a_root_without_runs_has_no_page(tmp_path, refused):
    Writer(tmp_path / "metadata.sqlite")
    output = tmp_path / "history.html"
    refused.output(
        CliRunner().invoke(main, ["history", "--root", str(tmp_path), "--html", str(output)])
    )
    assert not output.exists()


# Where statistics and models come from, in a real SQLite metadata file.

_IN, _OUT = mlmd.Event.INPUT, mlmd.Event.OUTPUT


class _Store:
    """Writes executions with what they read and made."""

    def __init__(self, path):
        self.store = metadata.open_store(path, read_only=False)
        self._component = self.store.put_execution_type(mlmd.ExecutionType(name="component"))
        self._run = self.store.put_context_type(mlmd.ContextType(name=metadata.RUN_CONTEXT))

    def artifact(self, kind, uri):
        type_id = self.store.put_artifact_type(mlmd.ArtifactType(name=kind))
        (number,) = self.store.put_artifacts([mlmd.Artifact(type_id=type_id, uri=uri)])
        (found,) = self.store.get_artifacts_by_id([number])
        return found

    def execution(self, run, *, reads=(), makes=()):
        execution = mlmd.Execution(type_id=self._component)
        context = mlmd.Context(type_id=self._run, name=run)
        pairs = [
            (artifact, mlmd.Event(type=kind))
            for kind, artifacts in ((_IN, reads), (_OUT, makes))
            for artifact in artifacts
        ]
        self.store.put_execution(execution, pairs, [context], reuse_context_if_already_exist=True)


@pytest.fixture
def store(tmp_path):
    return _Store(tmp_path / "metadata.sqlite")


def _run(store, name, *, given=False, statistics=True):
    """Writes the executions of a pipeline; returns the model."""
    raw, transformed = store.artifact("Examples", f"{name}/raw"), store.artifact("Examples", name)
    found = store.artifact("ExampleStatistics", f"{name}/statistics")
    model = store.artifact("Model", f"{name}/model")
    store.execution(name, makes=[raw])
    if statistics:
        store.execution(name, reads=[raw], makes=[found])
    store.execution(name, reads=[raw], makes=[transformed])
    store.execution(name, reads=[transformed, *([found] if given else [])], makes=[model])
    return model


@pytest.mark.parametrize("given", [True, False])
def test_statistics_are_those_of_the_examples_that_the_model_was_trained_on(store, given):
    models = [_run(store, name, given=given) for name in ("monday", "tuesday")]
    lineage = Provenance(store.store)
    assert [lineage.statistics_of(model) for model in models] == [
        "monday/statistics",
        "tuesday/statistics",
    ]
    assert [lineage.run_of(model) for model in models] == ["monday", "tuesday"]


def test_where_nobody_has_measured_the_examples_there_are_none(store):
    model = _run(store, "monday", statistics=False)
    lineage = Provenance(store.store)
    assert lineage.statistics_of(model) is None
    assert lineage.statistics_of(None) is None
    assert lineage.run_of(store.artifact("Model", "elsewhere")) is None
