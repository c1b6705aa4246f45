"""Tests the runner's view of unfinished trainings, including one that is writing."""

import os
import shutil
import threading
from pathlib import Path

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

from tfx_tpu_trainer.workbench.project.roots import (
    link_run,
    remove_dead_links,
    unfinished_trainings,
)

LOOKS = 500


def _training(checkpoints: Path) -> Path:
    folder = checkpoints / "TpuTrainer" / "83d93e379163339a"
    folder.mkdir(parents=True)
    for name in (
        "model.ckpt-100.index",
        "model.ckpt-200.index",
        "model.ckpt-200.data-00000-of-00001",
    ):
        (folder / name).touch()
    return folder


def test_the_last_write_is_the_newest_file_below_whatever_the_folders_say(tmp_path):
    folder = _training(tmp_path)
    (folder / "eval").mkdir()
    (folder / "eval" / "events.out").touch()
    for seconds, path in enumerate(path for path in folder.rglob("*") if path.is_file()):
        os.utime(path, (seconds, seconds))
    os.utime(folder / "eval" / "events.out", (1000, 1000))
    (found,) = unfinished_trainings(tmp_path)
    assert (found.node, found.step, found.written) == ("TpuTrainer", 200, 1000.0)


def test_a_training_that_writes_meanwhile_is_seen_without_an_error(tmp_path):
    folder = _training(tmp_path)
    seen = threading.Event()

    def write_checkpoints() -> None:
        part = folder / "model.ckpt-300_temp"
        while not seen.is_set():
            part.mkdir()
            (part / "part-00000-of-00001.index").touch()
            (part / "part-00000-of-00001.index").unlink()
            part.rmdir()

    writer = threading.Thread(target=write_checkpoints)
    writer.start()
    try:
        steps = {training.step for _ in range(LOOKS) for training in unfinished_trainings(tmp_path)}
    finally:
        seen.set()
        writer.join()
    assert steps == {200}


# The names that trainings have in TensorBoard.


def train(root: Path, number: int) -> Path:
    """The folder of a training, with events as an estimator and its evaluation write them."""
    folder = root / "artifacts" / "TpuTrainer" / "model_run" / str(number)
    with tf.Graph().as_default():
        for place, tag in ((folder, "loss"), (folder / "eval", "accuracy")):
            writer = tf.compat.v1.summary.FileWriter(str(place))
            value = tf.compat.v1.Summary.Value(tag=tag, simple_value=number)
            writer.add_summary(tf.compat.v1.Summary(value=[value]), global_step=5)
            writer.close()
    (folder / "checkpoint").touch()
    (folder / "best").mkdir()
    return folder


def shown(folder: Path) -> dict[str, list[str]]:
    """Returns what TensorBoard shows: the tags of each run."""
    board = EventMultiplexer().AddRunsFromDirectory(str(folder)).Reload()
    return {name: sorted(tags["tensors"]) for name, tags in board.Runs().items()}


def test_a_run_is_called_by_its_pipeline_time_and_split(tmp_path: Path) -> None:
    link_run(tmp_path, train(tmp_path, 7), name="taxi-monday")
    folder = link_run(tmp_path, train(tmp_path, 27), name="taxi-tuesday")
    assert shown(folder) == {
        "taxi-monday/train": ["loss"],
        "taxi-monday/eval": ["accuracy"],
        "taxi-tuesday/train": ["loss"],
        "taxi-tuesday/eval": ["accuracy"],
    }


def test_a_training_from_the_cache_keeps_the_name_of_the_run_that_made_it(tmp_path: Path) -> None:
    model_run = train(tmp_path, 7)
    link_run(tmp_path, model_run, name="taxi-monday")
    folder = link_run(tmp_path, model_run, name="taxi-tuesday")
    assert sorted(shown(folder)) == ["taxi-monday/eval", "taxi-monday/train"]


@pytest.mark.parametrize("at_next_run", [True, False])
def test_a_name_goes_with_its_events_and_works_where_the_root_has_moved(
    tmp_path: Path, at_next_run: bool
) -> None:
    root, moved = tmp_path / "root", tmp_path / "moved"
    old, new = train(root, 7), train(root, 27)
    link_run(root, old, name="taxi-monday")
    link_run(root, new, name="taxi-tuesday")
    shutil.rmtree(old)
    if at_next_run:
        link_run(root, new, name="taxi-wednesday")
    else:
        remove_dead_links(root / "tensorboard")
    root.rename(moved)
    assert sorted(path.name for path in (moved / "tensorboard").iterdir()) == ["taxi-tuesday"]
    assert sorted(shown(moved / "tensorboard")) == ["taxi-tuesday/eval", "taxi-tuesday/train"]
