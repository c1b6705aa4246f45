"""Reads a config from a YAML file and command-line overrides, and changes settings in the file.

An error is one line for each mistake. A change keeps comments, the order of keys and everything else.
It imports neither TensorFlow nor TFX, so a wrong key or type is reported in a fraction of a second.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pydantic
import yaml

from tfx_tpu_trainer._support.whole_files import file_written_whole, write_whole
from tfx_tpu_trainer.workbench.project.config import (
    ConfigError,
    PipelineConfig,
    Settings,
    cut,
    shown,
)

if TYPE_CHECKING:
    from tfx_tpu_trainer.workbench.project.project import Project

ConfigT = TypeVar("ConfigT", bound=PipelineConfig)

# Longer lists of valid keys are omitted if there is a near match.
_MOST_LISTED = 20
# A pipeline's own settings may nest groups.
_MAX_DEPTH = 8
# `<<` merges another mapping's keys.
_MERGE = "tag:yaml.org,2002:merge"
# YAML 1.1 reads 010 as octal and 1:30 in base 60, as eight or ninety steps that no one meant.
_OTHER_BASE = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+)")
# The deepest nesting of brackets in a value.
_MOST_BRACKETS = 100


def load_config(
    config_class: type[ConfigT],
    path: str | Path,
    *,
    overrides: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
) -> ConfigT:
    """Reads a YAML config, applies the overrides and checks the result.

    Args:
        config_class: The pipeline's config class.
        path: The YAML file.
        overrides: `key=value` strings as given on the command line; dots reach into groups
            (`trainer.train_steps=200`), the value is read as YAML.
        values: Top-level values, such as the root, that win over the file but not over `overrides`.

    Returns:
        The frozen config.

    Raises:
        ConfigError: If the file cannot be read, a key is unknown or has a wrong type, or an
        override is malformed.
    """
    path = Path(path)
    tree = _read_yaml(path)
    tree.update(values or {})
    origin: dict[tuple[str, ...], str] = {(key,): "the command line" for key in values or {}}
    for override in overrides:
        keys = _apply_override(tree, override)
        origin[keys] = f"--set {cut(override)}"
    try:
        return config_class.model_validate(tree)
    except pydantic.ValidationError as error:
        items = error.errors()
        # A list whose only item is invalid is not reported as too short, too.
        refused = {item["loc"][:-1] for item in items}
        lines = [
            _explain(item, config_class, str(path), origin)
            for item in items
            if item["type"] != "too_short" or item["loc"] not in refused
        ]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from None


class _Loader(yaml.SafeLoader):
    """A YAML loader that reads numbers such as 1e-3 and rejects duplicate keys."""

    def fetch_flow_collection_start(self, token_class: Any) -> None:
        # PyYAML takes seconds to read a thousand brackets before its stack overflows.
        if self.flow_level >= _MOST_BRACKETS:
            raise RecursionError
        super().fetch_flow_collection_start(token_class)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {shown(key)} is not a name", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number = super().construct_yaml_int(node)
        if _OTHER_BASE.fullmatch(node.value):
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"{node.value} is YAML for the number {number}; write {number}, or '{node.value}' for a text",
                node.start_mark,
            )
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"can't read the config {str(path)!r}: {error.strerror or error}; give another with "
            "--config"
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"{path} is not valid YAML: it is not UTF-8 ({error}); save it as UTF-8"
        ) from None
    tree = parse_yaml(text, f"{path} is not valid YAML")
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{path} must contain a mapping of settings, such as 'name: taxi'; found "
            f"{type(tree).__name__}"
        )
    return tree


def parse_yaml(text: str, what: str) -> Any:
    """Reads YAML in a config's form; an error begins with `what`."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: 2020-99-01, and numbers with thousands of digits, for which Python's hint does not help.
        reason = " ".join(str(error).partition("; use sys.")[0].split())
    except RecursionError:
        reason = "it is nested too deeply"
    raise ConfigError(f"{what}: {cut(reason)}")


def _apply_override(tree: dict[str, Any], override: str) -> tuple[str, ...]:
    """Sets one `a.b=value` in the tree and returns its path."""
    name, separator, text = override.partition("=")
    keys = tuple(part.strip() for part in name.split("."))
    given = f"--set {shown(override)}"
    if not separator or not all(keys):
        raise ConfigError(f"{given} is not of the form key=value, such as trainer.train_steps=200")
    if len(keys) > _MAX_DEPTH:
        raise ConfigError(
            f"{given} is {len(keys)} groups deep; no setting is deeper than {_MAX_DEPTH}, as in "
            "gate.at_least.auc=0.9"
        )
    value = parse_yaml(text, f"{given}: the value is not valid YAML")
    group = tree
    for depth, key in enumerate(keys[:-1]):
        inner = group.setdefault(key, {})
        if not isinstance(inner, dict):
            where = ".".join(keys[: depth + 1])
            raise ConfigError(
                f"{given}: {where!r} is a value ({shown(inner)}), not a group of settings; set "
                "that value itself, or name a setting of a group"
            )
        group = inner
    group[keys[-1]] = value
    return keys


def _explain(
    item: Mapping[str, Any],
    config_class: type[Settings],
    path: str,
    origin: Mapping[tuple[str, ...], str],
) -> str:
    """Turns a pydantic error into one line: place, problem and fix."""
    location = tuple(str(part) for part in item["loc"])
    if location[-1:] == ("[key]",):
        # A wrong key's place is its mapping.
        location = location[:-2]
    where = next(
        (text for keys, text in origin.items() if keys[: len(location)] == location[: len(keys)]),
        path,
    )
    key = ".".join(location)
    if item["type"] == "extra_forbidden":
        group = _group_at(config_class, location[:-1])
        valid = sorted(group.model_fields) if group else []
        nearest = difflib.get_close_matches(location[-1], valid, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}? Valid" if nearest else "valid"
        place = f" in {'.'.join(location[:-1])!r}" if location[:-1] else ""
        said = f"{where}: unknown key {location[-1]!r}{place}; {hint}"
        # A long list would hide a near match.
        return (
            said.removesuffix(" Valid")
            if nearest and len(valid) > _MOST_LISTED
            else f"{said} keys: {', '.join(valid)}"
        )
    if item["type"] == "missing":
        return f"{where}: the key {key!r} is missing; add it"
    if item["type"] == "value_error":
        reason = str(item["msg"]).removeprefix("Value error, ")
        return f"{where}: {key + ': ' if key else ''}{reason}"
    reason = str(item["msg"])
    reason = reason[:1].lower() + reason[1:]
    return f"{where}: {key!r} is {shown(item['input'])} ({type(item['input']).__name__}): {reason}"


def _group_at(
    config_class: type[Settings], location: Sequence[str]
) -> type[pydantic.BaseModel] | None:
    """Returns the settings class at a path of keys, if there is one."""
    group: type[pydantic.BaseModel] = config_class
    for key in location:
        if key.isdecimal():
            # The index of an item in a list of groups.
            continue
        field = group.model_fields.get(key)
        found = _settings_in(field.annotation) if field else None
        if found is None:
            return None
        group = found
    return group


def _settings_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    """Returns the settings class in a field's annotation: itself, an arm of `Settings | None`, or a list's items."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, tuple):
        return next(filter(None, map(_settings_in, typing.get_args(annotation))), None)
    return None


def change_config(
    project: Project, settings: Mapping[str, Any], *, config_file: str | Path | None = None
) -> PipelineConfig:
    """Sets some settings of a config, such as `{"trainer.tpu": "v5e:2x4"}`, and returns the new config.

    The new text is read back and validated before it replaces the old file atomically.

    Raises:
        ConfigError: If the new settings are invalid, or the file has a form that can't be changed in place.
    """
    path = Path(config_file or project.config_file)
    # As bytes, to keep line ends.
    text = path.read_bytes().decode("utf-8")
    expected = parse_yaml(text, f"{path} is not valid YAML")
    for name, value in settings.items():
        group, _, key = name.rpartition(".")
        text = _with_setting(text, group, key, value)
        expected[group][key] = value
    try:
        if parse_yaml(text, "it") != expected:
            raise ConfigError("it means something else afterwards")
    # An alias, a merged mapping, or a one-line group with a comment: rare, and easily changed by hand.
    except ConfigError:
        lines = "; ".join(f"{name}: {_dumped(value)}" for name, value in settings.items())
        raise ConfigError(
            f"{path} is written in a form that can't be changed in place; set there {lines}"
        ) from None
    with file_written_whole(path) as temporary:
        write_whole(temporary, text)
        try:
            return project.config(config_file=temporary)
        except ConfigError as error:
            raise ConfigError(str(error).replace(temporary, str(path))) from None


def _with_setting(text: str, group: str, key: str, value: Any) -> str:
    """Replaces the value of a group's key, or appends the key to the group."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    mapping = next(node for name, node in root.value if name.value == group)
    for name, node in mapping.value:
        if name.value == key:
            # After a block of several lines, the new value goes on the key's line.
            start = name.end_mark.index if _is_block(node) else node.start_mark.index
            return text[:start] + ": " * _is_block(node) + _dumped(value) + text[_end(node) :]
    first, last = mapping.value[0][0], mapping.value[-1][1]
    if not _is_block(mapping):
        return f"{text[: _end(last)]}, {key}: {_dumped(value)}{text[_end(last) :]}"
    newline = "\r\n" if "\r\n" in text else "\n"
    if "\n" not in text[_end(last) :]:
        text += newline
    end = text.index("\n", _end(last)) + 1
    return (
        f"{text[:end]}{' ' * first.start_mark.column}{key}: {_dumped(value)}{newline}{text[end:]}"
    )


def _is_block(node: yaml.Node) -> bool:
    return isinstance(node, yaml.CollectionNode) and not node.flow_style


def _end(node: yaml.Node) -> int:
    """Returns where a value ends; PyYAML includes what follows a block, up to the next key."""
    while _is_block(node):
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return node.end_mark.index


def _dumped(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000)
    return text.removesuffix("\n").removesuffix("\n...")
