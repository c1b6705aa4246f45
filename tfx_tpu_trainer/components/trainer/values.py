"""Reads users' values, quotes and rejects them in messages, and stores them for TFX."""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, Any, ParamSpec

import pydantic

from tfx_tpu_trainer.hardware import TpuSpec

# Python's own JSON reader and writer raise RecursionError some hundreds of levels deeper.
_DEEPEST = 100
# The range of a float, which other JSON readers use for numbers.
_MOST_BITS = 1023
_LONGEST = 200


def shown(value: Any) -> str:
    """Quotes a value for a message: one line, limited in length."""
    try:
        text = " ".join(repr(value).split())
    except (RecursionError, ValueError):
        return f"<{type(value).__name__}, too large to show>"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def json_problem(value: Any, *, depth: int = 0) -> str | None:
    """Returns why a value is not JSON, or `None` if it is."""
    if depth > _DEEPEST:
        return f"is nested more than {_DEEPEST} deep"
    if value is None or isinstance(value, (bool, str)):
        return None
    if isinstance(value, int):
        return None if value.bit_length() <= _MOST_BITS else "is not a JSON value"
    if isinstance(value, float):
        return None if math.isfinite(value) else "is not a JSON value"
    if not isinstance(value, (dict, list, tuple)):
        return "is not a JSON value"
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return f"has the key {shown(key)}, but JSON allows only strings as keys"
    parts = value.values() if isinstance(value, dict) else value
    problems = (json_problem(part, depth=depth + 1) for part in parts)
    return next(filter(None, problems), None)


def read_json(text: str, wanted: str) -> Any:
    """Reads JSON; an error names what is wanted, such as "object"."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"give a JSON {wanted}; it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"give a JSON {wanted}; {error}") from None


def suggest(name: str, names: Iterable[str]) -> str:
    """Suggests the nearest valid name, and lists all."""
    names = sorted(names)
    near = difflib.get_close_matches(name, names, n=1)
    valid = ", ".join(map(repr, names)) or "none"
    return f"did you mean {near[0]!r}? (valid: {valid})" if near else f"valid: {valid}"


def check_names(values: Any, known: Collection[str], where: str) -> None:
    """Checks that values are a dict of settings; `where` begins the message."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{where}{shown(values)} is not valid; give a dict of settings by name")
    for name in values:
        if name not in known:
            raise ValueError(f"{where}unknown setting {name!r}; {suggest(name, known)}")


P = ParamSpec("P")


def naming_the_nearest(constructor: Callable[P, None]) -> Callable[P, None]:
    """Adds the nearest argument's name to a constructor's error, which Python 3.10 does not."""
    names = inspect.signature(constructor).parameters.keys() - {"self"}

    @functools.wraps(constructor)
    def checked(*args: P.args, **given: P.kwargs) -> None:
        for name in given:
            if name not in names:
                raise TypeError(
                    f"{type(args[0]).__name__} got an unexpected keyword argument {name!r}; "
                    f"{suggest(name, names)}"
                )
        constructor(*args, **given)

    return checked


def _from_flag(value: Any) -> Any:
    # Execution properties and RuntimeParameters have no booleans: TFX stores 0 and 1.
    return bool(value) if isinstance(value, int) and value in (0, 1) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return read_json(value, "object") if isinstance(value, str) else value


def _sizes_from_json(value: Any) -> Any:
    value = read_json(value, "list of integers") if isinstance(value, str) else value
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError("give a list of integers above 0, such as [1, 8]")
    return tuple(value)


def _steps_from_json(value: Any) -> Any:
    value = read_json(value, "list of two integers") if isinstance(value, str) else value
    is_range = isinstance(value, (list, tuple)) and len(value) == 2
    if (
        not is_range
        or not all(type(step) is int for step in value)
        or not 1 <= value[0] <= value[1]
    ):
        raise ValueError("give the first and the last step, counted from 1, such as [100, 105]")
    return tuple(value)


def _specs_from_json(value: Any) -> Any:
    # Imported late: it imports TFMA, which reading configs does not need.
    from tfx_tpu_trainer.components.evaluation._data_slices import (
        parse_slicing_specs,
        slicing_specs_to_json,
    )

    return tuple(slicing_specs_to_json(parse_slicing_specs(value)))


Flag = Annotated[bool, pydantic.BeforeValidator(_from_flag)]
Name = Annotated[str, pydantic.Field(min_length=1)]
# The limit of ML Metadata and TensorFlow's ops.
_LARGEST = 2**31 - 1
# The largest warm-up batch; a request with many more rows exceeds gRPC's limit.
_LARGEST_REQUEST = 65_536

_MASTERS = ("local", "emulated")


def _is_master(value: str) -> str:
    if value not in _MASTERS and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/]+/?", value):
        raise ValueError(
            "give the address of a master, such as 'grpc://10.0.0.1:8470', or 'local' or 'emulated'"
        )
    return value


def _is_path(value: str) -> str:
    if not value.isprintable():
        raise ValueError("give a folder whose name has no control characters")
    return value


def _is_served_name(value: str) -> str:
    if not re.fullmatch(r"[\w.-]+", value):
        raise ValueError(
            "give a name of letters, digits, '_', '-' and '.': it becomes part of a URL"
        )
    return value


Positive = Annotated[int, pydantic.Field(gt=0, le=_LARGEST)]
NotNegative = Annotated[int, pydantic.Field(ge=0, le=_LARGEST)]
Seed = Annotated[int, pydantic.Field(ge=-(2**63), lt=2**63)]
Master = Annotated[Name, pydantic.AfterValidator(_is_master)]
Folder = Annotated[Name, pydantic.AfterValidator(_is_path)]
ServedName = Annotated[Name, pydantic.AfterValidator(_is_served_name)]
Rows = Annotated[int, pydantic.Field(gt=0, le=_LARGEST_REQUEST)]
Params = Annotated[dict[str, Any], pydantic.BeforeValidator(_from_json)]
Specs = Annotated[tuple[dict[str, Any], ...], pydantic.BeforeValidator(_specs_from_json)]
Tpu = Annotated[TpuSpec, pydantic.BeforeValidator(TpuSpec.read)]
Steps = Annotated[tuple[Positive, Positive], pydantic.BeforeValidator(_steps_from_json)]
Sizes = Annotated[tuple[Rows, ...], pydantic.BeforeValidator(_sizes_from_json)]


def execution_value(value: Any) -> int | str | None:
    """Returns a setting's value in the form that TFX stores."""
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
        "int_type": "give an integer",
        "bool_type": "give True or False",
        "string_type": "give a string",
        "string_too_short": "give a name, or None",
        "dict_type": "give a dict with strings as keys",
    }
)


def first_problem(error: pydantic.ValidationError) -> str:
    """Returns pydantic's first finding as one line that names the value and the fix."""
    first = error.errors()[0]
    name, value = first["loc"][0], first["input"]
    fix = _FIXES.get(first["type"], first["msg"].removeprefix("Value error, "))
    if first["type"] == "literal_error":
        fix = f"give {first['ctx']['expected']}"
    if first["type"] == "less_than_equal":
        fix = f"give at most {first['ctx']['le']:,}"
    if first["type"] in ("greater_than_equal", "less_than"):
        fix = (
            "give 0 or a positive integer"
            if first["ctx"].get("ge") == 0
            else "give an integer of at most 64 bits"
        )
    if first["loc"][-1] == "[key]":
        return f"{name} has the key {shown(value)}; give strings as keys"
    return f"{name}={shown(value)} is not valid; {fix}"


def plain_type(annotation: Any) -> type:
    """Returns an annotation's class, without `None`, bounds and choices.

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
    """Returns `int` or `str`, the type in which TFX stores values of an annotation; booleans are 0 and 1."""
    return int if plain_type(annotation) in (int, bool) else str
