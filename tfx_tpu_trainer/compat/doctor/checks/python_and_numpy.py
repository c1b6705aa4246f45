"""Checks names that Python 3 and NumPy removed; suggests replacements that work in all versions.

A test compares NumPy's tables with the installed NumPy.
"""

import ast
from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, TextEdit, Verdict
from tfx_tpu_trainer.compat.doctor._program import Call, Use
from tfx_tpu_trainer.compat.doctor.checks import Context

# Aliases of Python's own types, removed by NumPy 1.24.
BUILTINS: Final = {
    "bool": "bool",
    "complex": "complex",
    "float": "float",
    "int": "int",
    "long": "int",
    "object": "object",
    "str": "str",
    "unicode": "str",
}
# Replacements if the program uses the builtin's name for something else.
INSTEAD: Final = {
    "bool": "bool_",
    "complex": "complex128",
    "float": "float64",
    "int": "int_",
    "object": "object_",
    "str": "str_",
}
# Removed by NumPy 1.24 or before, and by NumPy 2.
RENAMED: Final = {"typeDict": "sctypeDict", "rank": "ndim"}
RENAMED_BY_2: Final = {
    "Inf": "inf",
    "Infinity": "inf",
    "NaN": "nan",
    "PINF": "inf",
    "alltrue": "all",
    "bool8": "bool_",
    "complex_": "complex128",
    "cumproduct": "cumprod",
    "float_": "float64",
    "infty": "inf",
    "mat": "asmatrix",
    "product": "prod",
    "round_": "round",
    "sometrue": "any",
    "string_": "bytes_",
    "unicode_": "str_",
}
GONE_BY_2: Final = {
    "NINF": "-np.inf",
    "asfarray": "np.asarray(x, dtype=float)",
    "cast": "x.astype(dtype)",
    "find_common_type": "np.promote_types, or np.result_type",
    "issubclass_": "issubclass",
    "msort": "np.sort(x, axis=0)",
    "safe_eval": "ast.literal_eval",
    "sctypes": "the types that you need, written out",
}
NUMPY_NAMES: Final = ("asscalar", *BUILTINS, *RENAMED, *RENAMED_BY_2, *GONE_BY_2)


_NUMPY: Final = "numpy."
_ITEM: Final = "asscalar"
_EARLIER: Final = "NumPy 1.24 and later have no np.{0}."
_BY_2: Final = "NumPy 2 has no np.{0}; the replacement exists in all versions."


def check_numpy_names(context: Context) -> Iterator[Finding]:
    """Finds names that NumPy removed."""
    calls = {call.node.func: call for call in context.program.calls}
    for use in context.program.uses:
        if not use.name.startswith(_NUMPY):
            continue
        name = use.name[len(_NUMPY) :].partition(".")[0]
        if name in BUILTINS:
            new = BUILTINS[name]
            if new in context.program.bound_names:
                new = f"{_module(context, use)}.{INSTEAD[new]}"
            yield _found(context, use, name, _EARLIER, new)
        elif name in RENAMED:
            yield _found(context, use, name, _EARLIER, f"{_module(context, use)}.{RENAMED[name]}")
        elif name in RENAMED_BY_2:
            yield _found(context, use, name, _BY_2, f"{_module(context, use)}.{RENAMED_BY_2[name]}")
        elif name in GONE_BY_2:
            yield _found(context, use, name, _BY_2, GONE_BY_2[name], by_hand=True)
        elif name == _ITEM:
            yield _scalar(context, use, calls.get(use.node))


def _module(context: Context, use: Use) -> str:
    """Returns how the program writes NumPy; "np" after `from numpy import bool`."""
    if not use.writes("numpy"):
        return "np"
    place = use.prefix("numpy")
    return context.program.source[place.start : place.end].decode()


def _found(
    context: Context, use: Use, name: str, says: str, new: str, *, by_hand: bool = False
) -> Finding:
    # An import of the name itself would stay, and fail.
    by_hand = by_hand or not use.writes("numpy")
    place = use.prefix(f"{_NUMPY}{name}") if use.writes(f"{_NUMPY}{name}") else use.place
    return context.finding(
        place,
        Verdict.EDIT,
        theme="numpy",
        name=f"np.{name}",
        says=says.format(name),
        edit=new,
        edits=() if by_hand else (place.replaced_by(new),),
    )


def _scalar(context: Context, use: Use, call: Call | None) -> Finding:
    """Rewrites `np.asscalar(x)` as `x.item()`."""
    edits: tuple[TextEdit, ...] = ()
    if call is not None and set(call.arguments) == {"0"} and not call.has_spread:
        value = call.arguments["0"]
        written = context.program.written(value)
        if not isinstance(value, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            written = f"({written})"
        edits = (call.place.replaced_by(f"{written}.item()"),)
    return context.finding(
        use.place,
        Verdict.EDIT,
        theme="numpy",
        name=f"np.{_ITEM}",
        says=_EARLIER.format(_ITEM),
        edit="x.item()",
        edits=edits,
    )


_THEME: Final = "python 2"
_CALLS: Final = {"xrange": "range", "unicode": "str", "raw_input": "input", "unichr": "chr"}
_METHODS: Final = {"iteritems": "items", "itervalues": "values", "iterkeys": "keys"}
# Python 3.10 has them only in collections.abc.
_ABSTRACT: Final = frozenset(
    {
        *("Callable", "Collection", "Container", "Generator", "Hashable", "ItemsView", "Iterable"),
        *("Iterator", "KeysView", "Mapping", "MappingView", "MutableMapping", "MutableSequence"),
        *("MutableSet", "Reversible", "Sequence", "Set", "Sized", "ValuesView"),
    }
)


def check_abstract_collections(context: Context) -> Iterator[Finding]:
    """Finds the abstract classes of `collections`."""
    for use in context.program.uses:
        module, _, name = use.name.rpartition(".")
        if module != "collections" or name not in _ABSTRACT:
            continue
        # The import binds the name, so that its line is edited.
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
    """Finds builtins and methods of Python 2."""
    for call in context.program.calls:
        function = call.node.func
        if isinstance(function, ast.Name) and function.id in _CALLS:
            new = _CALLS[function.id]
            if function.id in context.program.bound_names:
                continue
            place = context.program.place(function)
        elif isinstance(function, ast.Attribute) and function.attr in _METHODS:
            # six.iteritems(a) is fine; a.iteritems() takes no arguments.
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
