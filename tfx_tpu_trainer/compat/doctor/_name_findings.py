"""Finds names that the rules' tables list, in a program's imports and uses."""

import ast
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import (
    CONTRIB_THEME,
    NO_CONTRIB,
    Advice,
    Finding,
    TextEdit,
    Verdict,
)
from tfx_tpu_trainer.compat.doctor._program import Binding, Call, Place, Program, Use
from tfx_tpu_trainer.compat.doctor._rewriting import (
    REMOVED,
    TENSORFLOW,
    V1,
    MovedTo,
    Spelling,
    import_edits,
    rewrite_call,
)
from tfx_tpu_trainer.compat.doctor.rules import CONTRIB, MODULES, canonical, is_module, look_up
from tfx_tpu_trainer.compat.doctor.rules.moved_names import CHANGED, is_only_in_v1

# Modules whose public name can't be imported, and the name that can.
IMPORTED_AS: Final = {"tensorflow.distribute": "tensorflow.compat.v2.distribute"}
_ONLY_IN_V1: Final = Advice(
    "names", Verdict.EDIT, "TensorFlow 2 has this name in tf.compat.v1 only."
)
_LEAVE_OUT: Final = "leave it out: nothing uses it anymore"
_LAST_USE: Final = "remove it together with its last use, see below"


class NameFindings:
    """The findings on the names of one program."""

    def __init__(self, program: Program, spelling: Spelling) -> None:
        self._program = program
        self._spelling = spelling
        self._calls = {(call.name_place.start, call.name_place.end): call for call in program.calls}
        self._found: list[Finding] = []
        self._moved: dict[Binding, MovedTo] = {}
        # Findings that wait for the edits of their import statement.
        self._on_imports: list[tuple[Binding, Finding]] = []

    def all(self) -> list[Finding]:
        """Returns all findings, unordered."""
        self._switch_to_v1()
        for binding in self._program.bindings:
            if _is_of_api(binding):
                self._look_at_uses(binding)
            elif binding.assigned:
                self._look_at_assignment(binding)
            else:
                self._look_at_import(binding)
        self._edit_imports()
        return self._found

    def _switch_to_v1(self) -> None:
        """Reports names that only TF 1 has: at their import if the whole program is TF 1, else one by one."""
        old = self._spelling.old_names
        switched = self._spelling.switched()
        for binding in switched:
            self._moved[binding] = MovedTo(V1, "")
            new = f"{V1} as {binding.local}"
            self._found.append(
                _finding(
                    binding.statement_place,
                    Advice("names", Verdict.EDIT, why_switched(old), f"import {new}"),
                    self._program.written(binding.statement),
                    edits=(binding.place.replaced_by(new),),
                )
            )
        if self._spelling.is_tf1:
            return
        for use in old:
            if use.binding.assigned or not use.writes(use.name):
                continue
            if use.name.startswith(CONTRIB) or use.binding.name != TENSORFLOW:
                continue
            written = old_part(use)
            becomes = f"{V1}{written.removeprefix(TENSORFLOW)}"
            self._replaced(use, written, written, dataclasses.replace(_ONLY_IN_V1, becomes=becomes))

    def _look_at_uses(self, binding: Binding) -> None:
        """Examines uses such as `tf.contrib.tpu.TPUEstimator`, whose import itself is fine."""
        assigned = {each.end for each in self._assigned_values()}
        for use in binding.uses:
            if use.place.end not in assigned or not canonical(use.name).startswith(CONTRIB):
                self._look_at_use(use)

    def _assigned_values(self) -> Iterator[Place]:
        """Yields the places of assigned values such as `layers = tf.contrib.layers`."""
        for binding in self._program.bindings:
            if isinstance(binding.statement, ast.Assign) and binding.uses:
                yield self._program.place(binding.statement.value)

    def _look_at_use(self, use: Use) -> bool:
        """Reports a use that has a rule; returns whether it needs no further edit by hand."""
        name = canonical(use.name)
        found = look_up(name)
        if found is None:
            return not name.startswith(CONTRIB)
        key, advice = found
        written = prefix_in(use.name, name, key)
        if not use.writes(written):
            return True
        if advice.verdict is Verdict.EDIT and self._is_switched(use):
            # The import's edit may be all that the use needs.
            in_v1 = look_up(f"{V1}{use.name.removeprefix(TENSORFLOW)}")
            advice = in_v1[1] if in_v1 and in_v1[1].verdict is Verdict.WORKS else advice
            if advice.becomes == f"{V1}{key.removeprefix(TENSORFLOW)}":
                return True
        if advice.verdict is not Verdict.EDIT:
            self._works(use, advice)
            return True
        return self._replaced(use, written, key, advice)

    def _is_switched(self, use: Use) -> bool:
        return use.binding in self._moved and not use.name.startswith(CONTRIB)

    def _replaced(self, use: Use, written: str, key: str, advice: Advice) -> bool:
        """Reports a use to edit."""
        place = use.prefix(written)
        rewritten = self._rewritten(use, written, key, advice)
        text, edits = rewritten if rewritten is not None else (advice.edit, ())
        told = dataclasses.replace(advice, edit=text)
        self._found.append(_finding(place, told, shown(use.name), edits=edits))
        return bool(edits)

    def _rewritten(
        self, use: Use, written: str, key: str, advice: Advice
    ) -> tuple[str, tuple[TextEdit, ...]] | None:
        if advice.becomes is None or not _is_reached(advice.becomes):
            return None
        if advice.calls_only:
            call = self._call(use)
            if call is None or written != use.name:
                return None
            return rewrite_call(self._program, call, key, advice.becomes, self._spelling)
        text, added = self._spelling.spell(advice.becomes)
        rest = use.name[len(written) :]
        return text + rest, (use.prefix(written).replaced_by(text), *added)

    def _call(self, use: Use) -> Call | None:
        return self._calls.get((use.place.start, use.place.end))

    def _works(self, use: Use, advice: Advice) -> None:
        self._found.append(_finding(use.place, advice, shown(to_class(use.name))))

    def _look_at_import(self, binding: Binding) -> None:
        """Examines an import of a name that has a rule."""
        name = canonical(binding.name)
        if binding.name == TENSORFLOW and binding.imported.startswith(CONTRIB):
            advice = Advice(CONTRIB_THEME, Verdict.EDIT, NO_CONTRIB, "import tensorflow as tf")
            self._report_import(binding, advice)
            return
        if self._is_old_name(binding):
            becomes = f"{V1}{binding.name.removeprefix(TENSORFLOW)}"
            self._move(binding, becomes, _ONLY_IN_V1)
            self._look_at_name_of_v1(binding, becomes)
            return
        found = look_up(name)
        if found is None:
            # A package with rules for some of its names, such as TFMA.
            for use in binding.uses:
                self._look_at_use(use)
            return
        key, advice = found
        if advice.verdict is not Verdict.EDIT:
            for use in binding.uses:
                self._look_at_use_of_import(use)
        elif name in MODULES:
            self._move_module(binding, MODULES[name], advice)
        elif is_module(name) or advice.calls_only:
            self._drop_module(binding, advice)
        elif advice.becomes is not None:
            self._move(binding, advice.becomes + name[len(key) :], advice)
        else:
            self._report_import(binding, advice)

    def _look_at_name_of_v1(self, binding: Binding, name: str) -> None:
        """Reports what a name, such as a queue, still needs once its import is of tf.compat.v1."""
        found = look_up(name)
        if found is not None and found[1].verdict is Verdict.EDIT and not binding.guarded:
            self._found.append(_finding(binding.place, found[1], shown(name)))

    def _look_at_assignment(self, binding: Binding) -> None:
        """Examines uses through an assignment such as `layers = tf.contrib.layers`."""
        if self._is_of_moved_import(binding):
            self._look_at_names_of_module(binding, MODULES[canonical(binding.name)])
            return
        if not canonical(binding.name).startswith(CONTRIB):
            for use in binding.uses:
                self._look_at_use_of_import(use)
        elif binding.uses:
            found = look_up(canonical(binding.name))
            advice = found[1] if found is not None else Advice(CONTRIB_THEME, Verdict.EDIT, "")
            self._drop_module(binding, advice)

    def _is_old_name(self, binding: Binding) -> bool:
        if not binding.name.startswith(f"{TENSORFLOW}."):
            return False
        path = binding.name[len(TENSORFLOW) + 1 :]
        return is_only_in_v1(path) or (self._spelling.is_tf1 and path in CHANGED)

    def _move_module(self, binding: Binding, new: str, advice: Advice) -> None:
        """Replaces an import of tf.contrib.tpu by today's module; reports the names that it lacks one by one."""
        self._look_at_names_of_module(binding, new)
        self._move(binding, new, advice)

    def _look_at_names_of_module(self, binding: Binding, new: str) -> None:
        """Examines the names of a module to be replaced that the replacement lacks."""
        for use in binding.uses:
            name = canonical(use.name)
            if name == canonical(binding.name):
                continue
            found = look_up(name)
            becomes = found[1].becomes if found and not found[1].calls_only else None
            rest = name[len(found[0]) :] if found else ""
            if f"{becomes}{rest}" != new + name[len(canonical(binding.name)) :]:
                self._look_at_use_of_import(use)

    def _is_of_moved_import(self, binding: Binding) -> bool:
        """Returns whether `slim = contrib_slim` refers to an import that today's module replaces."""
        value = binding.statement.value if isinstance(binding.statement, ast.Assign) else None
        found = self._program.full_name(value) if isinstance(value, ast.Name) else None
        return found is not None and canonical(binding.name) in MODULES and not found[1].guarded

    def _drop_module(self, binding: Binding, advice: Advice) -> None:
        fixed = [self._look_at_use_of_import(use) for use in binding.uses]
        if all(fixed):
            self._remove(binding, advice)
        else:
            self._report_import(binding, dataclasses.replace(advice, edit=_LAST_USE))

    def _look_at_use_of_import(self, use: Use) -> bool:
        """Examines a use whose import or assignment has to go."""
        name = canonical(use.name)
        found = look_up(name)
        if found is None:
            return False
        key, advice = found
        if advice.verdict is not Verdict.EDIT:
            self._works(use, advice)
            return True
        written = prefix_in(use.name, name, key)
        return self._replaced(use, written if use.writes(written) else use.name, key, advice)

    def _move(self, binding: Binding, becomes: str, advice: Advice) -> None:
        module, _, name = becomes.rpartition(".")
        for public, imported in IMPORTED_AS.items():
            if f"{module}.".startswith(f"{public}."):
                module = imported + module[len(public) :]
        self._moved[binding] = MovedTo(module, name)
        alias = "" if name == binding.local else f" as {binding.local}"
        self._report_import(
            binding, dataclasses.replace(advice, edit=f"from {module} import {name}{alias}")
        )

    def _remove(self, binding: Binding, advice: Advice) -> None:
        self._moved[binding] = REMOVED
        self._report_import(binding, dataclasses.replace(advice, edit=_LEAVE_OUT))

    def _report_import(self, binding: Binding, advice: Advice) -> None:
        verdict, says = advice.verdict, advice.says
        if binding.guarded:
            verdict = Verdict.NOTE
            says += " The import is guarded: its `except` branch runs."
            self._moved.pop(binding, None)
        told = dataclasses.replace(advice, verdict=verdict, says=says)
        finding = _finding(binding.place, told, shown(binding.imported))
        self._on_imports.append((binding, finding))

    # An import statement may bind several names with different fates: of `from tensorflow.contrib import tpu, slim,
    # nonsense` two move to different modules and one stays. Findings on imports therefore wait until all bindings are
    # examined; then each statement gets its edits once, and all its findings carry the same edits.
    def _edit_imports(self) -> None:
        """Makes each statement's edits after all of its names are examined."""
        edits: dict[int, tuple[TextEdit, ...]] = {}
        for binding, finding in self._on_imports:
            statement = binding.statement
            if id(statement) not in edits:
                bound = [each for each in self._program.bindings if each.statement is statement]
                moves = any(each in self._moved for each in bound)
                edits[id(statement)] = (
                    import_edits(self._program, bound, self._moved) if moves else ()
                )
            made = edits[id(statement)] if binding in self._moved else ()
            self._found.append(dataclasses.replace(finding, fixable=bool(made), edits=made))


def _finding(
    place: Place, advice: Advice, name: str, *, edits: tuple[TextEdit, ...] = ()
) -> Finding:
    return Finding(
        line=place.line,
        column=place.column,
        theme=advice.theme,
        name=name,
        verdict=advice.verdict,
        says=advice.says,
        edit=advice.edit,
        fixable=bool(edits),
        edits=edits,
    )


def _is_reached(name: str) -> bool:
    """Returns whether a new name can be written after `tf` or a module of ours, without a separate import."""
    return "." not in name or (
        name.startswith(("tensorflow.", "tfx_tpu_trainer."))
        and not name.startswith("tensorflow.python.")
    )


def _is_of_api(binding: Binding) -> bool:
    """Returns whether an import's binding stays, so its uses are examined one by one."""
    if binding.assigned:
        # `tf = tf.compat.v1`, under any condition.
        return binding.name == V1
    return binding.name in (
        TENSORFLOW,
        V1,
        "tensorflow.compat.v2",
        "tensorflow.compat",
    ) and not binding.imported.startswith(CONTRIB)


_SHOWN: Final = 6


def shown(name: str) -> str:
    """Returns a name as programs write it, with `tf` for tensorflow."""
    first, _, rest = name.partition(".")
    return f"tf.{rest}" if first == TENSORFLOW and rest else name


def prefix_in(written: str, name: str, key: str) -> str:
    """Returns the part of a name, as written, that a rule's key covers."""
    surplus = name.count(".") - key.count(".")
    parts = written.split(".")
    return ".".join(parts[: len(parts) - surplus])


def why_switched(old: Sequence[Use]) -> str:
    """Explains why an import becomes tf.compat.v1, with the names that need it and their lines."""
    lines: dict[str, int] = {}
    for use in sorted(old, key=_line):
        lines.setdefault(shown(old_part(use)), _line(use))
    names = [f"{name} (line {line})" for name, line in lines.items()]
    which = "it uses tf.contrib."
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        verb = "is" if len(names) == 1 else "are"
        which = f"{', '.join(names[:_SHOWN])}{more} {verb} in tf.compat.v1 only."
    return (
        f"A program for TensorFlow 1: {which} With that import, names whose meaning TensorFlow 2 "
        "changed also keep their old one."
    )


def old_part(use: Use) -> str:
    """Returns the shortest part of a name that only TF 1 has."""
    parts = use.name.split(".")
    prefixes = (parts[1:length] for length in range(2, len(parts) + 1))
    old = next((each for each in prefixes if is_only_in_v1(".".join(each))), parts[1:])
    return ".".join([TENSORFLOW, *old])


def to_class(name: str) -> str:
    """Cuts a name after its class: `ModeKeys` for `ModeKeys.TRAIN`."""
    parts = name.split(".")
    classes = (number for number, part in enumerate(parts) if part[:1].isupper())
    return ".".join(parts[: next(classes, len(parts)) + 1])


def _line(use: Use) -> int:
    return use.place.line
