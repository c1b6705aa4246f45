"""Changes settings in a project's config, keeping comments, the order of keys and everything else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tfx_tpu_trainer._support.whole_files import file_written_whole, write_whole
from tfx_tpu_trainer.workbench.project.config import ConfigError, PipelineConfig
from tfx_tpu_trainer.workbench.project.config_file import parse_yaml
from tfx_tpu_trainer.workbench.project.project import Project


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
