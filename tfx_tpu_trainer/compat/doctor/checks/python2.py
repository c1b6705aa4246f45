"""Names that Python 3 has no more, in code that it can parse."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, Verdict
from tfx_tpu_trainer.compat.doctor._text_edits import TextEdit
from tfx_tpu_trainer.compat.doctor.checks.context import Context

_THEME: Final = "python 2"
_CALLS: Final = {"xrange": "range", "unicode": "str", "raw_input": "input", "unichr": "chr"}
_METHODS: Final = {"iteritems": "items", "itervalues": "values", "iterkeys": "keys"}
# Python 3.10 has them in collections.abc only.
_ABSTRACT: Final = frozenset(
    {
        *("Callable", "Collection", "Container", "Generator", "Hashable", "ItemsView", "Iterable"),
        *("Iterator", "KeysView", "Mapping", "MappingView", "MutableMapping", "MutableSequence"),
        *("MutableSet", "Reversible", "Sequence", "Set", "Sized", "ValuesView"),
    }
)


def check_abstract_collections(context: Context) -> Iterator[Finding]:
    """Looks for the abstract classes of `collections`."""
    for use in context.program.uses:
        module, _, name = use.name.rpartition(".")
        if module != "collections" or name not in _ABSTRACT:
            continue
        # What an import names is bound by it: that line is the one to edit.
        edit: str = f"from collections.abc import {name}"
        edits: tuple[TextEdit, ...] = ()
        if use.writes(module):
            edit, place = f"collections.abc.{name}", use.prefix(module)
            written = context.program.source[place.start : place.end].decode()
            edits = (place.replaced_by(f"{written}.abc"),)
        yield context.finding(
            use.place,
            Verdict.EDIT,
            theme=_THEME,
            name=use.name,
            says=f"Since Python 3.10, {name} is in collections.abc only.",
            edit=edit,
            edits=edits,
        )


def check_python2(context: Context) -> Iterator[Finding]:
    """Looks for builtins and methods of Python 2."""
    for call in context.program.calls:
        function = call.node.func
        if isinstance(function, ast.Name) and function.id in _CALLS:
            new = _CALLS[function.id]
            if function.id in context.program.bound_names:
                continue
            place = context.program.place(function)
        elif isinstance(function, ast.Attribute) and function.attr in _METHODS:
            # six.iteritems(a) is fine; a.iteritems() takes nothing.
            if call.arguments:
                continue
            new = _METHODS[function.attr]
            place = context.program.place_of_last_part(function)
        else:
            continue
        yield context.finding(
            place,
            Verdict.EDIT,
            theme=_THEME,
            name=call.attribute,
            says=f"Python 3 has no {call.attribute}.",
            edit=new,
            edits=(place.replaced_by(new),),
        )
