"""A model folder or a checkpoint that is no good: one clear message, and what can be done."""

import atexit
import functools
import json
import os
import pathlib
import shutil
import tempfile

import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tests.estimator import linear_model
from tests.estimator.each_place import (
    estimator,
    in_every_mode,
    in_two_modes,
    on_cores_mostly,
    on_host_and_cores,
)
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import Estimator, RunConfig, WarmStartSettings, export, tpu

v1 = tf.compat.v1

DATA = ".data-00000-of-00001"


@on_host_and_cores
@pytest.mark.parametrize("mode", ["train", "eval"])
@row(
    "disks",
    "a model_dir below a file, of an estimator",
    "model_dir '",
    "can't be written: ",
    "Give",
)
def test_a_model_dir_that_cannot_be_written(tmp_path, place, mode, refused):
    (tmp_path / "file").write_text("no folder")
    folder = tmp_path / "file" / "model"
    with refused(tf.errors.FailedPreconditionError):
        on_cores.run(estimator(folder, place), mode)


@row(
    "checkpoints",
    "`model_dir='foo://runs/model'`",
    "model_dir='foo://runs/model'",
    "this TensorFlow can't open foo:// paths",
    "gs://",
)
@on_host_and_cores
def test_a_model_dir_on_a_file_system_that_there_is_not(place, refused):
    with refused(ValueError):
        estimator("foo://runs/model", place)


_PATTERNS = ["run[lr=0.1]", "run*", "run?", "run\\1"]


@pytest.mark.parametrize("name", _PATTERNS)
@row(
    "checkpoints",
    "`model_dir='run[lr=0.1]'`, and other names with `[...]`, `*`, `?` or a backslash",
    "model_dir=",
    "in it, which TensorFlow takes for a pattern when it looks for files by name",
    "existing folder can be renamed",
)
def test_a_model_dir_that_tensorflow_takes_for_a_pattern(tmp_path, monkeypatch, name, refused):
    folder = str(tmp_path / name)
    for make in (
        lambda: RunConfig(model_dir=folder),
        lambda: RunConfig().replace(model_dir=folder),
        lambda: Estimator(lambda features: None, model_dir=folder),
    ):
        with refused(ValueError):
            make()
    monkeypatch.setenv("TF_CONFIG", json.dumps({"model_dir": folder}))
    with refused(ValueError):
        RunConfig()


def test_tensorflow_finds_and_removes_checkpoints_by_pattern(tmp_path):
    """Why such names are refused: the first can't be resumed, the second removes checkpoints of other folders."""
    for name in ("run[lr]", "run*", "run1"):
        folder = tmp_path / name
        shutil.copytree(_checkpoints(), folder)
    assert tf.train.latest_checkpoint(str(tmp_path / "run[lr]")) is None
    v1.train.remove_checkpoint(str(tmp_path / "run*" / "model.ckpt-4"))
    assert not (tmp_path / "run1" / "model.ckpt-4.index").exists()


@pytest.mark.parametrize("name", ["[", "]a[", "{a}", "a b", "ü", "@"])
def test_other_names_resume(tmp_path, name):
    for steps in (1, 2):
        made = estimator(tmp_path / name, "host").train(on_cores.train_input_fn, max_steps=steps)
        assert made.get_variable_value("global_step") == steps


@row(
    "checkpoints",
    "`model_dir=b'run\\xff'`, no UTF-8",
    "model_dir=b'run\\xff' is not UTF-8, and TensorFlow opens no other paths; rename",
)
def test_a_model_dir_that_is_no_utf_8(refused):
    with refused(ValueError):
        RunConfig(model_dir=b"run\xff")


@row(
    "checkpoints",
    "`model_dir=5`",
    "model_dir must be a path: a string, bytes or os.PathLike; got 5.",
)
def test_a_model_dir_that_is_no_path(refused):
    for make in (
        lambda: RunConfig(model_dir=5),
        lambda: RunConfig().replace(model_dir=5),
        lambda: Estimator(lambda features: None, model_dir=5),
    ):
        with refused(TypeError):
            make()


@pytest.mark.parametrize(
    "use",
    [
        case(
            "checkpoints",
            f"`{name}='run[1]/model.ckpt-1'`",
            f"{name}='run[1]/model.ckpt-1' has '[1]' in it, which TensorFlow takes for a pattern",
            values=use,
        )
        for name, use in (
            (
                "checkpoint_path",
                lambda path: estimator(tempfile.mkdtemp(), "host").evaluate(
                    on_cores.train_input_fn, steps=1, checkpoint_path=path
                ),
            ),
            (
                "warm_start_from",
                lambda path: Estimator(lambda features: None, warm_start_from=path),
            ),
            ("ckpt_to_initialize_from", WarmStartSettings),
        )
    ],
)
def test_a_checkpoint_whose_path_tensorflow_takes_for_a_pattern(use, refused):
    with refused(ValueError):
        use("run[1]/model.ckpt-1")


@in_two_modes
@row(
    "checkpoints",
    "a pipe in the place of the file `checkpoint`",
    "checkpoint is not a file: it was changed after it was written; the latest readable",
)
def test_a_pipe_that_is_called_checkpoint_is_not_waited_at(tmp_path, place, mode, refused):
    trained = _trained(tmp_path, place)
    (tmp_path / "checkpoint").unlink()
    os.mkfifo(tmp_path / "checkpoint")
    with refused(tf.errors.DataLossError):
        on_cores.run(trained, mode)


@pytest.mark.parametrize(
    "use",
    [
        case(
            "checkpoints",
            f"`{name}='foo://runs/model'`",
            f"{name}='foo://runs/model'",
            "this TensorFlow can't open foo:// paths",
            "give one of those",
            values=use,
        )
        for name, use in (
            (
                "checkpoint_path",
                lambda made: made.evaluate(
                    on_cores.train_input_fn, steps=1, checkpoint_path="foo://runs/model"
                ),
            ),
            (
                "warm_start_from",
                lambda made: Estimator(lambda features: None, warm_start_from="foo://runs/model"),
            ),
            ("export_dir_base", lambda made: _export(made, "foo://runs/model")),
        )
    ],
)
def test_other_paths_on_a_file_system_that_there_is_not(tmp_path, use, refused):
    made = _trained(tmp_path, "host")
    with refused(ValueError):
        use(made)


@functools.cache
def _checkpoints() -> pathlib.Path:
    """A model folder with checkpoints of steps 0, 2 and 4; the host's are those of cores."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    estimator(folder, "host", save_checkpoints_steps=2).train(on_cores.train_input_fn, steps=4)
    return pathlib.Path(folder)


def _trained(folder: pathlib.Path, place: str) -> tpu.TPUEstimator:
    shutil.copytree(_checkpoints(), folder, dirs_exist_ok=True)
    return estimator(folder, place)


def _export(trained: tpu.TPUEstimator, folder: pathlib.Path) -> bytes:
    def receiver_fn():
        x = v1.placeholder(tf.float32, [None, 3])
        return export.ServingInputReceiver({"x": x}, {"x": x})

    return trained.export_saved_model(str(folder), receiver_fn)


@in_every_mode
@mostly_swept("suffix", [DATA, ".index"], kept=[DATA])
@row(
    "checkpoints",
    "a checkpoint that was cut off, in `train`, `evaluate` and `predict`",
    "The checkpoint",
    "model.ckpt-4 can't be read",
    "model.ckpt-2: give it as checkpoint_path, or continue training from it",
)
def test_a_truncated_checkpoint_is_named_with_the_last_good_one(
    tmp_path, place, mode, suffix, refused
):
    trained = _trained(tmp_path, place)
    file = pathlib.Path(trained.latest_checkpoint() + suffix)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with refused(tf.errors.DataLossError):
        on_cores.run(trained, mode)
    if mode == "train":
        v1.train.update_checkpoint_state(str(tmp_path), "model.ckpt-2")
        trained.train(on_cores.train_input_fn, max_steps=3)
        assert trained.get_variable_value("global_step") == 3


@row(
    "checkpoints",
    "a folder that has the name of a checkpoint's file",
    "model.ckpt-4 can't be read (",
    "model.ckpt-4.data-00000-of-00001; Is a directory)",
    "model.ckpt-2: give it as checkpoint_path",
)
def test_a_folder_in_the_place_of_a_checkpoints_file_is_not_read(tmp_path, refused):
    trained = _trained(tmp_path, "host")
    file = pathlib.Path(trained.latest_checkpoint() + DATA)
    file.unlink()
    file.mkdir()
    with refused(tf.errors.DataLossError):
        on_cores.run(trained, "infer")


@row(
    "disks",
    "a folder that has the name of a checkpoint that is to be written",
    "A checkpoint can't be written to ",
    "model.ckpt-5.index; Is a directory): a folder has the name of one of its files",
    "Remove that folder",
)
def test_a_folder_in_the_place_of_a_new_checkpoint_is_named(tmp_path, refused):
    trained = _trained(tmp_path, "host")
    (tmp_path / "model.ckpt-5.index").mkdir()
    with refused(tf.errors.FailedPreconditionError):
        trained.train(on_cores.train_input_fn, max_steps=5)


@mostly_swept("suffix", [DATA, ".index"], kept=[".index"])
@row(
    "checkpoints",
    "a checkpoint that was cut off, in `export_saved_model`",
    "The checkpoint",
    "model.ckpt-4 can't be read",
    "model.ckpt-2: give it as checkpoint_path",
)
def test_a_truncated_checkpoint_is_not_exported(tmp_path, suffix, refused):
    trained = _trained(tmp_path, "host")
    file = pathlib.Path(trained.latest_checkpoint() + suffix)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with refused((ValueError, tf.errors.DataLossError)):
        _export(trained, tmp_path / "export")
    exports = tmp_path / "export"
    assert not exports.exists() or os.listdir(exports) == []


def _renamed(features, labels, mode, params):
    with v1.variable_scope("renamed"):
        return linear_model.model_fn_for(tpu)(features, labels, mode, params)


MISFIT = (
    "Missing in the checkpoint: 'renamed/linear/bias' float32 [], 'renamed/linear/weights' "
    "float32 [3]. In the checkpoint only: 'linear/bias' float32 [], 'linear/weights' "
)


@in_every_mode
@pytest.mark.behaviour(280)
@row(
    "checkpoints",
    "a checkpoint of another model, in `train`, `evaluate` and `predict`",
    "Restoring from checkpoint",
    "model.ckpt-2 failed: a mismatch between it and the graph",
    MISFIT,
    "Use another model_dir, or warm-start from this checkpoint",
)
def test_a_checkpoint_of_another_model_is_refused_with_all_names(tmp_path, place, mode, refused):
    on_cores.run(estimator(tmp_path, place), "train")
    with refused(tf.errors.NotFoundError):
        on_cores.run(estimator(tmp_path, place, _renamed), mode)


@pytest.mark.behaviour(341)
@row(
    "checkpoints",
    "a checkpoint of another model, in `export_saved_model`",
    "Could not load all requested variables from checkpoint",
    "mode `infer`",
    MISFIT,
)
def test_a_checkpoint_of_another_model_is_not_exported(tmp_path, refused):
    on_cores.run(estimator(tmp_path, "host"), "train")
    with refused(ValueError):
        _export(estimator(tmp_path, "host", _renamed), tmp_path / "export")
    assert not (tmp_path / "export").exists()


@on_cores_mostly
@pytest.mark.behaviour(213, 234)
@row(
    "checkpoints",
    "a `checkpoint_path` that is not there",
    "The passed save_path is not a valid checkpoint: ",
    "model.ckpt-3.index does not exist; its folder has model.ckpt-0, model.ckpt-2, model.ckpt-4",
)
def test_a_checkpoint_path_that_is_not_there(tmp_path, place, refused):
    trained = _trained(tmp_path, place)
    path = str(tmp_path / "model.ckpt-3")
    with refused(tf.errors.NotFoundError):
        trained.evaluate(linear_model.input_fn, checkpoint_path=path)
    with refused(tf.errors.NotFoundError):
        next(trained.predict(linear_model.input_fn, checkpoint_path=path))


@pytest.mark.parametrize("kind", [pathlib.Path, os.fsencode])
@pytest.mark.behaviour(213, 234)
def test_a_checkpoint_path_of_each_kind_is_taken(tmp_path, kind):
    trained = _trained(tmp_path, "host")
    path = kind(str(tmp_path / "model.ckpt-2"))
    one_batch = functools.partial(linear_model.input_fn, count=4)
    assert trained.evaluate(one_batch, checkpoint_path=path)["global_step"] == 2
    assert len(list(trained.predict(one_batch, checkpoint_path=path))) == 4


def test_checkpoints_that_no_file_names_are_told(tmp_path, caplog):
    trained = _trained(tmp_path, "host")
    (tmp_path / "checkpoint").unlink()
    one_batch = functools.partial(linear_model.input_fn, count=4)
    calls = {
        "evaluate runs on variables that were never trained": lambda: trained.evaluate(one_batch),
        "predict runs on variables that were never trained": lambda: list(
            trained.predict(one_batch)
        ),
        "Training starts from scratch in ": lambda: trained.train(one_batch, max_steps=1),
    }
    for said, call in calls.items():
        caplog.clear()
        call()
        (told,) = [each for each in caplog.records if said in each.getMessage()]
        assert told.levelname == "WARNING"
        assert "It has model.ckpt-4, but no file 'checkpoint'" in told.getMessage()


@in_every_mode
@row(
    "checkpoints",
    "features of another width than the checkpoint's",
    "'dense/kernel': float32 [3, 1] in the checkpoint, float32 [2, 1] in the graph",
    "The model that wrote it was another one, or had other features",
)
def test_features_of_another_width_than_the_checkpoints_are_refused(tmp_path, place, mode, refused):
    def model_fn(features, labels, mode, params):
        outputs = v1.layers.dense(features["x"], 1)[:, 0]
        loss = None if mode == "infer" else tf.reduce_mean(tf.square(outputs - labels))
        train_op = None
        if mode == "train":
            optimizer = v1.tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
            train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, predictions={"y": outputs})

    on_cores.run(estimator(tmp_path, place, model_fn), "train")

    rows, labels = linear_model.rows()

    def input_fn(params):
        dataset = tf.data.Dataset.from_tensor_slices(({"x": rows[:, :2]}, labels))
        return dataset.batch(params["batch_size"], drop_remainder=True)

    with refused(tf.errors.InvalidArgumentError):
        on_cores.run(estimator(tmp_path, place, model_fn), mode, input_fn)
