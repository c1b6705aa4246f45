"""Tests diagrams of pipelines and their runs."""

import dataclasses
import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from ml_metadata.proto import metadata_store_pb2 as mlmd

from tests.bad_input import row
from tests.workbench.project.test_metadata import Writer
from tfx_tpu_trainer.workbench.cli.main import main
from tfx_tpu_trainer.workbench.history import run_log
from tfx_tpu_trainer.workbench.history.graph import (
    FORMATS,
    Edge,
    Graph,
    graph_of_pipeline,
    graph_of_run,
    to_dot,
    to_mermaid,
)
from tfx_tpu_trainer.workbench.project.metadata import NodeStatus, State
from tfx_tpu_trainer.workbench.project.project import find_pipeline
from tfx_tpu_trainer.workbench.project.roots import Root


def _graph(names=("Gen", "Trainer", "Pusher"), *, states=(), error=None):
    edges = tuple(Edge(a, b, ("examples",)) for a, b in itertools.pairwise(names))
    statuses = [
        NodeStatus(name, state, seconds=1.25, execution_id=1, started=1.0, error=error)
        for name, state in zip(names, states)
    ]
    graph = Graph("taxi", tuple(names), edges)
    return graph.of_run(statuses) if states else graph


def test_a_diagram_says_where_each_component_stands_in_words_too():
    text = to_mermaid(_graph(states=(State.CACHED, State.FAILED), error="ValueError: no rows"))
    assert re.findall(r'^  n\d\["(.*)"\]:::(\w+)$', text, re.MULTILINE) == [
        ("Gen<br/>#8634; cached, 1.2 s", "cached"),
        ("Trainer<br/>#10007; failed, 1.2 s", "failed"),
        ("Pusher<br/>#8211; skipped", "skipped"),
    ]
    assert re.findall(r"classDef (\w+) ", text) == ["cached", "failed", "skipped"]


_PAGE = Path(__file__).parents[3] / "docs" / "pipelines.md"
_MARKUP = ('<script>alert("1")</script>', "a\\n];b", "</title>&amp;", "c\x1b[31m\x00", "x" * 5000)


@pytest.mark.parametrize("name", _MARKUP)
@pytest.mark.parametrize("form", FORMATS)
def test_names_with_markup_are_text(form, name):
    graph = _graph((name, "b"), states=(State.FAILED, State.COMPLETE), error=name)
    text = FORMATS[form](dataclasses.replace(graph, name=name))
    assert "\x1b" not in text
    assert "\x00" not in text
    assert "<script" not in text or form == "dot"
    if form == "mermaid":
        labels = re.findall(r'^  n\d\["(.*)"\]:::\w+$', text, re.MULTILINE)
        assert len(labels) == 2
        assert not set('<>"') & set("".join(labels).replace("<br/>", ""))
    if form == "dot":
        assert len(text.splitlines()) == 6


def test_a_graph_of_nothing_is_written():
    assert to_mermaid(Graph("empty", ())) == "flowchart TB\n"
    assert to_dot(Graph("empty", ())).startswith('digraph "empty" {')


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_reads_what_is_written_for_it():
    name = _MARKUP[0] + _MARKUP[1]
    text = to_dot(_graph((name, "b")))
    drawn = subprocess.run(
        ["dot", "-Tplain"], input=text, capture_output=True, text=True, check=True
    )
    assert drawn.stdout.count("\nnode ") == 2


def test_a_declared_pipeline_has_its_components_and_what_goes_between_them():
    project = find_pipeline("digits")
    config = project.config().model_copy(update={"data": "/nowhere"})
    graph = graph_of_pipeline(project.create_pipeline(config))
    assert graph.name == "digits"
    keys = {(edge.source, edge.target): edge.keys for edge in graph.edges}
    assert keys["ImportExampleGen", "StatisticsGen"] == ("examples",)
    assert keys["Transform", "TpuTrainer"] == ("transform_graph", "transformed_examples")
    assert keys["TpuTrainer", "EvalMetricsGate"] == ("evaluation", "model")
    assert ("Pusher", "TpuTrainer") not in keys
    assert set(itertools.chain(*keys)) == set(graph.nodes)
    # The documentation shows it.
    assert to_mermaid(graph) in _PAGE.read_text(encoding="utf-8")


@pytest.fixture
def runs(tmp_path: Path) -> Root:
    """Two runs: one that has ended, and one whose trainer failed, the first component from the cache."""
    writer = Writer(tmp_path / "metadata.sqlite")
    for run, states in (
        ("first", (mlmd.Execution.COMPLETE, mlmd.Execution.COMPLETE)),
        ("second", (mlmd.Execution.CACHED, mlmd.Execution.FAILED)),
    ):
        first = writer.execution(run, "Gen", states[0], uri=f"/gen/{run}")
        second = writer.execution(run, "Trainer", states[1])
        (made,) = writer.store.get_events_by_execution_ids([first])
        taken = mlmd.Event(type=mlmd.Event.INPUT, artifact_id=made.artifact_id, execution_id=second)
        taken.path.steps.add().key = "examples"
        writer.store.put_events([taken])
    return Root.at(str(tmp_path))


def test_a_run_without_a_log_is_drawn_from_ml_metadata(runs):
    graph = graph_of_run(runs, None)
    assert graph.name == "Run second"
    assert graph.edges == (Edge("Gen", "Trainer", ("model",)),)
    states = {node: status.state for node, status in graph.statuses.items()}
    assert states == {"Gen": State.CACHED, "Trainer": State.FAILED}


def test_components_that_never_began_are_drawn_where_the_run_has_written_its_graph(runs):
    folder = runs.folder / "logs" / "1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    began = graph_of_run(runs, "sec").statuses["Gen"].started
    os.utime(folder / "config.json", (began - 1, began - 1))
    _graph(("Gen", "Trainer", "Pusher")).write(folder / run_log.GRAPH_FILE)
    graph = graph_of_run(runs, "sec")
    assert graph.statuses["Pusher"].state is State.SKIPPED
    assert Edge("Trainer", "Pusher", ("examples",)) in graph.edges
    for damaged in ("", "[]", '{"name": 1}', '{"name": "a", "nodes": ["X"], "edges": []}'):
        (folder / run_log.GRAPH_FILE).write_text(damaged)
        assert set(graph_of_run(runs, "sec").nodes) == {"Gen", "Trainer"}


def _command(*words):
    return CliRunner().invoke(main, ["graph", *map(str, words)])


@pytest.mark.parametrize(("form", "begins"), [("mermaid", "flowchart"), ("dot", "digraph")])
def test_a_run_is_drawn_by_the_command(runs, tmp_path, form, begins):
    path = tmp_path / "diagram"
    result = _command("first", "--root", runs.folder, "--format", form, "--output", path)
    assert result.exit_code == 0, result.output
    assert result.output.strip() == f"Run first: {path}"
    assert path.read_text().startswith(begins)
    printed = _command("--last", "--root", runs.folder, "--format", form, "--output", "-")
    assert printed.output.startswith(begins)


@row("runners", "`graph --format png`", "'png' is not one of 'mermaid', 'dot'", lines=4)
def test_another_format_is_refused(refused, tmp_path):
    refused.output(_command("--last", "--root", tmp_path, "--format", "png"))


@row("runners", "`graph --format svg`", "svg is no longer supported; give dot", lines=4)
def test_svg_is_refused_with_what_draws_it(refused, tmp_path):
    refused.output(_command("--last", "--root", tmp_path, "--format", "svg"))


@row("runners", "`graph RUN`, and no run of that name", "unknown run 'third'", "first, second")
def test_a_run_that_is_not_there_is_refused(refused, runs):
    refused.output(_command("third", "--root", runs.folder))


@row("runners", "`graph RUN --last`", "'first' and --last each name a run; give one", lines=4)
def test_two_runs_are_refused(refused, runs):
    refused.output(_command("first", "--last", "--root", runs.folder))


@row(
    "runners",
    "`graph --root DIR`, and no run",
    "contains several runs; name one, or give --last",
    lines=4,
)
def test_a_root_alone_is_refused(refused, runs):
    refused.output(_command("--root", runs.folder))


@row("runners", "`graph --last` where nothing ran", "has no runs", "run the pipeline first")
def test_a_root_without_runs_is_refused(refused, tmp_path):
    refused.output(_command("--last", "--root", tmp_path))


@row("runners", "`graph --output` in no folder", "--output '", "can't be written")
def test_a_place_that_cannot_be_written_is_refused(refused, runs):
    (runs.folder / "file").touch()
    refused.output(
        _command("--last", "--root", runs.folder, "--output", runs.folder / "file" / "x.mmd")
    )


@row(
    "runners", "`graph` of a `pipeline.py` that fails", "can't be made: ImportError: no such thing"
)
def test_a_pipeline_that_cannot_be_imported_is_refused(refused, tmp_path):
    (tmp_path / "config.yaml").write_text(
        "name: mine\nroot: runs\ntrainer: {module: model, label_key: y, train_steps: 1}\n"
        "gate: {at_least: {accuracy: 0.5}}\n"
    )
    (tmp_path / "pipeline.py").write_text("raise ImportError('no such\\nthing')")
    refused.output(_command("--project", tmp_path, "--output", tmp_path / "x.mmd"))
    assert not (tmp_path / "x.mmd").exists()
