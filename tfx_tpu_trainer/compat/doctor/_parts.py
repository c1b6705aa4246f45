"""The parts of a program that rules and checks look at."""

from __future__ import annotations

import ast
import dataclasses

from tfx_tpu_trainer.compat.doctor._text_edits import TextEdit

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a node stands.

    Attributes:
        line: Line, from 1.
        column: Column, from 1.
        start: Its first UTF-8 byte, from 0.
        end: The byte after its last.
    """

    line: int
    column: int
    start: int
    end: int

    def replaced_by(self, text: str) -> TextEdit:
        """Returns the edit that puts another text there."""
        return TextEdit(self.start, self.end, text)


@dataclasses.dataclass(frozen=True)
class Use:
    """A name, with all its dots, where it is used.

    Attributes:
        name: In full, as `tensorflow.contrib.tpu.TPUEstimator` for `tf.contrib.tpu.TPUEstimator`.
        binding: The import or assignment that its first part comes from.
        places: Where each prefix of what is written ends: the whole is the last one.
        node: The outermost node.
    """

    name: str
    binding: Binding
    places: tuple[Place, ...]
    node: ast.expr

    @property
    def place(self) -> Place:
        """The place of all that is written."""
        return self.places[-1]

    def prefix(self, name: str) -> Place:
        """The place of that part of what is written that means `name`, a prefix of `self.name`."""
        surplus = self.name.count(".") - name.count(".")
        return self.places[len(self.places) - 1 - surplus]

    def writes(self, name: str) -> bool:
        """Whether `name`, a prefix, ends in what is written here rather than in the binding."""
        return self.name.count(".") - name.count(".") < len(self.places)


@dataclasses.dataclass(eq=False)
class Binding:
    """A name that an import, or an assignment of an imported name, brings into the program.

    Attributes:
        name: What it stands for, in full.
        local: What the program calls it.
        imported: What the import imports: more than `name` in `import a.b`, which binds `a`.
        place: Where the import names it, or the assignment.
        statement: The import or assignment.
        statement_place: Its place.
        guarded: Whether an `except ImportError` stands by.
        assigned: Whether it is an assignment.
        in_function: Whether it is made inside a function.
        uses: The uses of it.
    """

    name: str
    local: str
    imported: str
    place: Place
    statement: ast.Import | ast.ImportFrom | ast.Assign
    statement_place: Place
    guarded: bool = False
    assigned: bool = False
    in_function: bool = False
    uses: list[Use] = dataclasses.field(default_factory=list)

    @property
    def works_today(self) -> bool:
        """Whether it is one of those that programs for several versions try last, or first."""
        return self.name.startswith(("tensorflow.compat.", "tensorflow_estimator", "tfx_tpu_"))


@dataclasses.dataclass(eq=False)
class Function:
    """A function of the program.

    Attributes:
        name: Its name.
        parameters: The names of its parameters, in order; `**` and its name at the end.
        place: Where its name stands.
        outer: The function around it.
        node: Its definition.
    """

    name: str
    parameters: tuple[str, ...]
    place: Place
    outer: Function | None
    node: FunctionNode

    @property
    def takes_anything(self) -> bool:
        """Whether it takes keywords that it does not name."""
        return any(name.startswith("**") for name in self.parameters)

    def is_within(self, other: Function) -> bool:
        """Whether it is `other`, or is defined inside of it."""
        function: Function | None = self
        while function is not None and function is not other:
            function = function.outer
        return function is other


@dataclasses.dataclass(eq=False)
class Call:
    """A call.

    Attributes:
        name: The function in full where it is imported, else what is written, such as
            `dataset.batch`; the last attribute alone where it hangs on another call.
        attribute: The last part of it.
        arguments: By keyword, and by position from `"0"`.
        place: The call's.
        name_place: The function's, in it.
        function: The function that the call stands in.
        node: The call.
    """

    name: str
    attribute: str
    arguments: dict[str, ast.expr]
    place: Place
    name_place: Place
    function: Function | None
    node: ast.Call

    def argument(self, keyword: str, position: int | None = None) -> ast.expr | None:
        """An argument, by keyword or position; `None` where it is not given."""
        if keyword in self.arguments:
            return self.arguments[keyword]
        return self.arguments.get(str(position)) if position is not None else None

    @property
    def has_spread(self) -> bool:
        """Whether arguments come by `*` or `**`, so that one can't say which are given."""
        return any(isinstance(each, ast.Starred) for each in self.node.args) or any(
            each.arg is None for each in self.node.keywords
        )
