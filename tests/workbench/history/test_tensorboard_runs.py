"""The names that trainings have in TensorBoard."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

from tfx_tpu_trainer.workbench.history.tensorboard_runs import link_run, remove_dead_links


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
    """What TensorBoard shows: the tags of each run."""
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
