"""Changes of import statements, name by name."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping, Sequence

from tfx_tpu_trainer.compat.doctor._parts import Binding
from tfx_tpu_trainer.compat.doctor._program import Program
from tfx_tpu_trainer.compat.doctor._text_edits import TextEdit


@dataclasses.dataclass(frozen=True)
class MovedTo:
    """An imported name's new home; `REMOVED` where it has none.

    Attributes:
        module: The module in full.
        name: The name there.
    """

    module: str
    name: str


REMOVED = MovedTo("", "")


def import_edits(
    program: Program, bindings: Sequence[Binding], moved: Mapping[Binding, MovedTo]
) -> tuple[TextEdit, ...]:
    """Makes the edits of one statement."""
    statement = bindings[0].statement
    if all(moved.get(binding) is REMOVED for binding in bindings):
        return (_removed(program, bindings[0]),)
    if isinstance(statement, ast.ImportFrom):
        homes = {moved[each].module if each in moved else None for each in bindings}
        same_names = all(
            each in moved and moved[each].name == each.imported.rpartition(".")[2]
            for each in bindings
        )
        place_of_module = program.place_of_module(statement)
        if len(homes) == 1 and same_names and place_of_module is not None:
            # The list of names stays as it is written, with its brackets and comments.
            return (place_of_module.replaced_by(moved[bindings[0]].module),)
    elif not isinstance(statement, ast.Import) or len(bindings) != 1:
        return ()
    lines: dict[str, list[str]] = {}
    for binding in bindings:
        home = moved.get(binding, _home(binding))
        if home is REMOVED:
            continue
        alias = "" if home.name == binding.local else f" as {binding.local}"
        lines.setdefault(home.module, []).append(f"{home.name}{alias}")
    place = bindings[0].statement_place
    start = program.source.rfind(b"\n", 0, place.start) + 1
    indent = program.source[start : place.start].decode()
    if indent.strip():
        # Another statement stands before it on the line.
        return ()
    statements = [f"from {module} import {', '.join(names)}" for module, names in lines.items()]
    return (place.replaced_by(f"\n{indent}".join(statements)),)


def _home(binding: Binding) -> MovedTo:
    module, _, name = binding.imported.rpartition(".")
    return MovedTo(module, name)


def _removed(program: Program, binding: Binding) -> TextEdit:
    place, source = binding.statement_place, program.source
    start = source.rfind(b"\n", 0, place.start) + 1
    end = source.find(b"\n", place.end)
    end = len(source) if end < 0 else end + 1
    alone = not source[start : place.start].strip() and not source[place.end : end].strip()
    if alone and start == place.start:
        return TextEdit(start, end, "")
    # A block may not be left empty.
    return place.replaced_by("pass")
