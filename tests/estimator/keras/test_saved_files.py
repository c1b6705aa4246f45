"""The file of a Keras model is read before Keras loads it: code in it, and what it names."""

import json
import logging
import os
import zipfile

import h5py
import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tests.estimator.keras import models
from tests.estimator.keras.models import keras_of
from tfx_tpu_trainer import estimator as tfe


def _with_lambda(keras, layer_of=lambda keras, layer: layer):
    """A model with a Lambda layer, itself or in another layer."""
    layer = layer_of(keras, keras.layers.Lambda(lambda x: x * 2.0, name="doubled"))
    model = keras.Sequential([keras.Input([4, 2]), layer, keras.layers.Dense(1)])
    model.compile("sgd", keras.losses.MeanSquaredError())
    return model


def _saved(model, path):
    if path.suffix:
        model.save(path)
    else:
        model.save(path, save_format="tf")
    return str(path)


def _load(path, folder, **options):
    return tfe.model_to_estimator(keras_model_path=path, model_dir=folder / "there", **options)


def _inside_time_distributed(keras, layer):
    return keras.layers.TimeDistributed(layer)


def _inside_a_model(keras, layer):
    return keras.Sequential([keras.Sequential([layer])])


_LAMBDAS = ("the layer 'doubled' runs Python code of the file", "give safe_mode=False")


@pytest.mark.parametrize(
    ("library", "name", "layer_of"),
    [
        case(
            "exports",
            f"`keras_model_path` of {of} with {what}",
            *_LAMBDAS,
            values=(library, name, layer_of),
        )
        for of, library, name, what, layer_of in (
            ("an HDF5 file of Keras 2", "tf_keras", "a.h5", "a Lambda layer", lambda _, each: each),
            ("an HDF5 file of Keras 3", "keras", "a.h5", "a Lambda layer", lambda _, each: each),
            ("a `.keras` file", "tf_keras", "a.keras", "a Lambda layer", lambda _, each: each),
            (
                "a `.keras` file of Keras 3",
                "keras",
                "a.keras",
                "a Lambda layer in a TimeDistributed",
                _inside_time_distributed,
            ),
            ("an HDF5 file", "tf_keras", "a.h5", "a Lambda layer in models", _inside_a_model),
            ("a SavedModel", "tf_keras", "a", "a Lambda layer", lambda _, each: each),
        )
    ],
)
@pytest.mark.behaviour(431)
def test_code_of_the_file_is_refused_and_runs_where_the_caller_says_so(
    library, name, layer_of, tmp_path, refused
):
    model = _with_lambda(keras_of(library), layer_of)
    path = _saved(model, tmp_path / name)
    with refused(ValueError):
        _load(path, tmp_path)
    assert not (tmp_path / "there" / "checkpoint").exists()
    estimator = _load(path, tmp_path, safe_mode=False)
    rows = np.random.RandomState(0).randn(3, 4, 2).astype("float32")
    found = list(estimator.predict(lambda: tf.data.Dataset.from_tensors(rows)))
    expected = model.predict(rows, verbose=0)
    np.testing.assert_allclose([next(iter(each.values())) for each in found], expected, atol=1e-5)
    estimator.train(models.dataset_fn((rows, np.ones([3, 4, 1], "float32")), batch=3), steps=1)


def _change_config(path, change):
    """Rewrites the config in a `.keras` file."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(parts["config.json"])
    change(config)
    parts["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def _named_by(module, name):
    named = {"module": module, "class_name": "function", "config": name, "registered_name": name}

    def change(config):
        config["config"]["layers"][1]["config"]["activation"] = named

    return change


@pytest.mark.parametrize(
    ("module", "name"),
    [
        case(
            "exports",
            f"a `.keras` file whose activation is `{name}` of `{module}`",
            f"Could not locate '{name}'",
            f"can't load it from the module '{module}'",
            "custom_objects={",
            values=(module, name),
        )
        for module, name in (("os", "getpid"), ("builtins", "print"))
    ],
)
@pytest.mark.parametrize("library", ["tf_keras", "keras"])
def test_a_module_that_the_file_names_is_not_imported(library, module, name, tmp_path, refused):
    path = _saved(models.small(keras_of(library)), tmp_path / "a.keras")
    _change_config(path, _named_by(module, name))
    with refused(TypeError):
        _load(path, tmp_path)


def test_a_function_that_the_caller_gives_is_the_callers_whatever_the_file_says(tmp_path):
    path = _saved(models.small(keras_of("tf_keras")), tmp_path / "a.keras")
    _change_config(path, _named_by("some.module", "twice"))
    made = _load(path, tmp_path, custom_objects={"twice": lambda x: 2.0 * x})
    assert np.isfinite(models.predicted(made)).all()


def _link(file, other):
    file["model_weights/elsewhere"] = h5py.ExternalLink(other, "/secret")


def _external(file, other):
    file.create_dataset("model_weights/elsewhere", [4], "u1", external=[(other, 0, 4)])


def _virtual(file, other):
    layout = h5py.VirtualLayout((1,), "f4")
    layout[0] = h5py.VirtualSource(other, "secret", (1,))[0]
    file.create_virtual_dataset("model_weights/elsewhere", layout)


@pytest.mark.parametrize(
    "make",
    [
        case(
            "exports",
            f"an HDF5 file with {what} another file",
            "from another file",
            "save the model again",
            values=make,
        )
        for what, make in (
            ("a link into", _link),
            ("an array that is in", _external),
            ("an array that is made of", _virtual),
        )
    ],
)
def test_a_file_that_reads_another_one_is_refused(make, tmp_path, refused):
    other = str(tmp_path / "other.h5")
    with h5py.File(other, "w") as file:
        file["secret"] = np.ones([1], "f4")
    path = _saved(models.small(keras_of("tf_keras")), tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        make(file, other)
    with refused(ValueError):
        _load(path, tmp_path)


def test_so_are_those_of_an_archives_weights(tmp_path):
    path = _saved(models.small(keras_of("keras")), tmp_path / "a.keras")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "parts")
    with h5py.File(tmp_path / "parts" / "model.weights.h5", "a") as file:
        file["elsewhere"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/secret")
    with zipfile.ZipFile(path, "w") as archive:
        for name in os.listdir(tmp_path / "parts"):
            archive.write(tmp_path / "parts" / name, name)
    with pytest.raises(ValueError, match="from another file"):
        _load(path, tmp_path)


def _archive_of(parts):
    def write(path):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in parts.items():
                archive.writestr(name, content)

    return write


def _cut(path):
    _archive_of({"metadata.json": "{}", "config.json": "{}"})(path)
    content = bytearray(path.read_bytes())
    content[0:4] = b"XXXX"
    path.write_bytes(content)


@pytest.mark.parametrize(
    "write",
    [
        case(
            "exports", f"a `.keras` file {given}", "is not a saved Keras model", *says, values=write
        )
        for given, says, write in (
            (
                "without metadata.json",
                ["has no metadata.json", "give an HDF5 file"],
                _archive_of({"config.json": "{}"}),
            ),
            (
                "whose metadata.json is not valid JSON",
                ["its metadata.json is not valid JSON"],
                _archive_of({"metadata.json": "{", "config.json": "{}"}),
            ),
            (
                "whose config.json is 100,000 brackets",
                ["its config.json is not valid JSON"],
                _archive_of({"metadata.json": "{}", "config.json": "[" * 100_000}),
            ),
            (
                "whose metadata.json is a list",
                ["its metadata.json is not an object"],
                _archive_of({"metadata.json": "[]", "config.json": "{}"}),
            ),
            ("that is damaged", ["the archive can't be read"], _cut),
            (
                "that is empty",
                ["neither an HDF5 file nor an archive"],
                lambda path: path.write_bytes(b""),
            ),
        )
    ],
)
def test_what_is_no_saved_model_is_named(write, tmp_path, refused):
    write(tmp_path / "a.keras")
    with refused(ValueError):
        _load(str(tmp_path / "a.keras"), tmp_path)


@row(
    "exports",
    "an archive whose name must end with `.keras`",
    "a.zip' is not a saved Keras model",
    "must end with .keras",
)
def test_an_archive_of_another_name_is_named(tmp_path, refused):
    path = _saved(models.small(keras_of("keras")), tmp_path / "a.keras")
    os.rename(path, tmp_path / "a.zip")
    with refused(ValueError):
        _load(str(tmp_path / "a.zip"), tmp_path)


def test_a_class_that_the_program_has_registered_is_the_programs(tmp_path):
    keras = keras_of("keras")

    @keras.saving.register_keras_serializable("tests_of_saved_files")
    class Doubled(keras.layers.Layer):
        def call(self, inputs):
            return inputs * 2.0

    model = keras.Sequential([keras.Input([4], name="x"), Doubled(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    path = _saved(model, tmp_path / "a.keras")
    expected = model.predict(models.rows()[0], verbose=0)
    rows = _load(path, tmp_path).predict(models.input_fn(labelled=False))
    np.testing.assert_allclose([next(iter(row.values())) for row in rows], expected, atol=1e-6)


def test_layers_of_the_programs_own_are_loaded_from_a_folder(tmp_path):
    keras = keras_of("tf_keras")

    class Doubled(keras.layers.Layer):
        def call(self, inputs):
            return inputs * 2.0

    inner = keras.layers.TimeDistributed(Doubled())
    model = keras.Sequential([keras.Input([4, 2]), inner, keras.layers.Dense(1)])
    model.compile("sgd", keras.losses.MeanSquaredError())
    path = _saved(model, tmp_path / "a")
    assert _load(path, tmp_path, custom_objects={"Doubled": Doubled})


@row(
    "exports",
    "`keras_model_path` of a folder whose saved_model.pb is damaged",
    "is not a saved Keras model",
    "its saved_model.pb is damaged",
)
def test_a_damaged_folder_is_named(tmp_path, refused):
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(b"\xff" * 10)
    with refused(ValueError):
        _load(str(folder), tmp_path)


@pytest.mark.parametrize(
    "path",
    [
        case(
            "exports",
            f"`keras_model_path='{path}'`",
            f"keras_model_path='{path}'",
            f"can't open {path.partition(':')[0]}://",
            "gs://",
            "give one of those",
            values=path,
        )
        for path in ("https://example.com/a.keras", "foo://a/b.h5")
    ],
)
def test_an_address_that_no_file_system_of_tensorflow_opens_is_named(path, tmp_path, refused):
    with refused(ValueError):
        _load(path, tmp_path)


@pytest.mark.behaviour(431)
def test_where_a_file_that_is_elsewhere_is_read_and_copied_to_is_logged(tmp_path, caplog):
    path = _saved(models.small(keras_of("tf_keras")), tmp_path / "a.h5")
    tf.io.gfile.copy(path, "ram://kept/a.h5", overwrite=True)
    with caplog.at_level(logging.INFO):
        _load("ram://kept/a.h5", tmp_path)
    copied = str(tmp_path / "there" / "keras" / "keras_model.h5")
    assert f"'ram://kept/a.h5' is copied to {copied!r}" in caplog.text
    assert os.path.exists(copied)
    _load(f"file://{path}", tmp_path / "local")
    assert not (tmp_path / "local" / "there" / "keras" / "keras_model.h5").exists()
    with pytest.raises(OSError, match=r"^No file or directory found at ram://kept/b.h5"):
        _load("ram://kept/b.h5", tmp_path / "none")
    (tmp_path / "text.h5").write_text("text")
    with pytest.raises(ValueError, match=r"text.h5' is not a saved Keras model"):
        _load(str(tmp_path / "text.h5"), tmp_path / "none")
