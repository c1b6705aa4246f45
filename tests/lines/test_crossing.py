"""What one line of TFX writes, the other reads: exported models, checkpoints, a wheel, the numbers of a pipeline.

Tests that cannot run on the newest line stand in a table.
"""

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import excused
from tests.conftest import REPOSITORY
from tests.pipeline_runs import PipelineRun, command
from tfx_tpu_trainer.workbench.history.report import RunReport
from tfx_tpu_trainer.workbench.run.run_child import REPORT

pytestmark = pytest.mark.e2e

STEPS = 6
both_ways = pytest.mark.parametrize("forth", [True, False], ids=["to the other", "from the other"])
# What a wheel's user imports. No name of a module is left out because the line lacks it.
IMPORT_CHECK = """
import importlib.metadata, pkgutil, sys
import packaging.requirements
import tfx_tpu_trainer
import tfx_tpu_trainer.components.trainer, tfx_tpu_trainer.estimator, tfx_tpu_trainer.estimator.tpu
for module in pkgutil.walk_packages(tfx_tpu_trainer.__path__, "tfx_tpu_trainer."):
    if not module.name.endswith("__main__"):
        __import__(module.name)
(distribution,) = importlib.metadata.distributions(name="tfx-tpu-trainer", path=[sys.argv[1]])
for text in distribution.requires:
    needed = packaging.requirements.Requirement(text)
    if needed.marker is None or needed.marker.evaluate({"extra": ""}):
        found = importlib.metadata.version(needed.name)
        assert needed.specifier.contains(found, prereleases=True), (text, found)
print(tfx_tpu_trainer.__file__)
"""


@pytest.fixture(scope="module")
def sides(here, there):
    return {True: (here, there), False: (there, here)}


@pytest.fixture(scope="module")
def trained(sides, tmp_path_factory):
    """Each line's model after half of the steps."""
    folders = {}
    for forth, (first, _) in sides.items():
        folders[forth] = tmp_path_factory.mktemp("trained") / "model"
        assert first.do("train", folders[forth], STEPS // 2) == STEPS // 2
    return folders


@both_ways
def test_a_model_exported_on_one_answers_alike_on_the_other(sides, trained, forth, tmp_path):
    first, second = sides[forth]
    exported = first.do("export", trained[forth], tmp_path)
    expected = first.do("answer", exported)
    assert len(set(np.round(expected, 6))) == len(expected)
    np.testing.assert_allclose(second.do("answer", exported), expected, rtol=1e-5)


@both_ways
def test_a_checkpoint_of_one_goes_on_training_on_the_other(sides, trained, forth, tmp_path):
    first, second = sides[forth]
    handed_over = tmp_path / "handed over"
    shutil.copytree(trained[forth], handed_over)
    assert second.do("train", handed_over, STEPS // 2) == STEPS
    # Trained to the end by the line that began.
    alone = tmp_path / "alone"
    shutil.copytree(trained[forth], alone)
    first.do("train", alone, STEPS // 2)

    expected = first.do("variables", alone)
    assert any("Adam" in name for name in expected)
    assert any("moving_variance" in name for name in expected)
    found = second.do("variables", handed_over)
    assert found.keys() == expected.keys()
    before = first.do("variables", trained[forth])
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5, err_msg=name)
    assert not np.allclose(before["hidden/kernel"], expected["hidden/kernel"], atol=1e-3)


def test_one_wheel_installs_and_imports_on_both(here, there, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    shutil.copytree(
        REPOSITORY / "tfx_tpu_trainer",
        source / "tfx_tpu_trainer",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    build = [
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
        str(source),
    ]
    subprocess.run([sys.executable, "-m", "pip", *build], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    for line in (here, there):
        target = tmp_path / line.tfx
        line.run(*f"-m pip install --no-deps --no-index --target {target} {wheel}".split())
        # -P excludes the working folder.
        imported = line.run(
            "-c", IMPORT_CHECK, str(target), PYTHONPATH=str(target), cwd=str(tmp_path)
        )
        assert Path(imported.splitlines()[-1]).is_relative_to(target)


def test_the_taxi_pipeline_measures_the_same_on_both(
    there, taxi_run: PipelineRun, tmp_path
) -> None:
    words = command("taxi", tmp_path / "root")
    there.run(*words[1:])
    (path,) = (tmp_path / "root" / "logs").glob(f"*/{REPORT}")
    other = RunReport.read(path)
    ours = taxi_run.report
    assert other is not None
    for report in (ours, other):
        assert report.blessed is True, json.dumps(report.eval_metrics)
        assert report.pushed is not None
    assert ours.eval_examples == other.eval_examples
    assert ours.eval_metrics.keys() == other.eval_metrics.keys()
    for name, value in other.eval_metrics.items():
        assert ours.eval_metrics[name] == pytest.approx(value, abs=1e-3), name


def _tests(path: Path) -> list[str]:
    return re.findall(r"^ *def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)


def _named(row: str) -> list[str]:
    """The tests that a row stands for."""
    file, _, name = row.partition("::")
    tests = _tests(REPOSITORY / file)
    return [test for test in tests if not name or test == name]


def test_each_row_names_tests_that_are_there():
    for row in excused.rows():
        assert _named(row), row


def test_they_are_at_most_two_in_a_hundred():
    every = sum(len(_tests(path)) for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert every > 1000
    assert sum(len(_named(row)) for row in excused.rows()) <= 0.02 * every


def test_a_row_excuses_a_test_its_parameters_and_a_whole_file():
    rows = {"tests/a.py::test_x": "why", "tests/b.py": "because"}
    assert excused.reason("tests/a.py::test_x", rows) == "not on TFX 1.21: why"
    assert excused.reason("tests/a.py::test_x[1-2]", rows) == "not on TFX 1.21: why"
    assert excused.reason("tests/a.py::test_xy", rows) is None
    assert excused.reason("tests/b.py::test_y", rows) == "not on TFX 1.21: because"


def test_rows_hold_on_the_newest_line_only(monkeypatch):
    for version, found in (("1.21.0", excused.rows()), ("1.16.0", {}), ("1.2.1", {})):
        monkeypatch.setattr(importlib.metadata, "version", lambda name, v=version: v)
        assert excused.rows_here() == found
