"""docs/notebooks/pipeline.ipynb in its own kernel, as Jupyter runs it: a whole pipeline, which takes a while."""

import copy

import pytest

from scripts.run_notebooks import NOTEBOOKS, code_cells, execute, keep_outputs
from tests.workbench.test_notebooks import kept, words_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("notebook"))


@pytest.fixture(scope="module")
def executed(folder):
    return execute(NOTEBOOKS / "pipeline.ipynb", folder)


@pytest.fixture(scope="module")
def cells(executed):
    """The executed code cells, by the first line of each."""
    return {cell.source.splitlines()[0]: cell for cell in code_cells(executed)}


def _html(cell):
    return "".join(output.data.get("text/html", "") for output in cell.outputs if "data" in output)


@pytest.mark.e2e
def test_artifacts_are_shown_as_pages(cells):
    shown = {
        name: _html(cells[f'context.show({of}.outputs["{name}"])'])
        for of, name in (
            ("trainer", "model_run"),
            ("trainer", "model"),
            ("trainer", "evaluation"),
            ("gate", "blessing"),
        )
    }
    assert "<svg" in shown["model_run"] and "<b>best</b>: auc = " in shown["model_run"]
    assert '<iframe title="Page of the training"' in shown["model_run"]
    assert "serving_default" in shown["model"] and "serve, tpu" in shown["model"]
    assert "all rows" in shown["evaluation"] and ">accuracy<" in shown["evaluation"]
    assert "<b>verdict</b>: blessed: accuracy" in shown["blessing"]


@pytest.mark.e2e
def test_a_component_that_has_made_a_model_leaves_its_results_below_the_cell(cells):
    trained, judged = (
        _html(cells["trainer = TpuTrainer("]),
        _html(cells['at_least = tfma.GenericValueThreshold(lower_bound={"value": 0.6})']),
    )
    assert "<b>Results</b>" in trained and ">step<" in trained and ">accuracy<" in trained
    assert "<b>Results</b>" in judged and "blessed: accuracy" in judged


@pytest.mark.e2e
def test_the_cell_of_a_training_is_quiet(cells):
    printed = [output.text for output in cells["trainer = TpuTrainer("].outputs if "text" in output]
    assert len("".join(printed).splitlines()) <= 20, "".join(printed)


@pytest.mark.e2e
def test_the_repository_keeps_what_is_shown(executed, folder):
    notebook = copy.deepcopy(executed)
    keep_outputs(notebook, folder)
    shown, said = (
        [words_of(_html(cell)) for cell in code_cells(each)]
        for each in (notebook, kept("pipeline"))
    )
    # Weights are random, so the numbers differ from run to run.
    assert shown == said
    assert sum(map(bool, said)) == 6
