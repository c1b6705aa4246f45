"""Checks what newer versions changed: names that Python 3 and NumPy removed, TensorFlow 1's sessions and Dimensions.

Replacements work in all versions. A test compares NumPy's tables with the installed NumPy.
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, TextEdit
from tfx_tpu_trainer.compat.doctor._program import Call, Use
from tfx_tpu_trainer.compat.doctor.checks import Context, to_edit, works

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
            yield _found(use, name, _EARLIER, new)
        elif name in RENAMED:
            yield _found(use, name, _EARLIER, f"{_module(context, use)}.{RENAMED[name]}")
        elif name in RENAMED_BY_2:
            yield _found(use, name, _BY_2, f"{_module(context, use)}.{RENAMED_BY_2[name]}")
        elif name in GONE_BY_2:
            yield _found(use, name, _BY_2, GONE_BY_2[name], by_hand=True)
        elif name == _ITEM:
            yield _scalar(context, use, calls.get(use.node))


def _module(context: Context, use: Use) -> str:
    """Returns how the program writes NumPy; "np" after `from numpy import bool`."""
    if not use.writes("numpy"):
        return "np"
    place = use.prefix("numpy")
    return context.program.source[place.start : place.end].decode()


def _found(use: Use, name: str, says: str, new: str, *, by_hand: bool = False) -> Finding:
    # An import of the name itself would stay, and fail.
    by_hand = by_hand or not use.writes("numpy")
    place = use.prefix(f"{_NUMPY}{name}") if use.writes(f"{_NUMPY}{name}") else use.place
    return to_edit(
        place,
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
    return to_edit(
        use.place,
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
        # The import binds the name, so its line is edited.
        edit: str = f"from collections.abc import {name}"
        edits: tuple[TextEdit, ...] = ()
        if use.writes(module):
            edit, place = f"collections.abc.{name}", use.prefix(module)
            written = context.program.source[place.start : place.end].decode()
            edits = (place.replaced_by(f"{written}.abc"),)
        yield to_edit(
            use.place,
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
        yield to_edit(
            place,
            theme=_THEME,
            name=call.attribute,
            says=f"Python 3 has no {call.attribute}.",
            edit=new,
            edits=(place.replaced_by(new),),
        )


_SESSIONS_THEME: Final = "sessions"

_SESSIONS: Final = re.compile(
    r"tensorflow(\.compat\.v1|\.python\.framework\.ops)?\.(Session|InteractiveSession|train\.(MonitoredTrainingSession|Supervisor))$"
)
_GRAPH_MODE: Final = re.compile(r"\.(disable_eager_execution|disable_v2_behavior|Graph)$")
_EAGER: Final = re.compile(r"tensorflow(\.compat\.v1|\.contrib\.eager)?\.enable_eager_execution$")


def check_sessions(context: Context) -> Iterator[Finding]:
    """Finds sessions that the program opens itself."""
    in_graph_mode = any(_GRAPH_MODE.search(each.name) for each in context.program.calls)
    for call in context.program.calls:
        if _SESSIONS.match(call.name) and not in_graph_mode:
            yield _session(context, call)
        elif _EAGER.match(call.name):
            yield works(
                call.place,
                theme=_SESSIONS_THEME,
                name="tf.enable_eager_execution",
                says="Eager execution is on in TensorFlow 2; estimators still build graphs.",
            )


def _session(context: Context, call: Call) -> Finding:
    switch, added = context.spelling.spell("tensorflow.compat.v1.disable_v2_behavior")
    return to_edit(
        call.place,
        theme=_SESSIONS_THEME,
        name=f"tf.{call.attribute}",
        says=(
            "The program's own session runs a graph, and TensorFlow 2 builds none by default. "
            "Estimators do not need this switch, nor does it disturb them."
        ),
        edit=f"{switch}(), right after the imports",
        edits=(*added, _switch(context, switch)),
    )


def _switch(context: Context, switch: str) -> TextEdit:
    """Inserts the switch below the module's imports."""
    program = context.program
    imports = [
        each
        for each in program.bindings
        if not each.in_function and not each.assigned and each.statement_place.column == 1
    ]
    last = max((each.statement_place.end for each in imports), default=0)
    newline = program.source.find(b"\n", last)
    at = newline + 1 if newline >= 0 else len(program.source)
    return TextEdit(at, at, f"\n{switch}()\n")


_SHAPES: Final = ("shape", "get_shape", "output_shapes", "with_rank", "with_rank_at_least")
_OFF: Final = re.compile(r"\b(disable_v2_behavior|disable_v2_tensorshape)\s*\(")
_SIZE: Final = "tensorflow.compat.dimension_value"


def check_dimensions(context: Context) -> Iterator[Finding]:
    """Finds `.value` on parts of a shape."""
    if _OFF.search(context.program.text):
        return
    for node in context.program.values:
        size = node.value
        if not isinstance(size, ast.Subscript) or isinstance(size.slice, ast.Slice):
            continue
        if not _is_shape(context, size.value):
            continue
        function, added = context.spelling.spell(_SIZE)
        place = context.program.place(node)
        new = f"{function}({context.program.written(size)})"
        yield to_edit(
            place,
            theme="shapes",
            name=".shape[i].value",
            says=(
                "A TensorFlow 2 shape contains integers, not Dimensions: an AttributeError, "
                "unless tf.compat.v1.disable_v2_behavior() is called first."
            ),
            edit=new,
            edits=(place.replaced_by(new), *added),
        )


def _is_shape(context: Context, node: ast.expr) -> bool:
    """Returns whether an expression is visibly a tensor's shape."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in _SHAPES
    if isinstance(node, ast.Attribute):
        # `shape.dims[i]` is a Dimension in both.
        return node.attr in _SHAPES
    if not isinstance(node, ast.Name):
        return False
    scope = context.program.scopes.get(node)
    assigned = scope.assignments(node.id) if scope is not None else []
    values = [each.value for each in assigned if isinstance(each, ast.Assign)]
    if values:
        return any(not isinstance(each, ast.Name) and _is_shape(context, each) for each in values)
    return node.id.endswith("shape")
