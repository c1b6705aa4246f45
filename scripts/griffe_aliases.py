"""Documents public names that are another object's name: `conv2d = convolution2d`, TensorFlow's hooks.

Griffe reads source and runs none, so it finds no docstring for a name that is assigned or comes from TensorFlow. Those
of `__all__` get one here: an object of TensorFlow says so with its public name, one of ours brings its own docstring.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import griffe

OURS = "tfx_tpu_trainer"


class DocumentAliases(griffe.Extension):
    """The extension, which mkdocs.yml names."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Documents every assigned name of an `__all__` in the package."""
        if pkg.name == OURS:
            for module in _modules(pkg):
                for export in module.exports or ():
                    _document(module, str(getattr(export, "name", export)))


def _modules(module: griffe.Module) -> list[griffe.Module]:
    below = [each for each in module.modules.values() if not each.is_alias]
    return [module, *(found for each in below for found in _modules(each))]


def _document(module: griffe.Module, name: str) -> None:
    member = module.members.get(name)
    if member is None or isinstance(member, griffe.Module | griffe.Class | griffe.Function):
        return
    if isinstance(member, griffe.Alias):
        try:
            member = member.final_target
        except griffe.AliasResolutionError:
            # It comes from TensorFlow.
            member = griffe.Attribute(name, parent=module)
            module.set_member(name, member)
    if isinstance(member, griffe.Attribute) and member.docstring is None:
        text = described(getattr(importlib.import_module(module.path), name))
        if text:
            member.docstring = griffe.Docstring(text, parent=member)


def described(value: Any) -> str:
    """Returns what there is to say of an object under another name; nothing for a plain value."""
    if inspect.ismodule(value) or isinstance(value, str | int | dict | list | tuple):
        return ""
    home = getattr(value, "__module__", "") or ""
    if home.startswith(OURS):
        return inspect.getdoc(value) or ""
    return f"TensorFlow's own `{tensorflow_name(value)}`."


def tensorflow_name(value: Any) -> str:
    """Returns the name under which TensorFlow exports an object, or its place in TensorFlow's source."""
    exported = getattr(value, "_tf_api_names_v1", None) or getattr(value, "_tf_api_names", None)
    if exported and "_tf_api_names_v1" in vars(value):
        name = f"tf.compat.v1.{exported[0]}"
    elif exported and "_tf_api_names" in vars(value):
        name = f"tf.{exported[0]}"
    else:
        name = f"{value.__module__}.{getattr(value, '__qualname__', value.__class__.__qualname__)}"
    return name
