"""Tests the checkpoint folder that attempts share: taken over, defended, published, removed."""

from __future__ import annotations

import logging
import os
import uuid

import pytest
import tensorflow as tf

from tests.bad_input import case
from tests.components.trainer.interrupted_model import STEPS
from tests.estimator import counting_model
from tfx_tpu_trainer._support.whole_files import temporary_beside, write_whole
from tfx_tpu_trainer.components.trainer.artifacts import emptied_on_failure
from tfx_tpu_trainer.components.trainer.resume import (
    RECORD_FILE,
    AnotherAttemptError,
    CheckpointFolder,
    LastSaved,
    StillOursListener,
    TrainingIdentity,
    checkpoint_root_of,
)
from tfx_tpu_trainer.estimator._engine.checkpointing import async_saves, checkpoints
from tfx_tpu_trainer.estimator._engine.checkpointing.async_saves import PatientListener
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoint_errors import checkpoint_paths

pytestmark = pytest.mark.matrix

v1 = tf.compat.v1


def _folder(tmp_path, **description):
    identity = TrainingIdentity({"node": "n", **description})
    return CheckpointFolder.below(str(tmp_path), identity)


def _with_checkpoint(folder, step=3):
    folder.take_up()
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.get_or_create_global_step()
        session.run(v1.global_variables_initializer())
        session.run(v1.assign(v1.train.get_global_step(), step))
        v1.train.Saver().save(session, os.path.join(folder.path, "model.ckpt"), global_step=step)


@pytest.mark.parametrize(
    "content",
    [
        case(
            "checkpoints",
            f"a file `checkpoint` of an attempt, {what}: the next attempt continues anyway",
            "/checkpoint",
            "the latest readable checkpoint is",
            "model.ckpt-3",
            "Training resumes from that one",
            values=content,
        )
        for what, content in (
            ("cut off", b"model_checkpoint_pa"),
            ("empty", b""),
            ("with bytes that are not text", b"\xff"),
        )
    ],
)
def test_a_lost_state_file_is_made_again(tmp_path, content, caplog, refused):
    _with_checkpoint(_folder(tmp_path))
    (tmp_path / _folder(tmp_path).path / "checkpoint").write_bytes(content)
    assert _folder(tmp_path).take_up() == 3
    refused.log(caplog.text)


@pytest.mark.parametrize(
    "harm",
    [
        case(
            "checkpoints",
            "a checkpoint folder of an attempt, none of whose checkpoints can be read",
            ": none of its checkpoints can be read. It was renamed to",
            "and the training starts from scratch; remove it when you no longer need it",
            values=lambda path: [f.write_bytes(b"") for f in path.glob("*.data*")],
        ),
        case(
            "checkpoints",
            "a checkpoint folder whose `training.json` was cut off",
            ": it has no readable training.json, which records the training it belongs to",
            "the training starts from scratch",
            values=lambda path: (path / RECORD_FILE).write_text("{"),
        ),
        case(
            "checkpoints",
            "a checkpoint folder whose `training.json` has bytes that are not text",
            ": it has no readable training.json, which records the training it belongs to",
            values=lambda path: (path / RECORD_FILE).write_bytes(b"\xff\xfe"),
        ),
        case(
            "checkpoints",
            "a checkpoint folder whose `training.json` is nested 100,000 deep",
            ": it has no readable training.json, which records the training it belongs to",
            values=lambda path: (path / RECORD_FILE).write_bytes(b"[" * 100_000),
        ),
        case(
            "checkpoints",
            "a checkpoint folder of another training",
            ": its training.json belongs to another training",
            "the training starts from scratch",
            values=lambda path: (path / RECORD_FILE).write_text('{"claim": "a", "training": {}}'),
        ),
    ],
)
def test_a_folder_that_cannot_be_resumed_from_is_set_aside(tmp_path, caplog, harm, refused):
    folder = _folder(tmp_path)
    _with_checkpoint(folder)
    harm(tmp_path / folder.path)
    with caplog.at_level(logging.WARNING):
        assert _folder(tmp_path).take_up() == 0
    refused.log(caplog.text)
    aside, new = sorted(os.listdir(tmp_path), key=len, reverse=True)
    assert aside.startswith(f"{new}.aside-") and "model.ckpt-3.index" in os.listdir(
        tmp_path / aside
    )
    assert os.listdir(tmp_path / new) == [RECORD_FILE]


def test_in_an_object_store():
    root = f"ram://{uuid.uuid4().hex}"
    folder = _folder(root)
    _with_checkpoint(folder)
    tf.io.gfile.makedirs(f"{folder.path}/eval")
    with tf.io.gfile.GFile(f"{folder.path}/eval/events", "w") as file:
        file.write("events")
    again = _folder(root)
    assert again.take_up() == 3
    again.publish(f"{root}/model_run")
    published = tf.io.gfile.listdir(f"{root}/model_run")
    assert {"checkpoint", "eval", "model.ckpt-3.index"} <= {n.rstrip("/") for n in published}
    assert RECORD_FILE not in published
    assert checkpoints.global_step_of(f"{root}/model_run") == 3
    with tf.io.gfile.GFile(f"{folder.path}/{RECORD_FILE}", "w") as file:
        file.write("{")
    third = _folder(root)
    assert third.take_up() == 0
    (aside,) = [name for name in tf.io.gfile.listdir(root) if ".aside-" in name]
    assert "model.ckpt-3.index" in tf.io.gfile.listdir(os.path.join(root, aside))
    third.remove()
    assert not tf.io.gfile.exists(f"{third.path}/{RECORD_FILE}")


def test_an_attempt_ends_when_another_has_taken_the_folder(tmp_path):
    first, second = _folder(tmp_path), _folder(tmp_path)
    first.take_up()
    StillOursListener(first).before_save(None, 1)
    second.take_up()
    with pytest.raises(RuntimeError, match=f"Another attempt.*{first.path}"):
        StillOursListener(first).before_save(None, 2)
    second.remove()
    with pytest.raises(RuntimeError, match="Another attempt"):
        first.check_still_ours()


class _TakesUp(PatientListener):
    """Another attempt that takes the folder while a checkpoint is being written."""

    def __init__(self, folder):
        self._folder = folder

    def before_commit(self, step):
        self._folder.take_up()


def test_a_checkpoint_that_is_being_written_is_none_when_another_has_taken_the_folder(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(async_saves, "WORTH_SECONDS", 0.0)
    first, second = _folder(tmp_path), _folder(tmp_path)
    first.take_up()
    told = LastSaved()
    with pytest.raises(AnotherAttemptError, match=first.path):
        counting_model.estimator(first.path).train(
            counting_model.shuffled,
            max_steps=STEPS,
            saving_listeners=[_TakesUp(second), StillOursListener(first), told],
        )
    assert told.step == 0
    paths = checkpoint_paths(first.path)
    assert [os.path.basename(path) for path in paths] == ["model.ckpt-0"]


def test_what_fails_when_another_attempt_has_taken_the_folder_fails_for_that(tmp_path):
    first, second = _folder(tmp_path), _folder(tmp_path)
    for others_turn in (lambda: None, first.take_up):
        others_turn()
        with pytest.raises(FileNotFoundError), first.giving_way():
            raise FileNotFoundError
    second.take_up()
    with pytest.raises(AnotherAttemptError, match=first.path), first.giving_way():
        raise FileNotFoundError
    second.remove()
    with pytest.raises(AnotherAttemptError, match=first.path), first.giving_way():
        raise FileNotFoundError


def test_an_attempt_empties_no_folders_of_the_one_that_has_taken_its_place(tmp_path):
    first, second = _folder(tmp_path), _folder(tmp_path)
    artifact = tmp_path / "model"
    for take_up, left in ((first.take_up, []), (second.take_up, ["saved_model.pb"])):
        take_up()
        artifact.mkdir(exist_ok=True)
        (artifact / "saved_model.pb").write_text("model")
        with (
            pytest.raises(ConnectionError),
            emptied_on_failure(str(artifact), are_ours=first.surely_is_ours),
        ):
            raise ConnectionError
        assert os.listdir(artifact) == left


def test_an_attempt_that_took_no_folder_leaves_what_a_newer_one_has_made(tmp_path):
    first, second = _folder(tmp_path), _folder(tmp_path)
    artifact = tmp_path / "model"
    second.take_up()
    artifact.mkdir()
    (artifact / "saved_model.pb").write_text("model")
    second.remove()
    with (
        pytest.raises(ConnectionError),
        emptied_on_failure(str(artifact), are_ours=first.surely_is_ours),
    ):
        raise ConnectionError
    assert os.listdir(artifact) == ["saved_model.pb"]
    # It was delayed before it took the folder, which the other one has removed, so it starts again.
    assert first.take_up() == 0
    assert first.surely_is_ours()


def test_an_attempt_publishes_nothing_over_the_one_that_has_taken_its_place(tmp_path):
    first, second = _folder(tmp_path), _folder(tmp_path)
    _with_checkpoint(first)
    first.publish(str(tmp_path / "model_run"))
    second.take_up()
    (tmp_path / "model_run" / "model.ckpt-3.index").write_text("theirs")
    with pytest.raises(AnotherAttemptError):
        first.publish(str(tmp_path / "model_run"))
    assert (tmp_path / "model_run" / "model.ckpt-3.index").read_text() == "theirs"


def test_what_an_attempt_that_was_held_up_says_of_the_latest_checkpoint_is_not_believed(tmp_path):
    folder, saved = _folder(tmp_path), LastSaved()
    for step in (3, 6):
        _with_checkpoint(folder, step)
        saved.after_save(None, step)
    v1.train.update_checkpoint_state(folder.path, "model.ckpt-3", ["model.ckpt-3"])
    assert saved.path(folder.path) == f"{folder.path}/model.ckpt-6"
    assert LastSaved().path(folder.path) == f"{folder.path}/model.ckpt-3"
    folder.publish(str(tmp_path / "model_run"))
    assert checkpoints.global_step_of(str(tmp_path / "model_run")) == 6


def test_what_names_other_files_is_published_after_them(tmp_path, monkeypatch):
    folder = _folder(tmp_path)
    _with_checkpoint(folder)
    published = []
    rename = os.replace

    def watched(source, target):
        published.append(os.path.basename(target))
        rename(source, target)

    monkeypatch.setattr(os, "replace", watched)
    folder.publish(str(tmp_path / "model_run"))
    assert published[-2:] == ["model.ckpt-3.index", "checkpoint"]
    assert "model.ckpt-3.data-00000-of-00001" in published


def test_a_checkpoint_that_an_attempt_that_was_held_up_removes_is_not_published(
    tmp_path, monkeypatch
):
    folder, model_run = _folder(tmp_path), tmp_path / "model_run"
    for step in (3, 6):
        _with_checkpoint(folder, step)
    rename = os.replace

    def goes_on(source, target):
        rename(source, target)
        if os.path.basename(target) == "model.ckpt-3.data-00000-of-00001":
            os.remove(f"{folder.path}/model.ckpt-3.index")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", goes_on)
        folder.publish(str(model_run))
    assert checkpoints.global_step_of(str(model_run)) == 6
    published = os.listdir(model_run)
    assert "model.ckpt-6.index" in published
    assert not [name for name in published if name.startswith("model.ckpt-3.")]


def test_files_and_folders_that_are_left_out_are_not_published(tmp_path):
    folder = _folder(tmp_path)
    _with_checkpoint(folder)
    for name in ("input_position/host0-3.index", "export.json", "eval/export.json"):
        os.makedirs(os.path.dirname(f"{folder.path}/{name}"), exist_ok=True)
        write_whole(f"{folder.path}/{name}", "{}")
    model_run = tmp_path / "model_run"
    folder.publish(str(model_run), leaving_out=("input_position", "export.json"))
    assert sorted(path.name for path in model_run.rglob("*") if path.is_file()) == [
        "checkpoint",
        "model.ckpt-3.data-00000-of-00001",
        "model.ckpt-3.index",
        "model.ckpt-3.meta",
    ]


def test_a_file_that_is_no_checkpoints_is_missed(tmp_path, monkeypatch):
    folder = _folder(tmp_path)
    _with_checkpoint(folder)
    write_whole(os.path.join(folder.path, "learning_curve.json"), "{}")
    listed = tf.io.gfile.walk

    def then_removed(path):
        found = list(listed(path))
        os.remove(f"{folder.path}/learning_curve.json")
        return found

    monkeypatch.setattr(tf.io.gfile, "walk", then_removed)
    with pytest.raises(tf.errors.NotFoundError, match="learning_curve"):
        folder.publish(str(tmp_path / "model_run"))


def test_an_attempt_leaves_the_folder_to_the_one_that_has_taken_it(tmp_path):
    first, second = _folder(tmp_path), _folder(tmp_path)
    first.take_up()
    second.take_up()
    first.remove()
    second.check_still_ours()
    second.remove()
    assert not os.path.exists(second.path)


def test_nothing_is_gone_on_from_where_a_kill_came_while_the_folder_was_removed(
    tmp_path, monkeypatch
):
    def killed(path):
        raise KeyboardInterrupt

    folder = _folder(tmp_path)
    _with_checkpoint(folder)
    with monkeypatch.context() as patched:
        patched.setattr(tf.io.gfile, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.remove()
    again = _folder(tmp_path)
    assert again.take_up() == 0
    assert os.listdir(tmp_path) == [os.path.basename(again.path)]


def test_what_is_being_written_is_not_published_and_swept_when_its_attempt_was_killed(tmp_path):
    folder = _folder(tmp_path)
    _with_checkpoint(folder)
    there = sorted(os.listdir(folder.path))
    halves = (temporary_beside(f"{folder.path}/learning_curve.json"), "model.ckpt-4_temp/part-0")
    for name in (*halves, "model.ckpt-4.index.tempstate5", f"checkpoint.tmp{'0a' * 16}"):
        write_whole(os.path.join(folder.path, name), "")
    folder.publish(str(tmp_path / "model_run"))
    assert sorted(os.listdir(tmp_path / "model_run")) == [n for n in there if n != RECORD_FILE]
    assert _folder(tmp_path).take_up() == 3
    assert sorted(os.listdir(folder.path)) == there


def test_where_folders_are():
    inside = {"model_run": "gs://b/root/Train/model_run/7", "node": "Train"}
    assert checkpoint_root_of("gs://c", **inside, orchestrated_by_tfx=True) == "gs://c/Train"
    assert (
        checkpoint_root_of(None, **inside, orchestrated_by_tfx=True)
        == "gs://b/root/Train/checkpoints"
    )
    assert checkpoint_root_of(None, **inside, orchestrated_by_tfx=False) is None
