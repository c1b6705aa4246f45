"""The values that parameters take: how they are read, stored by TFX, and refused."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any

import pydantic

from tfx_tpu_trainer.evaluation.slices import parse_slicing_specs, slicing_specs_to_json
from tfx_tpu_trainer.hardware import TpuSpec


def _from_flag(value: Any) -> Any:
    # Execution properties and RuntimeParameters know no booleans: TFX stores 0 and 1.
    return bool(value) if isinstance(value, int) and value in (0, 1) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"give a JSON object; {error}") from None


def _sizes_from_json(value: Any) -> Any:
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError as error:
        raise ValueError(f"give a JSON list of integers; {error}") from None
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError("give a list of integers above 0, as [1, 8]")
    return tuple(value)


def _specs_from_json(value: Any) -> Any:
    return tuple(slicing_specs_to_json(parse_slicing_specs(value)))


Flag = Annotated[bool, pydantic.BeforeValidator(_from_flag)]
Name = Annotated[str, pydantic.Field(min_length=1)]
# What ML Metadata and TensorFlow's ops take, and more than anybody means.
_LARGEST = 2**31 - 1
# The largest batches that servers are warmed up with; a request of many more rows is larger than gRPC takes.
_LARGEST_REQUEST = 65_536

Positive = Annotated[int, pydantic.Field(gt=0, le=_LARGEST)]
NotNegative = Annotated[int, pydantic.Field(ge=0, le=_LARGEST)]
Rows = Annotated[int, pydantic.Field(gt=0, le=_LARGEST_REQUEST)]
Params = Annotated[dict[str, Any], pydantic.BeforeValidator(_from_json)]
Specs = Annotated[tuple[dict[str, Any], ...], pydantic.BeforeValidator(_specs_from_json)]
Tpu = Annotated[TpuSpec, pydantic.BeforeValidator(TpuSpec.read)]
Sizes = Annotated[tuple[Rows, ...], pydantic.BeforeValidator(_sizes_from_json)]


def execution_value(value: Any) -> int | str | None:
    """Returns one setting's value in the form that TFX stores.

    Args:
        value: A value of `TrainSettings`.

    Returns:
        0 or 1 for a boolean, JSON for a mapping, a sequence or a TPU slice, everything else as it is.
    """
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, TpuSpec):
        return value.to_json()
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))
    if isinstance(value, (list, tuple)):
        return json.dumps(value, separators=(",", ":"))
    return value


_FIXES: Mapping[str, str] = types.MappingProxyType(
    {
        "greater_than": "give an integer above 0",
        "greater_than_equal": "give 0 or a positive integer",
        "int_type": "give an integer",
        "bool_type": "give True or False",
        "string_type": "give a text",
        "string_too_short": "give a name, or None",
        "dict_type": "give a dict with texts as keys",
    }
)


def first_problem(error: pydantic.ValidationError) -> str:
    """Returns the first of pydantic's findings as one line that names the value and the fix.

    Args:
        error: What pydantic raised.
    """
    first = error.errors()[0]
    name, value = first["loc"][0], first["input"]
    fix = _FIXES.get(first["type"], first["msg"].removeprefix("Value error, "))
    if first["type"] == "literal_error":
        fix = f"give {first['ctx']['expected']}"
    if first["type"] == "less_than_equal":
        fix = f"give at most {first['ctx']['le']:,}"
    return f"{name}={value!r} is not valid; {fix}"


def plain_type(annotation: Any) -> type:
    """Returns the class of an annotation's values, without `None`, bounds and choices.

    Args:
        annotation: The annotation of a setting.
    """
    if isinstance(annotation, type):
        return annotation
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return plain_type(next(a for a in typing.get_args(annotation) if a is not type(None)))
    if typing.get_origin(annotation) is typing.Literal:
        return type(typing.get_args(annotation)[0])
    origin = typing.get_origin(annotation)
    return plain_type(typing.get_args(annotation)[0] if origin is Annotated else origin)


def stored_as(annotation: Any) -> type:
    """Returns `int` or `str`, as which TFX stores values of an annotation; booleans are 0 and 1."""
    return int if plain_type(annotation) in (int, bool) else str
