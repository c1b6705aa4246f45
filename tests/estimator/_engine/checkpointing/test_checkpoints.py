import os
import pathlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tests.estimator._engine.templates import save
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoint_errors import (
    damage_explained,
    open_checkpoint,
    write_errors_explained,
)
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoints import check_writable
from tfx_tpu_trainer.estimator._engine.checkpointing.restored_variables import (
    check_fits_graph,
    find_misfit,
    restored_by_default,
)
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


@pytest.mark.behaviour(278, 279)
@row(
    "checkpoints",
    "a variable of a model_dir without checkpoints",
    "Could not find trained model in model_dir: ",
    "Train first, or name the folder of a trained model",
)
def test_an_empty_folder_has_no_checkpoint(tmp_path, refused):
    folder = str(tmp_path)
    assert checkpoints.latest_checkpoint(folder) is None
    assert checkpoints.global_step_of(folder) == 0
    for read in (checkpoints.require_checkpoint, checkpoints.variable_names):
        with refused(ValueError):
            read(folder)
    with refused(ValueError):
        checkpoints.variable_value(folder, "layer/weights")


_SOUND = "the latest readable checkpoint is", "model.ckpt-12: write its name into the file with"


@pytest.mark.parametrize(
    "content",
    [
        case(
            "checkpoints",
            "an empty file `checkpoint`",
            "/checkpoint can't be read (Invalid checkpoint state",
            *_SOUND,
            values=b"",
        ),
        case(
            "checkpoints",
            "a file `checkpoint` with bytes that are not text",
            "/checkpoint can't be read ('utf-8' codec",
            *_SOUND,
            values=b"\xff\xfe garbage",
        ),
        case(
            "checkpoints",
            "a file `checkpoint` with another text",
            "/checkpoint names a checkpoint that does not exist: it was changed after it was written",
            *_SOUND,
            values=b"hello: [world",
        ),
        case(
            "checkpoints",
            "a file `checkpoint` that names one which is gone",
            "/checkpoint names a checkpoint that does not exist",
            *_SOUND,
            values=b'model_checkpoint_path: "model.ckpt-99"',
        ),
    ],
)
def test_a_damaged_state_is_no_reason_to_begin_anew(tmp_path, content, refused):
    save(tmp_path, 3, 12)
    (tmp_path / "checkpoint").write_bytes(content)
    with refused(tf.errors.DataLossError) as raised:
        checkpoints.latest_checkpoint(str(tmp_path))
    # What the message advises.
    advised = f"update_checkpoint_state({str(tmp_path)!r}, 'model.ckpt-12')"
    assert advised in str(raised.value)
    v1.train.update_checkpoint_state(str(tmp_path), "model.ckpt-12")
    assert checkpoints.global_step_of(str(tmp_path)) == 12


@row(
    "checkpoints",
    "a file `checkpoint` beside no checkpoint",
    "/checkpoint names a checkpoint that does not exist: ",
    "remove it to train from scratch",
)
def test_a_state_beside_no_checkpoint(tmp_path, refused):
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-99"')
    with refused(tf.errors.DataLossError):
        checkpoints.latest_checkpoint(str(tmp_path))


@row(
    "checkpoints",
    "a variable's value in a checkpoint that was cut off",
    "The checkpoint",
    "model.ckpt-12 can't be read (",
    "it was cut off or changed after it was written; the latest readable one before it is",
    "model.ckpt-3",
)
def test_a_value_that_cannot_be_read(tmp_path, refused):
    save(tmp_path, 3, 12)
    data = tmp_path / "model.ckpt-12.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:3])
    with refused(tf.errors.DataLossError):
        checkpoints.variable_value(str(tmp_path), "layer/weights")


@row(
    "checkpoints",
    "a variable that a checkpoint has not",
    "Key bias not found in checkpoint",
    "model.ckpt-7; it has: global_step, layer/weights",
)
def test_an_unknown_variable_is_refused_with_the_known_ones(tmp_path, refused):
    save(tmp_path, 7)
    with refused(tf.errors.NotFoundError):
        checkpoints.variable_value(str(tmp_path), "bias")


def test_a_checkpoint_without_a_global_step_counts_from_zero(tmp_path):
    save(tmp_path, 7, with_global_step=False)
    assert checkpoints.global_step_of(str(tmp_path)) == 0


@pytest.mark.behaviour(160)
def test_the_global_step_of_an_object_based_checkpoint_is_found(tmp_path):
    step = tf.Variable(12, dtype=tf.int64, name="global_step")
    tf.train.Checkpoint(counter=step).save(str(tmp_path / "model.ckpt"))
    assert checkpoints.global_step_of(str(tmp_path)) == 12


def test_a_folder_is_made_and_left_as_it_was(tmp_path):
    folder = tmp_path / "new" / "model"
    check_writable(str(folder))
    assert os.listdir(folder) == []
    (folder / "checkpoint").write_text("")
    check_writable(str(folder))
    assert os.listdir(folder) == ["checkpoint"]


@row(
    "disks",
    "a model_dir below a file",
    "model_dir '",
    "/file/model' can't be written: ",
    "is not a directory. Give another model_dir, or permission to write to this one",
)
def test_a_folder_that_cannot_be_made_is_named(tmp_path, refused):
    (tmp_path / "file").write_text("")
    folder = str(tmp_path / "file" / "model")
    with refused(tf.errors.FailedPreconditionError):
        check_writable(folder)


DATA = ".data-00000-of-00001"


def _damage(path: str, how: str) -> None:
    suffix, change = {
        "cut off": (DATA, lambda content: content[: len(content) // 2]),
        "changed": (DATA, lambda content: content[:3] + bytes([content[3] ^ 1]) + content[4:]),
        "index cut off": (".index", lambda content: content[: len(content) // 2]),
        "gone": (DATA, None),
    }[how]
    file = pathlib.Path(path + suffix)
    if change is None:
        os.remove(file)
    else:
        file.write_bytes(change(file.read_bytes()))


def _restore(path: str) -> None:
    with fresh_graph():
        v1.get_variable("layer/weights", [2])
        with damage_explained(path), v1.Session() as session:
            open_checkpoint(path)
            v1.train.Saver().restore(session, path)


def _broken(given, how):
    says = "model.ckpt-9 can't be read (", "the latest readable one before it is", "model.ckpt-5: "
    return case("checkpoints", f"a checkpoint {given}", "The checkpoint", *says, values=how)


@pytest.mark.parametrize(
    "how",
    [
        _broken("that was cut off", "cut off"),
        _broken("with a bit that has changed", "changed"),
        _broken("whose index was cut off", "index cut off"),
        _broken("without its values", "gone"),
    ],
)
def test_a_broken_checkpoint_is_named_with_the_last_one_that_is_not(tmp_path, how, refused):
    path = save(tmp_path, 3, 5, 7, 9)
    _damage(str(tmp_path / "model.ckpt-7"), "cut off")
    _damage(path, how)
    with refused(tf.errors.DataLossError) as raised:
        _restore(path)
    message = str(raised.value)
    assert message.startswith(f"The checkpoint {path} can't be read (")
    assert f"the latest readable one before it is {tmp_path / 'model.ckpt-5'}: give it" in message

    # What the message advises.
    assert f"update_checkpoint_state({str(tmp_path)!r}, 'model.ckpt-5')" in message
    v1.train.update_checkpoint_state(str(tmp_path), "model.ckpt-5")
    assert checkpoints.global_step_of(str(tmp_path)) == 5


@row(
    "checkpoints",
    "the only checkpoint, cut off",
    "The checkpoint",
    "can't be read (",
    "no earlier checkpoint of its folder can be read either: start a new training in another "
    "model_dir",
)
def test_without_an_earlier_one_the_advice_is_to_train_anew(tmp_path, refused):
    path = save(tmp_path, 3)
    _damage(path, "cut off")
    with refused(tf.errors.DataLossError):
        _restore(path)


def test_other_errors_pass(tmp_path):
    path = save(tmp_path, 3)
    with pytest.raises(tf.errors.NotFoundError, match=r"^of a file"), damage_explained(path):
        raise tf.errors.NotFoundError(None, None, "of a file that input_fn reads")
    with pytest.raises(tf.errors.DataLossError, match=r"^of a"), damage_explained(None):
        raise tf.errors.DataLossError(None, None, "of a record that input_fn reads")


@pytest.mark.behaviour(213, 234)
@pytest.mark.parametrize(
    ("path", "error"),
    [
        case(
            "checkpoints",
            "the path of a checkpoint that is not there",
            "The passed save_path is not a valid checkpoint: ",
            "its folder has model.ckpt-3, model.ckpt-12",
            values=("model.ckpt-5", tf.errors.NotFoundError),
        ),
        case(
            "checkpoints",
            "the path of a checkpoint in a folder that does not exist",
            "The passed save_path is not a valid checkpoint: ",
            "its folder has no other",
            values=("nothing/model.ckpt-5", ValueError),
        ),
        case(
            "checkpoints",
            "a folder instead of a checkpoint",
            "The passed save_path is not a valid checkpoint: ",
            "It is a folder: give one of its checkpoints, which are model.ckpt-3, model.ckpt-12",
            values=("", tf.errors.NotFoundError),
        ),
        case(
            "checkpoints",
            "one of a checkpoint's files in place of its path",
            "The passed save_path is not a valid checkpoint: ",
            "It is one of a checkpoint's files: give",
            values=("model.ckpt-3.index", tf.errors.NotFoundError),
        ),
    ],
)
def test_a_path_of_no_checkpoint_is_named_with_those_that_are(tmp_path, path, error, refused):
    save(tmp_path, 3, 12)
    with refused(error):
        open_checkpoint(os.path.join(tmp_path, path).rstrip("/"))


@row("checkpoints", "a number instead of a checkpoint", "a string such as 'model.ckpt-100', not 3")
def test_a_path_is_a_text(refused):
    with refused(TypeError):
        open_checkpoint(3)


def _join_parts(folder: str) -> None:
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[f"{folder}/model.ckpt-5_temp/part-00000-of-00001"],
        destination_prefix=f"{folder}/model.ckpt-5",
    )


def _move(folder: str) -> None:
    tf.io.gfile.rename(f"{folder}/model.ckpt-5.index.tempstate1", f"{folder}/model.ckpt-5.index")


@pytest.mark.parametrize(
    "write",
    [
        case(
            "checkpoints",
            f"a model_dir in which another process trains and has removed {given}",
            "A checkpoint can't be written to ",
            f" ({name} is gone): another process trains in this folder, or removes its files. ",
            "give another model_dir. Training will resume from the last complete checkpoint",
            values=write,
        )
        for given, name, write in (
            ("a part of a checkpoint", "part-00000-of-00001", _join_parts),
            ("an unfinished file", "model.ckpt-5.index.tempstate1", _move),
        )
    ],
)
def test_a_file_that_another_process_has_removed_is_named(
    tmp_path: Path, write: Callable[[str], None], refused
) -> None:
    with refused(tf.errors.FailedPreconditionError), write_errors_explained(os.fspath(tmp_path)):
        write(os.fspath(tmp_path))


def test_a_missing_file_elsewhere_is_what_it_was(tmp_path: Path) -> None:
    with (
        pytest.raises(tf.errors.NotFoundError, match="vocabulary"),
        write_errors_explained(os.fspath(tmp_path / "model_dir")),
    ):
        tf.io.read_file(os.fspath(tmp_path / "vocabulary"))


@pytest.mark.parametrize("shape", [[2], None])
@pytest.mark.behaviour(280)
def test_a_checkpoint_that_fits(tmp_path, shape):
    path = save(tmp_path, 7)
    with fresh_graph():
        v1.get_variable(
            "layer/weights", initializer=tf.zeros([2]), validate_shape=shape is not None
        )
        check_fits_graph(path)


def test_a_checkpoint_may_have_more_than_the_graph(tmp_path):
    path = save(tmp_path, 7)
    with fresh_graph():
        check_fits_graph(path)


@pytest.mark.behaviour(280)
def test_another_shape_is_refused_and_both_shapes_are_named(tmp_path):
    path = save(tmp_path, 7)
    says = (
        r"model.ckpt-7 failed: a mismatch .*'layer/weights': float32 \[2\] in the checkpoint, "
        r"float32 \[2, 1\] in the graph.*Use another model_dir"
    )
    with fresh_graph():
        v1.get_variable("layer/weights", [2, 1])
        with pytest.raises(tf.errors.InvalidArgumentError, match=says) as raised:
            check_fits_graph(path)
    assert "Missing" not in str(raised.value)


@pytest.mark.behaviour(280)
@row(
    "checkpoints",
    "a variable of another type than the checkpoint's",
    "float64 [2] in the graph",
    "Use another model_dir, or warm-start from this checkpoint",
)
def test_another_type_is_refused(tmp_path, refused):
    path = save(tmp_path, 7)
    with fresh_graph():
        v1.get_variable("layer/weights", [2], tf.float64)
        with refused(tf.errors.InvalidArgumentError):
            check_fits_graph(path)


@row("checkpoints", "a checkpoint that lacks 52 variables", "'new49' float32 [] and 2 more. In")
def test_a_long_list_is_cut(tmp_path, refused):
    path = save(tmp_path, 7)
    with fresh_graph():
        for number in range(52):
            v1.get_variable(f"new{number:02d}", [])
        with refused(tf.errors.NotFoundError):
            check_fits_graph(path)


def test_a_savers_own_names_are_looked_up(tmp_path):
    path = save(tmp_path, 7)
    with fresh_graph():
        weights = v1.get_variable("other", [2])
        check_fits_graph(path, v1.train.Saver({"layer/weights": weights}))
        with pytest.raises(tf.errors.NotFoundError, match="Missing in the checkpoint: 'average'"):
            check_fits_graph(path, v1.train.Saver({"average": weights}))
        with pytest.raises(tf.errors.NotFoundError, match="Missing in the checkpoint: 'other'"):
            check_fits_graph(path, v1.train.Saver(defer_build=True))


def test_a_variable_in_parts_is_looked_up_as_a_whole(tmp_path):
    with fresh_graph():
        v1.get_variable("table", [4], partitioner=v1.fixed_size_partitioner(2))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            path = v1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
        check_fits_graph(path)
        check_fits_graph(path, v1.train.Saver())


def _save_objects(folder) -> str:
    weights = tf.Variable(np.float32([1, 2]), name="layer/weights")
    step = tf.Variable(3, dtype=tf.int64, name="global_step")
    return tf.train.Checkpoint(step=step, weights=weights).save(str(folder / "model.ckpt"))


def test_names_are_looked_up_in_an_object_based_checkpoint_as_tensorflow_does(tmp_path):
    path = _save_objects(tmp_path)
    with fresh_graph():
        v1.get_variable("layer/weights", [2])
        assert find_misfit(path, restored_by_default()) is None
        with v1.Session() as session:
            v1.train.Saver().restore(session, path)
            assert session.run(v1.train.get_global_step()) == 3
        v1.get_variable("new", [2])
        misfit = find_misfit(path, restored_by_default())
    assert str(misfit).startswith("Missing in the checkpoint: 'new' float32 [2]. In ")


def test_a_session_does_not_look_names_up_in_an_object_based_checkpoint(tmp_path):
    path = _save_objects(tmp_path)
    says = r"object-based.* Give its Scaffold saver=tf.train.Checkpoint"
    with fresh_graph(), pytest.raises(ValueError, match=says):
        check_fits_graph(path)
