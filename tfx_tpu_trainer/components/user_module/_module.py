"""Imports the user's module, checks its functions before any training, and turns its exits into errors."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import os
import pathlib
import sys
import traceback
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator import ModeKeys, tpu
from tfx_tpu_trainer.estimator.extending import (
    argument_names,
    is_keras_model,
    keras_model_fn,
    keras_output_names,
)

_MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "config")
_RESERVED_PARAMS = ("batch_size", "context")
_INPUT_FN_ARGUMENTS = ("params", "mode", "config", "fn_args")


@dataclasses.dataclass(frozen=True, kw_only=True)
class UserModule:
    """The contents of a user's module.

    Attributes:
        name: The module's name, for messages.
        model_fn: The model function; for a module with build_model, the result of `with_keras_model`.
        input_fn: Input function for training and evaluation, or `None` for the default.
        serving_input_receiver_fn: Receiver of serving requests, or `None` for the default.
        params: Values for model_fn's params, or a function of fn_args that returns them.
        build_model: Takes the params and returns a compiled Keras model; `None` in a module with a model_fn.
        callbacks: Takes the params and returns the callbacks of `fit`; `None` if there are none.
        warm_start_from: Source of the initial values of `build_model`'s variables; `None` in a module with a model_fn.
        not_served: Features that a request for a prediction can leave out, in addition to the label.
    """

    name: str
    model_fn: Callable[..., Any]
    input_fn: Callable[..., Any] | None = None
    serving_input_receiver_fn: Callable[..., Any] | None = None
    params: Mapping[str, Any] | Callable[..., Mapping[str, Any]] | None = None
    build_model: Callable[..., Any] | None = None
    callbacks: Callable[[dict[str, Any]], Any] | None = None
    warm_start_from: Any = None
    not_served: tuple[str, ...] = ()

    @property
    def takes_labels(self) -> bool:
        """Whether model_fn has an argument for labels; a Keras model may find them among its features."""
        return self.build_model is None and "labels" in argument_names(self.model_fn)

    @property
    def input_fn_wants_fn_args(self) -> bool:
        """Whether the module's input_fn, if any, takes TFX's FnArgs."""
        return self.input_fn is not None and "fn_args" in argument_names(self.input_fn)

    def params_for(self, fn_args: Any) -> dict[str, Any]:
        """Returns the module's own values for model_fn's params.

        Args:
            fn_args: TFX's FnArgs, for `params` that are a function.

        Returns:
            The values by name; empty if the module has no `params`.

        Raises:
            ValueError: If the function doesn't return a mapping.
        """
        values = self.params
        if callable(values):
            if len(argument_names(values)) != 1:
                raise ValueError(
                    f"params of module {self.name!r} takes ({', '.join(argument_names(values))}); let it "
                    "take one argument, fn_args"
                )
            values = values(fn_args)
        if values is None and self.params is None:
            return {}
        if not isinstance(values, Mapping):
            raise ValueError(
                f"params of module {self.name!r} returned {values!r}; let it return a dict, such "
                "as {'learning_rate': 0.1}"
            )
        for name in values:
            if name in _RESERVED_PARAMS or not isinstance(name, str):
                raise ValueError(
                    f"params of module {self.name!r} has the key {name!r}; give strings as keys, "
                    f"except {', '.join(_RESERVED_PARAMS)}, which the engine sets"
                )
        return dict(values)

    def input_fn_for(self, mode: str, fn_args: Any) -> Callable[..., Any] | None:
        """Returns the module's input function in the form that an estimator takes.

        Args:
            mode: "train" or "eval".
            fn_args: TFX's FnArgs, for an input function that takes them.

        Returns:
            A function of `params` and, if the module's takes it, `config`; or `None`.
        """
        input_fn = self.input_fn
        if input_fn is None:
            return None
        wanted = argument_names(input_fn)
        fixed = {k: v for k, v in {"mode": mode, "fn_args": fn_args}.items() if k in wanted}

        def called(**given: Any) -> Any:
            made = input_fn(**given, **fixed)
            if made is None:
                raise ValueError(
                    f"input_fn of module {self.name!r} returned None in mode {mode!r}; let it return a "
                    "tf.data.Dataset of (features, labels)"
                )
            return made

        if "config" in wanted:
            return lambda params, config: called(params=params, config=config)
        return lambda params: called(params=params)

    def serving_receiver_for(self, fn_args: Any) -> Callable[[], Any] | None:
        """Returns the module's serving_input_receiver_fn as a function without arguments, or `None`.

        Args:
            fn_args: TFX's FnArgs, for a function that takes them.
        """
        receiver = self.serving_input_receiver_fn
        if receiver is None or not argument_names(receiver):
            return receiver
        return lambda: receiver(fn_args=fn_args)


def load_module(name: str) -> UserModule:
    """Loads a user's module by its import path.

    Args:
        name: The import path.

    Returns:
        The module, checked.

    Raises:
        ValueError: If it can't be loaded, has no model_fn, or a function with wrong arguments.
    """
    return check_module(import_module(name))


def load_file(path: str) -> UserModule:
    """Loads a user's module from a file.

    Args:
        path: A .py file.

    Returns:
        The module, checked.

    Raises:
        ValueError: If it can't be loaded, has no model_fn, or a function with wrong arguments.
    """
    return check_module(import_file(path))


def check_module(module: types.ModuleType) -> UserModule:
    """Extracts what a TpuTrainer needs from a module."""
    name = module.__name__
    model_fn, build_model = (getattr(module, key, None) for key in ("model_fn", "build_model"))
    if model_fn is not None and build_model is not None:
        raise ValueError(
            f"module {name!r} has a model_fn and a build_model, which is ambiguous: leave one of them out"
        )
    if build_model is not None:
        _check_arguments(name, "build_model", build_model, ("params",), ("params",))
        model_fn = _not_built
    if model_fn is None:
        functions = sorted(
            key
            for key, value in vars(module).items()
            if inspect.isroutine(value) and not key.startswith("_")
        )
        raise ValueError(
            f"module {name!r} has no model_fn; define model_fn(features, labels, mode, params) in "
            "it, or build_model(params) that returns a compiled Keras model (its functions are: "
            f"{', '.join(functions) or 'none'})"
        )
    _check_arguments(name, "model_fn", model_fn, _MODEL_FN_ARGUMENTS, ("features", "params"))
    callbacks = getattr(module, "callbacks", None) if build_model is not None else None
    if callbacks is not None:
        _check_arguments(name, "callbacks", callbacks, ("params",), ("params",))
    input_fn = getattr(module, "input_fn", None)
    if input_fn is not None:
        _check_arguments(name, "input_fn", input_fn, _INPUT_FN_ARGUMENTS, ("params",))
    receiver = getattr(module, "serving_input_receiver_fn", None)
    if receiver is not None:
        _check_arguments(name, "serving_input_receiver_fn", receiver, ("fn_args",), ())
    params = getattr(module, "params", None)
    if not (params is None or callable(params) or isinstance(params, Mapping)):
        raise ValueError(
            f"params of module {name!r} is {params!r}; make it a dict or a function of fn_args"
        )
    return UserModule(
        name=name,
        model_fn=model_fn,
        input_fn=input_fn,
        serving_input_receiver_fn=receiver,
        params=params,
        build_model=build_model,
        callbacks=callbacks,
    )


def _not_built(features: Any, labels: Any, mode: str, params: Any) -> Any:
    raise AssertionError("the Keras model of a module is built by with_keras_model")


def _check_arguments(
    module: str, name: str, function: Any, allowed: tuple[str, ...], required: tuple[str, ...]
) -> None:
    where = f"{name} of module {module!r}"
    if not callable(function):
        raise ValueError(f"{where} is {function!r}; make it a function")
    taken = argument_names(function)
    shown = f"it takes ({', '.join(taken)})"
    for argument in taken:
        if argument not in allowed:
            raise ValueError(
                f"{where} has an argument {argument!r}, which gets no value, {shown}; allowed are "
                f"{', '.join(allowed)}"
            )
    for missing in required:
        if missing not in taken:
            use = "it receives your values" if required == allowed else _USE_OF[missing]
            raise ValueError(f"{where} has no argument {missing!r}, {shown}; add it: {use}")


_USE_OF = {
    "features": "it receives the input's features",
    "params": "params['batch_size'] is the batch size",
}


def import_module(name: str) -> types.ModuleType:
    """Imports a module, or reloads it."""
    try:
        if name in sys.modules:
            # As in TFX, so an edit between two runs in one process (a notebook) takes effect.
            return importlib.reload(sys.modules[name])
        return importlib.import_module(name)
    except Exception as error:
        raise _unloadable(name, error) from error


def import_file(path: str) -> types.ModuleType:
    """Imports a module from a file."""
    if not path.endswith(".py") or not os.path.exists(path):
        raise ValueError(
            f"module_file={path!r} is not a Python file on this machine; give the path of a .py "
            "file"
        )
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # true for every .py file
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _unloadable(path, error) from error
    return module


def _unloadable(name: str, error: Exception) -> ValueError:
    reason = " ".join(str(error).split())
    return ValueError(
        f"the module {name!r} can't be loaded: {type(error).__name__}: {reason}; "
        f"check that it runs by itself (python -c 'import ...') where the trainer runs"
    )


@contextlib.contextmanager
def imported_from(folder: str) -> Iterator[None]:
    """Gives a folder's modules priority over others of the same names, and restores the state at the end.

    Most users' modules are called `model.py`. Two pipelines in one process, as in a notebook, must each get their own,
    regardless of earlier imports and of other folders on `sys.path`.

    Args:
        folder: Folder of the user's module and the helpers that it imports.

    Yields:
        Nothing.
    """
    # A file such as random.py can't replace Python's own module, which others have imported.
    names = {path.stem for path in pathlib.Path(folder).glob("*.py")}
    names -= {"__main__", *sys.stdlib_module_names}
    others = {name: sys.modules[name] for name in names if _is_elsewhere(name, folder)}
    for name in others:
        del sys.modules[name]
    sys.path.insert(0, folder)
    # Python caches directory listings, which may lack a new file.
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
        for name in names:
            if name in sys.modules and not _is_elsewhere(name, folder):
                del sys.modules[name]
        sys.modules.update(others)


def _is_elsewhere(name: str, folder: str) -> bool:
    module: types.ModuleType | None = sys.modules.get(name)
    if module is None:
        return False
    file = getattr(module, "__file__", None)
    return file is None or pathlib.Path(file).parent != pathlib.Path(folder)


class ModuleExitedError(RuntimeError):
    """A user's module tried to end the process that loaded it."""


@contextlib.contextmanager
def exits_are_errors(module: str) -> Iterator[None]:
    """Turns a module's `SystemExit`, with any code, into an error.

    For an orchestrator, exit code 0 means success. A module that calls `sys.exit(0)` when it is imported, in its
    model_fn or its input_fn, must not cause it: nothing was trained or checked. `KeyboardInterrupt` and the stop by
    SIGTERM pass, since they come from an operator.

    Args:
        module: The module's name in the message.

    Yields:
        Nothing.

    Raises:
        ModuleExitedError: If the module raised SystemExit.
    """
    try:
        yield
    except SystemExit as error:
        # Imported here, since it imports TensorFlow.
        from tfx_tpu_trainer.estimator.extending import StoppedBySignal

        # rich exits when its output is closed: `tfx-tpu-trainer preflight | head`.
        if isinstance(error, StoppedBySignal) or isinstance(error.__context__, BrokenPipeError):
            raise
        raised_at = traceback.extract_tb(error.__traceback__)[-1]
        raise ModuleExitedError(
            f"the module {module!r} ended the process by SystemExit({error.code!r}) at "
            f"{raised_at.filename}:{raised_at.lineno}; raise an exception that explains the error, or return"
        ) from error


WEIGHT_COLUMN = "weight_column"
"""Name of the param that names the feature with the rows' weights."""


def with_keras_model(
    module: UserModule,
    params: Mapping[str, Any],
    *,
    features: Collection[str] | None,
    label_key: str | None,
    config: tpu.RunConfig | None = None,
    warm_start_from: Any = None,
) -> UserModule:
    """Returns the module with its Keras model as model_fn; a module with a model_fn is unchanged."""
    # `features` includes labels, and is None if only the module's input_fn knows the names. Without a label_key, the
    # labels are the features with the names of the model's outputs. Without a config, the model is never trained.
    if module.build_model is None:
        return module
    where = f"build_model of module {module.name!r}"
    if config is not None and config.tf_random_seed is not None:
        # Seeds the model's initial values; the estimator seeds the training's ops.
        tf.keras.utils.set_random_seed(config.tf_random_seed)
    model = module.build_model(params=dict(params))
    if not is_keras_model(model):
        raise ValueError(f"{where} returned {model!r}; let it return a compiled Keras model")
    if not getattr(model, "optimizer", None):
        raise ValueError(
            f"{where} returned the model {model.name!r}, which is not compiled; call "
            "model.compile(optimizer=..., loss=..., metrics=[...]) before returning it"
        )
    weights = params.get(WEIGHT_COLUMN)
    if weights is not None and features is not None and weights not in features:
        raise ValueError(
            f"params[{WEIGHT_COLUMN!r}]={weights!r} is not among the features "
            f"{', '.join(sorted(features))}; name the one that holds the rows' weights"
        )
    labels: tuple[str, ...] = ()
    if label_key is None and features is not None:
        labels = _labels_among(where, model, features)
    model_fn, first_values = keras_model_fn(model, config, warm_start_from=warm_start_from)
    return dataclasses.replace(
        module,
        model_fn=_fed(model_fn, labels, weights),
        warm_start_from=first_values,
        not_served=(*labels, *([weights] if weights is not None else [])),
    )


def _labels_among(where: str, model: Any, features: Collection[str]) -> tuple[str, ...]:
    names = keras_output_names(model)
    if names and set(names) <= set(features):
        return tuple(names)
    called = f"the outputs {', '.join(map(repr, names))}" if names else "outputs without names"
    raise ValueError(
        f"label_key is not set, and {where} returned a model with {called}; set label_key to the transformed "
        "feature that is the label, or name each output as its label's feature (there are "
        f"{', '.join(sorted(features))}), or give an input_fn in the module"
    )


def _fed(
    model_fn: Callable[..., Any], label_names: tuple[str, ...], weight_column: str | None
) -> Callable[..., Any]:
    """Takes labels and weights out of a model_fn's features."""

    def fed(features: Any, labels: Any, mode: str, params: Mapping[str, Any]) -> Any:
        features = dict(features) if isinstance(features, Mapping) else features
        served = mode == ModeKeys.PREDICT
        if label_names and labels is None:
            taken = {name: features.pop(name, None) for name in label_names}
            labels = None if served else taken
        if weight_column is not None:
            weights = features.pop(weight_column, None) if isinstance(features, dict) else None
            if weights is None and not served:
                raise ValueError(
                    f"params[{WEIGHT_COLUMN!r}]={weight_column!r} is not among the features of the input_fn"
                )
            if not served:
                features = {"features": features, "sample_weights": weights}
        return model_fn(features=features, labels=labels, mode=mode, params=params)

    return fed
