"""Tests artifacts as pages in a notebook, whose cells show only Python's output."""

import pathlib
import re
import subprocess
import xml.etree.ElementTree as ET

import pytest
from IPython.core.interactiveshell import InteractiveShell
from tfx import v1 as tfx

from tests.components.report.pages import Page
from tests.serving.exports import train_and_export
from tfx_tpu_trainer.components.evaluation import (
    EvalMetrics,
    SliceMetrics,
    write_eval_metrics,
    write_model_evaluation,
)
from tfx_tpu_trainer.components.evaluation._learning_curve import (
    Goal,
    LearningCurve,
    Point,
    write_learning_curve,
)
from tfx_tpu_trainer.serving._inspect import describe_saved_model
from tfx_tpu_trainer.workbench import notebook
from tfx_tpu_trainer.workbench.notebook.extension import loud_runs, quiet_runs
from tfx_tpu_trainer.workbench.notebook.pages import draw_curve
from tfx_tpu_trainer.workbench.notebook.tfx_private import ExecutionResult, InteractiveContext

METRICS = EvalMetrics(
    {"accuracy": 0.875, "loss": 1 / 3},
    global_step=1200,
    num_examples=5003,
    slices=(
        SliceMetrics((("payment", "Cash"),), {"accuracy": 0.75}, 4000),
        SliceMetrics((("payment", "<b>Card</b>"),), {"accuracy": 0.5}),
    ),
)


def _cells(page):
    """The table of a page, row by row."""
    rows = ET.fromstring(re.search(r"<tbody>.*</tbody>", page, re.DOTALL)[0])
    return [["".join(cell.itertext()) for cell in row] for row in rows]


def _curve(*accuracies, goal="accuracy"):
    curve = LearningCurve(goal=Goal(metric=goal) if goal else None)
    for number, accuracy in enumerate(accuracies, start=1):
        metrics = EvalMetrics(
            {"accuracy": accuracy, "loss": 1 - accuracy}, global_step=100 * number
        )
        point = Point(metrics=metrics, time=float(number))
        if goal and curve.would_be_best(metrics):
            curve = curve.with_best(point, f"best/{number}")
        curve = curve.with_point(point)
    return curve


def test_a_model_evaluation_has_a_row_for_each_slice(tmp_path):
    write_model_evaluation(str(tmp_path), METRICS)
    page = notebook.evaluation_page(str(tmp_path))
    assert sorted(_cells(page)) == [
        ["all rows", "5,003", "0.875", "0.333333"],
        ["payment=<b>Card</b>", "", "0.5", ""],
        ["payment=Cash", "4,000", "0.75", ""],
    ]
    assert "<b>Card" not in page


def test_a_model_has_its_metrics_and_signatures(tmp_path):
    pathlib.Path(train_and_export(tmp_path)).rename(tmp_path / "Format-Serving")
    write_eval_metrics(str(tmp_path), METRICS)
    page = notebook.model_page(str(tmp_path))
    assert "<b>step</b>: 1,200" in page and "<b>rows evaluated</b>: 5,003" in page
    graphs = describe_saved_model(str(tmp_path / "Format-Serving"))
    assert {("serve",), ("serve", "tpu")} == {graph.tags for graph in graphs}
    for graph in graphs:
        for name in graph.signatures:
            assert f'<td style="text-align: left">{", ".join(graph.tags)}</td>' in page
            assert f">{name}<" in page


def test_a_model_run_has_its_curve_and_names_the_best_step(tmp_path):
    write_learning_curve(str(tmp_path), _curve(0.5, 0.875, 0.75))
    page = notebook.model_run_page(str(tmp_path))
    assert "<b>best</b>: accuracy = 0.875 at step 200" in page
    assert _cells(page) == [
        ["100", "0.5", "0.5"],
        ["200", "0.875", "0.125"],
        ["300", "0.75", "0.25"],
    ]
    assert "<svg" in page


def test_a_model_run_has_the_page_of_its_training_in_a_frame_that_runs_nothing(tmp_path):
    (tmp_path / "run.html").write_text('<h1 class="a">it&amp;s</h1><script>1</script>')
    page = Page(notebook.model_run_page(str(tmp_path)))
    assert "script" not in page.tags
    assert page.tags.count("iframe") == 1
    frame = notebook.run_page(str(tmp_path / "run.html"))
    assert " sandbox " in frame
    assert "&lt;h1 class=&#34;a&#34;&gt;it&amp;amp;s&lt;/h1&gt;" in frame


def test_a_page_that_is_not_there_is_named(tmp_path):
    page = notebook.run_page(str(tmp_path / "absent.html"))
    assert "<b>not shown</b>" in page
    assert "absent.html" in page
    assert "iframe" not in notebook.model_run_page(str(tmp_path))


def test_a_training_without_evaluations_says_so(tmp_path):
    assert "not evaluated in training" in notebook.model_run_page(str(tmp_path))


@pytest.mark.parametrize("goal", ["accuracy", None])
def test_the_same_curve_is_the_same_picture(goal):
    curve = _curve(0.5, 0.875, goal=goal)
    assert draw_curve(curve) == draw_curve(curve)
    texts = ET.fromstring(draw_curve(curve)).findall(".//{*}g[@id='axes_2']")
    assert len(texts) == 1 and "axes_3" not in draw_curve(curve)


@pytest.mark.parametrize(
    ("blessed", "verdict", "shown"),
    [
        (True, "blessed: accuracy 0.9 >= 0.7", "blessed: accuracy 0.9 &gt;= 0.7"),
        (False, "", "not blessed"),
        (None, "", "not judged"),
    ],
)
def test_a_blessing_is_the_verdict_in_words(blessed, verdict, shown):
    assert f"<b>verdict</b>: {shown}</div>" in notebook.blessing_page(blessed, verdict)


@pytest.mark.parametrize("page", ["model_page", "evaluation_page"])
def test_what_is_not_there_is_a_line_of_the_page(tmp_path, page):
    shown = getattr(notebook, page)(str(tmp_path / "absent"))
    assert "<b>not shown</b>: " in shown and str(tmp_path / "absent") in shown


def test_results_are_the_metrics_and_the_verdict(tmp_path):
    write_eval_metrics(str(tmp_path), METRICS)
    page = notebook.results_page(model=str(tmp_path), verdict="blessed: all hold")
    assert _cells(page) == [
        ["step", "1,200"],
        ["rows evaluated", "5,003"],
        ["accuracy", "0.875"],
        ["loss", "0.333333"],
        ["verdict", "blessed: all hold"],
        ["model", str(tmp_path)],
    ]


def test_tfxs_table_of_an_execution_is_a_line_that_opens_until_the_extension_is_unloaded():
    shell = InteractiveShell()
    html = shell.display_formatter.formatters["text/html"]
    html.for_type(ExecutionResult, lambda result: "<table>objects</table>")
    node = tfx.dsl.Resolver(strategy_class=tfx.dsl.experimental.LatestArtifactStrategy)
    result = ExecutionResult(component=node.with_id("a<b"), execution_id=7)
    notebook.load_ipython_extension(shell)
    try:
        shown = [shell.display_formatter.format(result)[0]["text/html"] for _ in range(2)]
        notebook.load_ipython_extension(shell)
        shown.append(shell.display_formatter.format(result)[0]["text/html"])
    finally:
        notebook.unload_ipython_extension(shell)
    title = "<summary>Execution 7 of a&lt;b</summary>"
    assert set(shown) == {f"<details>{title}<table>objects</table></details>"}
    assert shell.display_formatter.format(result)[0]["text/html"] == "<table>objects</table>"


@pytest.fixture
def run(monkeypatch):
    """`InteractiveContext.run`, quiet, of a TFX whose run is a shell command."""

    def shell(self, command):
        subprocess.run(command, shell=True, check=True)
        print("from Python")

    monkeypatch.setattr(InteractiveContext, "run", shell)
    quiet_runs()
    quiet_runs()
    yield lambda command: InteractiveContext.run(None, command)
    loud_runs()
    assert InteractiveContext.run is shell


def test_only_what_python_prints_is_shown(run, capfd):
    run("echo building; echo wheel >&2")
    assert capfd.readouterr() == ("from Python\n", "")


def test_after_a_failure_the_last_lines_are_shown(run, capfd):
    with pytest.raises(subprocess.CalledProcessError):
        run("seq 100; exit 3")
    shown = capfd.readouterr()
    assert shown.out == "" and shown.err.split() == [str(line) for line in range(61, 101)]


def test_the_next_command_is_shown_again(run, capfd):
    run("echo building")
    subprocess.run("echo after", shell=True, check=True)
    assert capfd.readouterr().out == "from Python\nafter\n"
