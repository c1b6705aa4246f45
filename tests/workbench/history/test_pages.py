"""`tfx-tpu-trainer history --html`, over a real metadata file and the folders that it names."""

import dataclasses
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
from tfx_tpu_trainer.workbench.history.pages import Provenance
from tfx_tpu_trainer.workbench.project import metadata


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
        **{key: str(folder) for key, folder in folders.items()},
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    writer = Writer(tmp_path / "metadata.sqlite")
    _trained(writer, tmp_path, "monday", accuracy=0.5, rate="0.1")
    _trained(writer, tmp_path, "tuesday", accuracy=0.75, rate="0.01")
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
    (monday,) = (row for row in page.rows if row[0] == "monday" and len(row) == 4)
    assert monday[1].startswith("complete, started ")
    assert monday[2:] == ["not judged", "100"]
    (failed,) = (row for row in page.rows if row[0] == "wednesday")
    assert "run wednesday trained no model" in failed[2]
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
