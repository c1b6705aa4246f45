"""Checks the arguments of a declared TpuTrainer that are not settings, when the pipeline is made.

TFX checks their types, too, but later and without naming a fix.
"""

from __future__ import annotations

import os
import re
import types
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format
from tfx import v1 as tfx

from tfx_tpu_trainer.components._tfx_private import (
    Placeholder,
    json_utils,
    proto_utils,
    udf_utils,
)
from tfx_tpu_trainer.components.trainer.module_source import (
    MODEL_NAMES,
    TRAINER_FN,
    ModuleSource,
    read_source,
    source_file,
)
from tfx_tpu_trainer.components.trainer.settings import TrainSettings
from tfx_tpu_trainer.components.trainer.values import shown, suggest

RuntimeParameter = tfx.dsl.experimental.RuntimeParameter

_artifacts = tfx.types.standard_artifacts

_MESSAGES: Mapping[str, Any] = types.MappingProxyType(
    {"train_args": tfx.proto.TrainArgs, "eval_args": tfx.proto.EvalArgs}
)

_INPUTS: Mapping[str, tuple[Any, str]] = types.MappingProxyType(
    {
        "examples": (_artifacts.Examples, "transform.outputs['transformed_examples']"),
        "transform_graph": (_artifacts.TransformGraph, "transform.outputs['transform_graph']"),
        "schema": (_artifacts.Schema, "schema_gen.outputs['schema']"),
        "raw_examples": (_artifacts.Examples, "example_gen.outputs['examples']"),
        "statistics": (_artifacts.ExampleStatistics, "statistics_gen.outputs['statistics']"),
        "base_model": (_artifacts.Model, "the `model` output of a trainer or of a Resolver"),
        "hyperparameters": (_artifacts.HyperParameters, "tuner.outputs['best_hyperparameters']"),
    }
)

_OPTIONAL = ("raw_examples", "statistics", "base_model", "hyperparameters")


def declared_source(
    *, module_file: Any, module: Any, trainer_fn: Any, settings: Mapping[str, Any]
) -> ModuleSource | None:
    """Checks the module that a component names, and that its parameters apply to it."""
    if sum(map(bool, (module_file, module, trainer_fn))) != 1:
        raise ValueError(
            f"give exactly one of module_file={module_file!r} (a .py file), "
            f"trainer_fn={trainer_fn!r} (the import path of a legacy module's function) and "
            f"module={module!r} (an import path)"
        )
    for name, path in (("module", module), (TRAINER_FN, trainer_fn)):
        if path is not None and not isinstance(path, str):
            raise ValueError(
                f"{name}={path!r} can't be a runtime parameter: its source is hashed when the "
                "pipeline is made; give an import path"
            )
    source = None
    if trainer_fn:
        source = ModuleSource.of_trainer_fn(trainer_fn)
    elif module:
        source = ModuleSource(module=module)
    if _is_legacy(source, module_file):
        check_settings(settings)
    return source


def _is_legacy(source: ModuleSource | None, module_file: Any) -> bool:
    if source is not None and source.trainer_fn:
        return True
    # What can't be seen here, such as a file elsewhere, is checked when the trainer runs.
    path = source_file(source.module or "") if source else module_file
    text = read_source(path if isinstance(path, str) else None)
    if text and not any(name in text for name in (TRAINER_FN, *MODEL_NAMES, "import *")):
        raise ValueError(
            f"module {str(source or module_file)!r} has no model_fn, build_model nor trainer_fn; define "
            "model_fn(features, labels, mode, params) in it (docs/component.md, The user's module), or "
            "build_model(params) that returns a compiled Keras model; a run_fn belongs to the stock Trainer "
            "(docs/how-to/from-the-stock-trainer.md)"
        )
    bound = rf"^(def )?{TRAINER_FN}\b|^(from|import) .*\b{TRAINER_FN}\b"
    return re.search(bound, text, re.MULTILINE) is not None


def check_settings(values: Mapping[str, Any]) -> None:
    """Rejects parameters that a legacy module could not see."""
    for name in TrainSettings.model_fields:
        value, why = values.get(name), TrainSettings.about(name).not_legacy
        if why and _is_given(name, value):
            raise ValueError(
                f"{name}={value!r} has no meaning for a module with a trainer_fn: {why}; leave it out"
            )


def _is_given(name: str, value: Any) -> bool:
    default = TrainSettings.model_fields[name].default
    try:
        return value is not None and bool(value != default)
    except (TypeError, ValueError):
        # A runtime parameter or placeholder: comparing it would add a node to the pipeline.
        return True


def check_inputs(given: Mapping[str, Any]) -> None:
    """Checks that the inputs are channels of their artifacts."""
    for name, (kind, source) in _INPUTS.items():
        value = given[name]
        if value is None and name in _OPTIONAL:
            continue
        check_channel("TpuTrainer", name, value, kind, source)
    transform = getattr(given["transform_graph"], "producer_component", None)
    before = _nodes_before(transform)
    for name, producers, what in (
        ("examples", before, "are not transformed yet"),
        ("raw_examples", {transform}, "are transformed already"),
    ):
        channel = given[name]
        producer = getattr(channel, "producer_component", None)
        if producer is not None and producer in producers:
            raise ValueError(
                f"TpuTrainer: {name}={producer.id}.outputs[{channel.output_key!r}] {what}; give "
                f"{name}={_INPUTS[name][1]}"
            )


def _nodes_before(component: Any) -> set[Any]:
    """Returns the components upstream of a component; none if unknown."""
    found: set[Any] = set()
    pending = [] if component is None else [component]
    while pending:
        for channel in pending.pop().inputs.values():
            # A union has several channels.
            for each in getattr(channel, "channels", [channel]):
                producer = getattr(each, "producer_component", None)
                if producer is not None and producer not in found:
                    found.add(producer)
                    pending.append(producer)
    return found


def check_channel(component: str, name: str, value: Any, kind: Any, source: str) -> None:
    """Checks that an argument is a channel of an artifact."""
    is_channel = isinstance(value, tfx.types.BaseChannel)
    if is_channel and value.type is kind:
        return
    given = f"a channel of {value.type.__name__}" if is_channel else shown(value)
    raise TypeError(
        f"{component}: {name} is {given} and must be a channel of {kind.__name__}; give {source}"
    )


def check_steps(name: str, args: Any) -> None:
    """Checks `train_args` or `eval_args`."""
    message = _MESSAGES[name]
    if _is_deferred(args):
        return
    if isinstance(args, Mapping):
        args = steps_from_json(name, json_utils.dumps(dict(args)))
    if args is not None and not isinstance(args, message):
        raise TypeError(
            f"TpuTrainer: {name}={shown(args)} is not a tfx.proto.{message.__name__}; give "
            f"{name}=tfx.proto.{message.__name__}(num_steps=...)"
        )
    try:
        check_num_steps(name, 0 if args is None else args.num_steps)
    except ValueError as error:
        raise ValueError(f"TpuTrainer: {error}") from None


def check_num_steps(name: str, steps: int) -> None:
    """Checks the number of steps to train or of batches to evaluate."""
    if name == "train_args" and steps <= 0:
        raise ValueError(
            f"train_args.num_steps={steps}: the number of training steps must be "
            "set; give train_args=tfx.proto.TrainArgs(num_steps=...)"
        )
    if steps < 0:
        raise ValueError(
            f"eval_args.num_steps={steps}: give the number of batches to evaluate, or leave it out for "
            "the whole split"
        )


def steps_from_json(name: str, text: str | None) -> Any:
    """Reads `train_args` or `eval_args` as TFX stores them."""
    message = _MESSAGES[name]()
    if not text:
        return message
    fields = [field.name for field in message.DESCRIPTOR.fields]
    try:
        values = json_utils.loads(text)
        if not isinstance(values, dict):
            raise ValueError("it is not an object")
        # TFX ignores unknown fields.
        unknown = set(values) - {*fields, *(f.json_name for f in message.DESCRIPTOR.fields)}
        if unknown:
            raise ValueError(f"unknown {min(unknown)!r}; {suggest(min(unknown), fields)}")
        return proto_utils.json_to_proto(text, message)
    except (ValueError, RecursionError, json_format.ParseError) as error:
        raise ValueError(
            f'{name}={shown(text)} is not valid ({error}); give JSON such as {{"num_steps": 1000}}'
        ) from None


def check_module_file(path: Any) -> None:
    """Checks that a module_file exists if this machine packages it."""
    if path is None or _is_deferred(path):
        return
    if not isinstance(path, str):
        raise TypeError(
            f"TpuTrainer: module_file={shown(path)} is not a string; give the path of a .py file"
        )
    here = "://" not in path and udf_utils.should_package_user_modules()
    if here and not (path.endswith(".py") and os.path.isfile(path)):
        raise ValueError(
            f"module_file={path!r} is not a Python file on this machine; give the path of a .py "
            "file"
        )


def custom_config_as_json(config: Any) -> Any:
    """Returns a custom_config as the stock Trainer stores it."""
    if _is_deferred(config):
        return config
    if config is not None and not isinstance(config, Mapping):
        raise ValueError(f"custom_config={shown(config)} is not valid; give a dict of JSON values")
    try:
        return json_utils.dumps(None if config is None else dict(config))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"custom_config={shown(config)} is not valid ({error}); give a dict of JSON values"
        ) from None


def custom_config_from_json(text: str | None) -> dict[str, Any] | None:
    """Reads a custom_config as TFX stores it."""
    try:
        config = json_utils.loads(text or "null")
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"custom_config={shown(text)} is not valid ({error}); give a JSON object"
        ) from None
    if config is not None and not isinstance(config, dict):
        raise ValueError(f"custom_config={shown(text)} is not valid; give a JSON object")
    return config


def check_flag(name: str, value: Any) -> None:
    """Checks an argument that is True or False."""
    if not _is_deferred(value) and not (isinstance(value, int) and value in (0, 1)):
        raise ValueError(f"TpuTrainer: {name}={shown(value)} is not valid; give True or False")


def _is_deferred(value: Any) -> bool:
    return isinstance(value, (RuntimeParameter, Placeholder))
