"""Tests `tfx-tpu-trainer clean` on a real pipeline's runs."""

import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.bad_input import case, row
from tests.pipelines import model_components
from tfx_tpu_trainer.workbench.cli.main import main
from tfx_tpu_trainer.workbench.project import metadata, roots
from tfx_tpu_trainer.workbench.project.metadata import State
from tfx_tpu_trainer.workbench.project.roots import Root, step_to_go_on_from


def clean(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["clean", "--root", str(folder), *options])


def run(root: Path, *, seed: int, blessed: bool) -> str:
    """Runs the pipeline as the local runner does, with its folder of logs; returns the run's name."""
    logs = root / "logs" / f"{len(metadata_runs(root)):03}"
    logs.mkdir(parents=True)
    (logs / "config.json").touch()
    with roots.locked(root):
        model_components.run(root, seed=seed, blessed=blessed)
    name = metadata_runs(root)[-1]
    page = Root.at(str(root)).report_folder(name) / "run.html"
    page.parent.mkdir(parents=True)
    page.touch()
    return name


def metadata_runs(root: Path) -> list[str]:
    file = root / "metadata.sqlite"
    return metadata.run_names(metadata.open_store(file)) if file.exists() else []


def folders(root: Path) -> set[str]:
    """The artifacts and logs on disk, such as Train/model/1."""
    found = [*root.glob("artifacts/*/*/*"), *root.glob("logs/*")]
    return {
        str(path.relative_to(root)).removeprefix("artifacts/")
        for path in found
        if ".system" not in path.parts
    }


def states(root: Path, name: str) -> set[State]:
    store = metadata.open_store(root / "metadata.sqlite")
    return {status.state for status in metadata.node_statuses(store, name).values()}


def unfinished(root: Path, name: str, *, step: int, written: float) -> Path:
    """A folder of checkpoints that a training has left."""
    folder = root / "checkpoints" / "models" / "Train" / name
    folder.mkdir(parents=True)
    for file in ("training.json", f"model.ckpt-{step}.index"):
        (folder / file).write_text("{}")
        os.utime(folder / file, (written, written))
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Five runs: a model that was blessed and pushed, and four that were not, the last two of them the same one."""
    root = tmp_path / "models"
    for seed, blessed in ((1, False), (2, True), (3, False), (4, False), (4, False)):
        run(root, seed=seed, blessed=blessed)
    (root / "serving" / "1").mkdir(parents=True)
    return root


@pytest.mark.e2e
def test_old_runs_go_but_never_the_model_that_was_blessed_and_pushed_last(root: Path) -> None:
    # Executions count through: Train, Gate and Push of each run.
    before = folders(root)
    of_run = {
        number: {
            f"Train/model/{3 * number + 1}",
            f"Train/model_run/{3 * number + 1}",
            f"Gate/blessing/{3 * number + 2}",
            f"Push/pushed_model/{3 * number + 3}",
        }
        for number in range(4)
    }
    assert before == set().union(*of_run.values()) | {f"logs/00{number}" for number in range(5)}

    listed = clean(root, "--keep", "1")
    assert listed.exit_code == 0, listed.output
    assert "keeps 1 of 5 runs, run " in listed.output
    assert "whose model was the last one blessed" in listed.output
    for gone in of_run[0] | of_run[2]:
        assert gone in listed.output
    assert "nothing has been removed yet. To remove it" in listed.output
    assert folders(root) == before

    removed = clean(root, "--keep", "1", "--remove")
    assert removed.exit_code == 0, removed.output
    # The newest run has its artifacts from the cache: they were made by the one before.
    assert folders(root) == of_run[1] | of_run[3] | {"logs/001", "logs/004"}
    names = metadata_runs(root)
    pages = {Root.at(str(root)).report_folder(names[number]) for number in (1, 4)}
    assert set((root / "reports").iterdir()) == pages
    assert (root / "serving" / "1").is_dir()
    assert "nothing to remove" in clean(root, "--keep", "1").output

    # TFX uses what exists in the cache, and makes again what is gone.
    assert states(root, run(root, seed=4, blessed=False)) == {State.CACHED}
    assert states(root, run(root, seed=2, blessed=True)) == {State.CACHED}
    assert states(root, run(root, seed=3, blessed=False)) == {State.COMPLETE}


@pytest.mark.e2e
def test_checkpoints_stay_until_a_training_that_began_later_has_ended(tmp_path: Path) -> None:
    root = tmp_path / "models"
    now = time.time()
    old = unfinished(root, "0123456789abcdef", step=400, written=now - 60)
    aside = unfinished(root, "fedcba9876543210.aside-12345678", step=5, written=now + 3600)
    run(root, seed=1, blessed=True)
    new = unfinished(root, "aaaaaaaaaaaaaaaa", step=1200, written=now + 3600)
    assert step_to_go_on_from(root / "checkpoints" / "models", since=now) == 1200
    assert step_to_go_on_from(root / "checkpoints" / "models", since=now + 7200) is None

    # Of a folder of roots, as runs/ is.
    ended = clean(tmp_path, "--remove")
    assert ended.exit_code == 0, ended.output
    assert "a training that stopped at step 400; a later one has ended" in ended.output
    assert "aaaaaaaaaaaaaaaa: the same command resumes it, from step 1,200" in ended.output
    assert [path.exists() for path in (old, aside, new)] == [False, False, True]


@pytest.mark.e2e
def test_names_in_tensorboard_go_with_their_events(tmp_path: Path) -> None:
    root = tmp_path / "models"
    for seed in (1, 2):
        run(root, seed=seed, blessed=seed == 2)
    for model_run, name in ((1, "models-old"), (4, "models-new")):
        folder = root / "artifacts" / "Train" / "model_run" / str(model_run)
        (folder / "events.out.tfevents.1.host").touch()
        roots.link_run(root, folder, name=name)
    assert clean(root, "--keep", "1", "--remove").exit_code == 0
    assert [path.name for path in (root / "tensorboard").iterdir()] == ["models-new"]


@row(
    "runners",
    "`tfx-tpu-trainer clean` of a root where a run is going on",
    "Error: a run is in progress in '",
    "' (process ",
    "` stops); wait until it ends",
)
def test_a_root_where_a_run_is_going_on_is_left_alone(tmp_path: Path, refused) -> None:
    metadata.open_store(tmp_path / "metadata.sqlite", read_only=False)
    with roots.locked(tmp_path):
        refused.output(clean(tmp_path, "--remove"))


def make_none(folder: Path) -> None:
    (folder / "file").touch()


def make_text(folder: Path) -> None:
    (folder / "metadata.sqlite").write_text("no database at all, but long enough to look like one")


@pytest.mark.parametrize(
    "make",
    [
        case(
            "runners",
            "`tfx-tpu-trainer clean` of a folder without runs",
            "contains no metadata.sqlite, nor does any of its folders; give the root of a pipeline",
            values=make_none,
        ),
        case(
            "runners",
            "`tfx-tpu-trainer clean` of a `metadata.sqlite` that is not one",
            "can't be read as ML Metadata",
            "only a root of the local runner can be cleaned",
            values=make_text,
        ),
    ],
)
def test_what_is_no_root_is_not_cleaned(tmp_path: Path, make, refused) -> None:
    make(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    refused.output(clean(tmp_path, "--remove"))
    assert sorted({*before, ".lock"}) == sorted(
        {path.name for path in tmp_path.iterdir()} | {".lock"}
    )
