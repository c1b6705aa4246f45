"""Rewrites names, imports and calls, and adds imports that they need."""

import ast
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import TextEdit
from tfx_tpu_trainer.compat.doctor._program import Binding, Call, Program, Use
from tfx_tpu_trainer.compat.doctor.rules import MODULES, canonical
from tfx_tpu_trainer.compat.doctor.rules.moved_names import is_only_in_v1, is_only_in_v2

TENSORFLOW: Final = "tensorflow"
V1: Final = "tensorflow.compat.v1"
_V2: Final = "tensorflow.compat.v2"
# Modules of ours that a repaired program may import, with local names to choose from.
_OURS: Final = {
    "tfx_tpu_trainer.estimator.tpu": ("tpu", "tpu_estimators", "tfx_tpu_estimators"),
    "tfx_tpu_trainer.estimator": ("estimators", "tfx_estimators", "tfx_tpu_trainer_estimators"),
    "tfx_tpu_trainer.compat.contrib": ("contrib", "tfx_contrib", "tfx_tpu_trainer_contrib"),
}


class Spelling:
    """The names in a program after its repair.

    Attributes:
        old_names: Uses of names that only TF 1 has, as `tf.placeholder` after `import tensorflow as tf`.
        is_tf1: Whether the program was written for TF 1 only, so the whole API is to be
            that of tf.compat.v1.
        is_tf2: Whether it uses names that TF 1 lacks, by way of `tf`.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        # `tf = tf.compat.v1`, in a program for both versions.
        self._becomes_v1 = {
            each.local for each in program.bindings if each.assigned and each.name == V1
        }
        plain = [use for use in program.uses if use.name.startswith(f"{TENSORFLOW}.")]
        self.old_names = [use for use in plain if is_only_in_v1(_path(use))]
        from_tf1 = self.old_names or any(
            binding.imported.startswith(f"{TENSORFLOW}.contrib") for binding in program.bindings
        )
        from_tf1 = from_tf1 or any(use.name.startswith(f"{TENSORFLOW}.contrib") for use in plain)
        self.is_tf2 = any(
            use.binding.name == TENSORFLOW and is_only_in_v2(_path(use)) for use in plain
        )
        self.is_tf1 = bool(from_tf1) and not self.is_tf2

    def switched(self) -> list[Binding]:
        """Returns TensorFlow's imports that become imports of tf.compat.v1."""
        if not self.is_tf1:
            return []
        today = {each.local for each in self._program.bindings if each.works_today}
        return [
            each
            for each in self._program.bindings
            if each.name == each.imported == TENSORFLOW
            and not each.assigned
            and not (each.guarded and each.local in today)
            and each.local not in self._becomes_v1
        ]

    def spell(self, name: str) -> tuple[str, tuple[TextEdit, ...]]:
        """Returns how the program writes a name."""
        module = next((each for each in _OURS if name.startswith(f"{each}.")), None)
        if module is not None:
            return self._ours(module, name[len(module) :])
        tensorflow = self._tensorflow()
        if tensorflow is None:
            added = self._added(f"import {V1} as tf")
            return _from_v1("tf", name), (added,)
        is_v1 = tensorflow.name == V1 or tensorflow.local in self._becomes_v1
        if is_v1 or (self.is_tf1 and tensorflow.name == TENSORFLOW):
            return _from_v1(tensorflow.local, name), ()
        return _from_v2(tensorflow.local, name), ()

    def _tensorflow(self) -> Binding | None:
        found = [
            binding
            for binding in self._program.bindings
            if binding.name in (TENSORFLOW, V1, _V2) and not binding.assigned
        ]
        return min(found, key=lambda each: (each.in_function, each.place.start), default=None)

    def _ours(self, module: str, rest: str) -> tuple[str, tuple[TextEdit, ...]]:
        for binding in self._program.bindings:
            # Imports of the old module become imports of ours.
            becomes = MODULES.get(canonical(binding.name), binding.name)
            stays = binding.guarded and binding.name != module
            if becomes == module and not (binding.in_function or binding.assigned or stays):
                return binding.local + rest, ()
        parent, _, last = module.rpartition(".")
        taken = self._program.bound_names
        local = next((each for each in _OURS[module] if each not in taken), _OURS[module][-1])
        alias = "" if local == last else f" as {local}"
        return local + rest, (self._added(f"from {parent} import {last}{alias}"),)

    def _added(self, statement: str) -> TextEdit:
        """Adds an import below TensorFlow's, or above the first one."""
        tops = [each for each in self._program.bindings if not (each.in_function or each.assigned)]
        tensorflow = self._tensorflow()
        if tensorflow is not None and not tensorflow.in_function:
            at = self._line_end(tensorflow.statement_place.end)
            indent = self._indent(tensorflow.statement_place.start)
            return TextEdit(at, at, f"{indent}{statement}\n")
        tops = [each for each in tops if not each.imported.startswith("__future__.")]
        first = min((each.statement_place.start for each in tops), default=0)
        at = first - len(self._indent(first))
        return TextEdit(at, at, f"{statement}\n")

    def _line_end(self, at: int) -> int:
        newline = self._program.source.find(b"\n", at)
        return newline + 1 if newline >= 0 else len(self._program.source)

    def _indent(self, at: int) -> str:
        start = self._program.source.rfind(b"\n", 0, at) + 1
        return self._program.source[start:at].decode()


def _path(use: Use) -> str:
    return use.name[len(TENSORFLOW) + 1 :]


def _from_v1(local: str, name: str) -> str:
    for module in (V1, TENSORFLOW):
        # tf.compat.v2 is reached from tf.compat.v1, too.
        if name.startswith(f"{module}."):
            return f"{local}.{name[len(module) + 1 :]}"
    return name


def _from_v2(local: str, name: str) -> str:
    for module in (_V2, TENSORFLOW):
        if name.startswith(f"{module}."):
            return f"{local}.{name[len(module) + 1 :]}"
    return name


@dataclasses.dataclass(frozen=True)
class MovedTo:
    """An imported name's new place; `REMOVED` if it has none.

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
    """Makes one statement's edits."""
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
            # The list of names keeps its brackets and comments.
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
        # Another statement precedes it on the line.
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


Rewritten = tuple[str, tuple[TextEdit, ...]]
_SUMMARY: Final = "tensorflow.contrib.summary"


def rewrite_call(
    program: Program, call: Call, key: str, becomes: str, spelling: Spelling
) -> Rewritten | None:
    """Rewrites a call if a rewriter knows its arguments."""
    rewriter = REWRITTEN.get(key)
    if rewriter is None or call.has_spread:
        return None
    name, added = spelling.spell(becomes) if becomes.count(".") else (becomes, ())
    rewritten = rewriter(program, call, name, spelling)
    if rewritten is None:
        return None
    text, edits = rewritten
    return text, (*edits, *added)


def _recording(value: str) -> Callable[[Program, Call, str, Spelling], Rewritten | None]:
    def rewrite(program: Program, call: Call, name: str, spelling: Spelling) -> Rewritten | None:
        del program, spelling
        if call.arguments:
            return None
        text = f"{name}({value})"
        return text, (call.place.replaced_by(text),)

    return rewrite


def _summary(program: Program, call: Call, name: str, spelling: Spelling) -> Rewritten | None:
    """Rewrites summary(name, tensor, step=step); contrib's step defaulted to the global step."""
    if set(call.arguments) - {"0", "1", "name", "tensor", "step"}:
        return None
    label, tensor = call.argument("name", 0), call.argument("tensor", 1)
    if label is None or tensor is None:
        return None
    step, added = spelling.spell(f"{V1}.train.get_or_create_global_step")
    step += "()"
    if "step" in call.arguments:
        step, added = program.written(call.arguments["step"]), ()
    text = f"{name}({program.written(label)}, {program.written(tensor)}, step={step})"
    return text, (call.place.replaced_by(text), *added)


def _full_batches(program: Program, call: Call, name: str, spelling: Spelling) -> Rewritten | None:
    """Rewrites dataset.apply(batch_and_drop_remainder(n))."""
    del spelling
    size = call.argument("batch_size", 0)
    outer = next((each for each in program.around(call.node) if isinstance(each, ast.Call)), None)
    if size is None or outer is None or outer.args != [call.node] or outer.keywords:
        return None
    if not isinstance(outer.func, ast.Attribute) or outer.func.attr != "apply":
        return None
    start, end = program.place_of_last_part(outer.func).start, program.place(outer).end
    text = f"{name}({program.written(size)}, drop_remainder=True)"
    return f".{text}", (TextEdit(start, end, text),)


REWRITTEN: Final[dict[str, Callable[[Program, Call, str, Spelling], Rewritten | None]]] = {
    f"{_SUMMARY}.always_record_summaries": _recording("True"),
    f"{_SUMMARY}.never_record_summaries": _recording("False"),
    f"{_SUMMARY}.scalar": _summary,
    f"{_SUMMARY}.histogram": _summary,
    f"{_SUMMARY}.image": _summary,
    f"{_SUMMARY}.audio": _summary,
    "tensorflow.contrib.data.batch_and_drop_remainder": _full_batches,
}
