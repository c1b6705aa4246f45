"""The README, and pages that people start from: their listings run, and print what is printed there."""

import difflib
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow_model_analysis as tfma
from tfx import v1 as tfx

from tests.listings import DOCS, OLD_PROGRAM, README, all_blocks_of, blocks_of, listings_of
from tests.tfx_importers import importers
from tfx_tpu_trainer.serving import load_serving

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[1]
PIPELINE = DOCS / "start" / "first-pipeline.md"
# Their listings need no data and no cluster. The others' are parts of programs, marked as `py`.
PAGES_THAT_RUN = (
    "start/first-estimator.md",
    "how-to/stop-and-resume.md",
    "how-to/resume-on-another-size.md",
)
MOST_LINES = 130


def _run(*command: str, cwd: Path) -> str:
    """Runs a command like a user, in its own process; returns its output."""
    environment = {k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"}
    ended = subprocess.run(
        command,
        cwd=cwd,
        env={**environment, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "100"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_the_program_prints_what_the_readme_says(tmp_path):
    (program,) = listings_of(README)
    (printed,) = blocks_of(README, "text")
    assert _run(sys.executable, "-c", program, cwd=tmp_path) == printed
    assert (tmp_path / "runs" / "sums" / "checkpoint").exists()


def test_the_old_program_runs_and_is_repaired_as_its_page_says(tmp_path):
    (old,) = listings_of(OLD_PROGRAM)
    (tmp_path / "train.py").write_text(old, encoding="utf-8")
    programs = {
        "python": [sys.executable],
        "tfx-tpu-trainer": [sys.executable, "-m", "tfx_tpu_trainer.workbench.cli.main"],
    }
    (console,) = blocks_of(OLD_PROGRAM, "console")
    commands = console.split("$ ")[1:]
    assert len(commands) == 2
    for each in commands:
        line, printed = each.split("\n", 1)
        name, *arguments = shlex.split(line)
        assert _run(*programs[name], *arguments, cwd=tmp_path) == printed, line
    (edits,) = blocks_of(OLD_PROGRAM, "diff")
    repaired = (tmp_path / "train.py").read_text(encoding="utf-8")
    made = difflib.unified_diff(old.splitlines(), repaired.splitlines(), lineterm="", n=0)
    assert edits.splitlines() == [line for line in list(made)[2:] if not line.startswith("@@")]


@pytest.mark.parametrize("page", PAGES_THAT_RUN)
def test_a_page_prints_what_it_says(page, tmp_path):
    blocks = [
        (kind, text) for kind, text in all_blocks_of(DOCS / page) if kind in ("python", "text")
    ]
    program = "".join(text for kind, text in blocks if kind == "python")
    printed = "".join(text for kind, text in blocks if kind == "text")
    assert printed
    assert _run(sys.executable, "-c", program, cwd=tmp_path) == printed


def test_every_python_listing_of_the_new_pages_is_run():
    pages = [path for folder in ("start", "how-to") for path in (DOCS / folder).glob("*.md")]
    with_listings = {str(path.relative_to(DOCS)) for path in pages if listings_of(path)}
    assert with_listings == {
        *PAGES_THAT_RUN,
        *(str(page.relative_to(DOCS)) for page in (OLD_PROGRAM, PIPELINE)),
    }


def test_the_listings_train_bless_and_push(tmp_path, monkeypatch):
    part, model = listings_of(PIPELINE)
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(model, encoding="utf-8")
    nodes = importers()
    inputs = {name: node.outputs["result"] for name, node in nodes.items()}
    # Better than chance. The listing names a seed: from other first weights, 1,000 steps lead to 0.35 to 0.66.
    threshold = tfma.MetricThreshold(
        value_threshold=tfma.GenericValueThreshold(lower_bound={"value": 0.5})
    )
    # What the listing expects to be there: the upstream components, thresholds and a destination.
    names = {
        "transform": SimpleNamespace(
            outputs={
                "transformed_examples": inputs["examples"],
                "transform_graph": inputs["transform_graph"],
            }
        ),
        "schema_gen": SimpleNamespace(outputs={"schema": inputs["schema"]}),
        "eval_config": tfma.EvalConfig(
            metrics_specs=[tfma.MetricsSpec(thresholds={"accuracy": threshold})]
        ),
        "destination": tfx.proto.PushDestination(
            filesystem=tfx.proto.PushDestination.Filesystem(base_directory=str(tmp_path / "out"))
        ),
    }
    exec(compile(part, str(PIPELINE), "exec"), names)
    tfx.orchestration.LocalDagRunner().run(
        tfx.dsl.Pipeline(
            pipeline_name="first",
            pipeline_root=str(tmp_path / "root"),
            components=[*nodes.values(), *(names[name] for name in ("trainer", "gate", "pusher"))],
            metadata_connection_config=(
                tfx.orchestration.metadata.sqlite_metadata_connection_config(
                    str(tmp_path / "metadata.sqlite")
                )
            ),
        )
    )
    (pushed,) = (tmp_path / "out").iterdir()
    assert "serving_default" in load_serving(str(pushed)).signatures
