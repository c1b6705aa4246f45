"""Loads a saved Keras model after checking which code its file would run, and which files it reads.

Keras makes layers from a config in the file. That of a Lambda layer has Python bytecode, and any config may name a
function of any module, which Keras imports. Its `safe_mode` does not apply to HDF5 files and SavedModels, and accepts
named functions, including the one that switches `safe_mode` off. So this module checks all configs first, without
running anything.
"""

import builtins
import importlib
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, Final

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tfx_tpu_trainer._support.file_systems import exists, is_local, local_path
from tfx_tpu_trainer._support.whole_files import file_written_whole
from tfx_tpu_trainer.estimator.keras._tf_private import eagerly

_logger = tf.get_logger()

_WEB_ADDRESS: Final = "https://storage.googleapis.com/"

_CODE_LAYERS: Final = ("Lambda", "TorchModuleWrapper")
# Keras, and packages that newer versions of it import.
_OWN_PACKAGES: Final = ("keras", "tf_keras", "keras_hub", "keras_cv", "keras_nlp")


def load_model(
    path: Any, custom_objects: Mapping[str, Any] | None, *, model_dir: str, safe_mode: bool
) -> Any:
    """Loads a saved model with the Keras that saved it."""
    path = os.fsdecode(path)
    if path.startswith(_WEB_ADDRESS):
        address, path = path, f"gs://{path.removeprefix(_WEB_ADDRESS)}"
        _logger.info("keras_model_path %r is read as %r", address, path)
    if not exists("keras_model_path", path):
        raise FileNotFoundError(
            f"No file or directory found at {path}: keras_model_path must name a saved Keras model."
        )
    here = local_path(path) if is_local(path) else _copied(path, os.path.join(model_dir, "keras"))
    given = dict(custom_objects or {})
    keras = importlib.import_module(_check_file(here, given, safe_mode=safe_mode))
    _logger.info("Loading models from %s", path)
    try:
        return eagerly(
            lambda: keras.models.load_model(here, custom_objects=given, safe_mode=safe_mode)
        )
    except Exception as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"{error}\nkeras_model_path {path!r}: {keras.__name__} {keras.__version__} can't "
            "load it. Custom classes and functions must be in "
            "custom_objects={'Name': Name}."
        ) from error


def _copied(path: str, folder: str) -> str:
    if tf.io.gfile.isdir(path):
        raise ValueError(
            f"keras_model_path {path!r} is a folder: Keras loads a SavedModel only from local "
            "disk; copy it there."
        )
    here = os.path.join(folder, f"keras_model{os.path.splitext(path)[1] or '.h5'}")
    _logger.info("keras_model_path %r is copied to %r", path, here)
    with file_written_whole(here) as written:
        tf.io.gfile.copy(path, written)
    return here


def _check_file(path: str, custom_objects: Mapping[str, Any], *, safe_mode: bool) -> str:
    """Checks a file; returns the Keras package that saved it."""
    is_folder = os.path.isdir(path)
    if is_folder:
        library, configs = "tf_keras", _configs_of_folder(path)
    # Distinguished in Keras's way: otherwise a file that is both an archive and HDF5 could be checked as one and loaded
    # as the other.
    elif path.endswith(".keras") and zipfile.is_zipfile(path):
        library, configs = _read_archive(path)
    else:
        library, configs = _read_hdf5(path)
    if safe_mode:
        check = _Check(path, custom_objects, library, imports=not is_folder)
        for config in configs:
            check.walk(config)
    return library


class _Check:
    """Refuses configs that would run or import code."""

    def __init__(
        self, path: str, custom_objects: Mapping[str, Any], library: str, *, imports: bool
    ) -> None:
        self._path = path
        self._given = custom_objects
        self._saving = importlib.import_module(library).saving
        self._imports = imports

    def walk(self, config: Any) -> None:
        """Checks a config and all nested ones."""
        # A list instead of a recursion, since a file may nest configs to any depth.
        waiting: list[tuple[Any, str]] = [(config, "")]
        while waiting:
            value, layer = waiting.pop()
            if isinstance(value, dict):
                inner = value.get("config")
                if isinstance(inner, dict) and isinstance(inner.get("name"), str):
                    layer = inner["name"]
                self._check(value, layer)
                waiting.extend((each, layer) for each in value.values())
            elif isinstance(value, list):
                waiting.extend((each, layer) for each in value)

    def _check(self, config: Mapping[str, Any], layer: str) -> None:
        # Layers of Keras 2 mark a Lambda's function by another key: "function_type": "lambda".
        if any(key.endswith("_type") and kind == "lambda" for key, kind in config.items()):
            self._refuse_code(layer)
        name = config.get("class_name")
        if not isinstance(name, str):
            return
        if name == "__lambda__":
            self._refuse_code(layer)
        # "Custom>Lambda" and "keras.layers.Lambda" are Lambda to Keras as well.
        short = name.rpartition(">")[2].rpartition(".")[2]
        inner = config.get("config")
        function = inner.get("function") if isinstance(inner, dict) else None
        # For a Lambda layer, Keras 3 writes {"class_name": "function", "config": name}, Keras 2 the name.
        function = function.get("config") if isinstance(function, dict) else function
        if short in _CODE_LAYERS and not self._is_known(name) and not self._is_known(function):
            self._refuse_code(layer)
        if self._imports:
            self._check_module(config, name)

    def _is_known(self, name: Any) -> bool:
        """Returns whether the program gave or registered a class or function of this name."""
        return (
            isinstance(name, str)
            and self._saving.get_registered_object(name, self._given) is not None
        )

    def _check_module(self, config: Mapping[str, Any], class_name: str) -> None:
        module = config.get("module")
        if not isinstance(module, str) or not module:
            return
        name = config.get("config") if class_name == "function" else class_name
        if self._is_known(name) or self._is_known(config.get("registered_name")):
            return
        package = module.partition(".")[0]
        if class_name == "__typespec__":
            safe = package in (*_OWN_PACKAGES, "tensorflow")
        elif package == "builtins":
            # Keras writes "builtins" for its own functions, but falls back to Python's, such as `eval`.
            safe = not (isinstance(name, str) and hasattr(builtins, name))
        else:
            safe = package in _OWN_PACKAGES
        if not safe:
            raise TypeError(
                f"Could not locate {name!r}: keras_model_path {self._path!r} can't load it from "
                f"the module {module!r}, because files may not choose modules; give "
                f"custom_objects={{{name!r}: ...}}, or safe_mode=False if you trust its author."
            )

    def _refuse_code(self, layer: str) -> None:
        raise ValueError(
            f"keras_model_path {self._path!r}: the layer {layer!r} runs Python code of the file, "
            "as Lambda layers do; give safe_mode=False if you trust its author."
        )


def _no_model(path: str, why: str) -> ValueError:
    return ValueError(
        f"keras_model_path {path!r} is not a saved Keras model: {why}; give an HDF5 file, a .keras "
        "file or a SavedModel's folder."
    )


def _parsed(path: str, part: str, text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _no_model(path, f"its {part} is not valid JSON") from None


def _library_of(version: Any) -> str:
    return "keras" if str(version).startswith("3") else "tf_keras"


def _read_archive(path: str) -> tuple[str, list[Any]]:
    """Reads the Keras package and the config of a `.keras` file, and checks its weights."""
    try:
        with zipfile.ZipFile(path) as archive:
            missing = {"metadata.json", "config.json"} - set(archive.namelist())
            if missing:
                raise _no_model(path, f"the archive has no {min(missing)}")
            metadata = _parsed(path, "metadata.json", archive.read("metadata.json"))
            config = _parsed(path, "config.json", archive.read("config.json"))
            # One file, or several shards.
            for name in archive.namelist():
                if name.endswith(".h5"):
                    with archive.open(name) as file:
                        _open_hdf5(path, file, f"its {name} can't be read")
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise _no_model(path, f"the archive can't be read ({error})") from None
    if not isinstance(metadata, dict):
        raise _no_model(path, "its metadata.json is not an object")
    return _library_of(metadata.get("keras_version", "")), [config]


def _read_hdf5(path: str) -> tuple[str, list[Any]]:
    """Reads the Keras package and the configs of an HDF5 file."""
    if zipfile.is_zipfile(path):
        raise _no_model(path, "Keras recognizes an archive by its name, which must end with .keras")
    attributes = _open_hdf5(path, path, "it is neither an HDF5 file nor an archive")
    texts = {
        name: attributes[name] for name in ("model_config", "training_config") if name in attributes
    }
    return _library_of(attributes.get("keras_version", "2")), [
        _parsed(path, name, text) for name, text in texts.items()
    ]


def _open_hdf5(path: str, opened: Any, otherwise: str) -> dict[str, Any]:
    """Checks that an HDF5 file reads no other file; returns its attributes."""
    import h5py

    def look(_: str, each: Any) -> None:
        if isinstance(each, h5py.Dataset):
            elsewhere = bool(each.external) or each.is_virtual
        else:
            links = (each.get(name, getlink=True) for name in each)
            elsewhere = any(isinstance(link, h5py.ExternalLink) for link in links)
        if elsewhere:
            raise ValueError(
                f"keras_model_path {path!r} takes {each.name!r} from another file, which saved "
                "models never do; save the model again with Keras."
            )

    try:
        with h5py.File(opened, "r") as file:
            look("/", file)
            # visititems leaves the root group out, and follows no external link.
            file.visititems(look)
            return dict(file.attrs)
    except OSError:
        raise _no_model(path, otherwise) from None


def _configs_of_folder(path: str) -> list[Any]:
    """Reads the configs that Keras 2 writes next to a SavedModel, or into it."""
    from tf_keras.protobuf import saved_metadata_pb2

    texts: list[str] = []
    metadata = saved_metadata_pb2.SavedMetadata()
    if _parse_file(path, "keras_metadata.pb", metadata):
        texts += [node.metadata for node in metadata.nodes]
    model = saved_model_pb2.SavedModel()
    if _parse_file(path, "saved_model.pb", model):
        for graph in model.meta_graphs:
            objects = (node.user_object for node in graph.object_graph_def.nodes)
            texts += [each.metadata for each in objects if each.identifier.startswith("_tf_keras_")]
    return [_parsed(path, "metadata", text) for text in texts if text]


def _parse_file(folder: str, name: str, message: Any) -> bool:
    from google.protobuf.message import DecodeError

    file = os.path.join(folder, name)
    if not os.path.isfile(file):
        return False
    try:
        with tf.io.gfile.GFile(file, "rb") as opened:
            message.ParseFromString(opened.read())
    except DecodeError:
        raise _no_model(folder, f"its {name} is damaged") from None
    return True
