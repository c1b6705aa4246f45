"""A Keras model, given as an object or as a file, checked before it becomes an estimator."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer._support.file_systems import exists, is_local, local_path
from tfx_tpu_trainer._support.whole_files import file_written_whole
from tfx_tpu_trainer.estimator.keras._eagerly import eagerly
from tfx_tpu_trainer.estimator.keras._graph_models import eager_copy, metric_names
from tfx_tpu_trainer.estimator.keras._keras2 import Keras2Model
from tfx_tpu_trainer.estimator.keras._keras3 import Keras3Model
from tfx_tpu_trainer.estimator.keras._keras_model import KerasModel
from tfx_tpu_trainer.estimator.keras._saved_files import checked_file
from tfx_tpu_trainer.estimator.keras._tf_private import is_of_a_graph

_logger = tf.get_logger()

_WRAPPERS: Final = {"tf_keras": Keras2Model, "keras": Keras3Model}
_WEB_ADDRESS: Final = "https://storage.googleapis.com/"


def eager_model(
    model: Any, custom_objects: Mapping[str, Any] | None, session_config: tf.compat.v1.ConfigProto
) -> KerasModel:
    """Wraps a model that can be traced: the given one, or a copy of one that is of this graph."""
    if tf.executing_eagerly() or not is_of_a_graph(model):
        return wrapped(model, custom_objects)
    copy = wrapped(eager_copy(model, custom_objects, session_config), custom_objects)
    copy.metric_names = metric_names(model)
    return copy


def check_one_is_given(keras_model: Any, keras_model_path: Any) -> None:
    """Checks that there is a model or a path, and not both."""
    if keras_model is None and not keras_model_path:
        raise ValueError(
            "Either `keras_model` or `keras_model_path` needs to be provided; got "
            f"keras_model={keras_model!r} and keras_model_path={keras_model_path!r}."
        )
    if keras_model is not None and keras_model_path:
        raise ValueError(
            "Please specify either `keras_model` or `keras_model_path`, but not both; got "
            f"keras_model={keras_model!r} and keras_model_path={keras_model_path!r}."
        )


def check_is_compiled(model: Any) -> None:
    """Checks that a model is one, and is compiled."""
    wrapped(model, None)
    if not getattr(model, "optimizer", None):
        raise ValueError(
            "The given keras model has not been compiled yet. Please compile the model with "
            f"`model.compile()` before calling `model_to_estimator()`. The model {model.name!r} needs "
            "an optimizer and, to be trained, a loss."
        )


def check_can_be_traced(wrapped: KerasModel) -> None:
    """Checks a model that becomes an estimator, and warns of what an estimator does not use."""
    model = wrapped.model
    if isinstance(wrapped.optimizer, (list, tuple)):
        wrapped.parts_to_optimize()
    # Keras 2 raises where it is asked for the variables of a model that has none yet.
    variables = model.weights if wrapped.is_built else []
    of_a_graph = any(tf.is_symbolic_tensor(wrapped.raw(each).handle) for each in variables)
    if of_a_graph or is_of_a_graph(model):
        raise ValueError(
            f"The Keras model {model.name!r} was created in a graph that is no longer the default "
            "one. Convert it where it was created, inside the same `with graph.as_default():`, or "
            "create it outside any graph. A Keras 3 model must be created eagerly."
        )
    eagerly(wrapped.check_custom_objects)
    train_step = getattr(type(model), "train_step", None)
    if getattr(train_step, "__module__", "").partition(".")[0] not in _WRAPPERS:
        _logger.warning(
            "The train_step of %s is not used: an estimator trains with the compiled loss.",
            type(model).__name__,
        )


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
    with checked_file(here, given, safe_mode=safe_mode) as (library, checked):
        keras = importlib.import_module(library)
        _logger.info("Loading models from %s", path)
        try:
            return eagerly(
                lambda: keras.models.load_model(checked, custom_objects=given, safe_mode=safe_mode)
            )
        except Exception as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(
                f"{error}\nkeras_model_path {path!r}: {keras.__name__} {keras.__version__} can't "
                "load it. Custom classes and functions must be in "
                "custom_objects={'Name': Name}."
            ) from error


def wrapped(model: Any, custom_objects: Mapping[str, Any] | None) -> KerasModel:
    """Wraps a model of either Keras."""
    for name, wrapper in _WRAPPERS.items():
        keras = sys.modules.get(name)
        if keras is not None and isinstance(model, keras.Model):
            if name == "keras" and keras.backend.backend() != "tensorflow":
                raise ValueError(
                    f"Keras 3 runs on the backend {keras.backend.backend()!r}: an estimator needs "
                    "KERAS_BACKEND=tensorflow in the environment."
                )
            return wrapper(model, custom_objects)
    raise ValueError(
        f"keras_model should be a model of Keras 2 (tf_keras) or Keras 3 (keras); got {model!r}."
    )


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
