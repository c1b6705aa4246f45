"""What `tf.estimator` and `tf.compat.v1.estimator` offered: names, signatures, public members.

Run by TensorFlow 2.15, the last with an estimator, this writes `public_names.json` beside it:

    uv venv --python 3.10 /tmp/original
    uv pip install --python /tmp/original/bin/python tensorflow==2.15.1
    PYTHONPATH=. /tmp/original/bin/python -m tests.estimator.public_names

`test_public_names.py` describes ours with the same functions and compares.
"""

import importlib
import inspect
import json
import pathlib
import types
from collections.abc import Callable
from typing import Any

import tensorflow as tf

RECORDING = pathlib.Path(__file__).with_name("public_names.json")

# The modules of the original's two APIs: our module -> its name in the package.
MODULES = {
    "": "v2.estimator",
    "experimental": "v2.estimator.experimental",
    "export": "v2.estimator.export",
    "v1": "v1.estimator",
    "v1.experimental": "v1.estimator.experimental",
    "v1.export": "v1.estimator.export",
    "v1.inputs": "v1.estimator.inputs",
    "tpu": "v1.estimator.tpu",
    "tpu.experimental": "v1.estimator.tpu.experimental",
    "v1.tpu": "v1.estimator.tpu",
    "v1.tpu.experimental": "v1.estimator.tpu.experimental",
}
# The type of what the second API takes back from the first.
_HIDDEN = "HiddenTfApiAttribute"
# A default that only tells that an argument was left out.
NOT_GIVEN = "<not given>"
_PREFIXES = {
    inspect.Parameter.POSITIONAL_ONLY: "/",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "",
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.KEYWORD_ONLY: "*, ",
    inspect.Parameter.VAR_KEYWORD: "**",
}
_PLAIN = (bool, int, float, str, bytes, type(None))


def describe_module(module: types.ModuleType) -> dict[str, Any]:
    """Describes a module's public names, modules below it left out."""
    values = {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
    return {
        name: describe(value)
        for name, value in values.items()
        if not isinstance(value, types.ModuleType)
    }


def describe(value: Any) -> dict[str, Any]:
    """Describes a public name: what it is, its signature and, of a class, its members.

    What `tf.compat.v1.train` has as well, such as a session hook, is the same class in our package,
    and its signature is its version's: only its name is given.
    """
    name = getattr(value, "__name__", "")
    if getattr(tf.compat.v1.train, name, None) is value:
        return {"of_tensorflow": name}
    if inspect.isclass(value):
        return {"class": arguments_of(value), "members": _members(value)}
    return {"function": arguments_of(value)}


def arguments_of(function: Callable[..., Any]) -> list[str]:
    """Lists a signature's arguments as they are written: `"x"`, `"x=1"`, `"*, x=1"`, `"**x"`."""
    if inspect.isclass(function) and _is_without_constructor(function):
        return []
    return [
        f"{_PREFIXES[argument.kind]}{argument.name}{_default(argument.default)}"
        for argument in inspect.signature(function).parameters.values()
    ]


def _is_without_constructor(value: type) -> bool:
    # The original's classes have one that warns, around object's.
    return inspect.unwrap(value.__init__) is object.__init__ and value.__new__ is object.__new__


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return ""
    if type(value) is object:
        return f"={NOT_GIVEN}"
    if isinstance(value, _PLAIN) or (
        isinstance(value, tuple | list | dict) and all(isinstance(v, _PLAIN) for v in value)
    ):
        return f"={value!r}"
    return f"=<{getattr(value, '__name__', type(value).__name__).lstrip('_')}>"


def _members(value: type) -> dict[str, Any]:
    members = {}
    for name in dir(value):
        member = inspect.getattr_static(value, name)
        if name.startswith("_") or name in dir(tuple) or type(member).__name__ == _HIDDEN:
            continue
        if isinstance(member, staticmethod | classmethod) or inspect.isfunction(member):
            members[name] = arguments_of(getattr(value, name))
        elif isinstance(member, _PLAIN):
            members[name] = repr(member)
        else:
            members[name] = "property"
    return members


def main() -> None:
    api = "tensorflow_estimator._api."
    modules = [
        f"{json.dumps(ours)}: {{\n{_lines(describe_module(importlib.import_module(api + theirs)))}\n}}"
        for ours, theirs in MODULES.items()
    ]
    RECORDING.write_text("{\n" + ",\n".join(modules) + "\n}\n", encoding="utf-8")


def _lines(names: dict[str, Any]) -> str:
    """JSON with a line for each name."""
    return ",\n".join(f" {json.dumps(name)}: {json.dumps(facts)}" for name, facts in names.items())


if __name__ == "__main__":
    main()
