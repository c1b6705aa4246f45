"""How a program's tree is read: first its imports, then all that uses them."""

from __future__ import annotations

import libcst as cst

from tfx_tpu_trainer.doctor.parts import Binding, Call, Function, Place, Use
from tfx_tpu_trainer.doctor.program import Program


def read_program(text: str) -> Program:
    """Parses a program and finds what it imports, uses, calls and defines.

    Args:
        text: A Python program.

    Returns:
        The program, whole.

    Raises:
        NotPythonError: If it is none; the message names the line.
    """
    program = Program(text)
    program.module.visit(ImportVisitor(program))
    program.index_bindings()
    program.module.visit(UseVisitor(program))
    return program


class ImportVisitor(cst.CSTVisitor):
    """Finds the imports."""

    def __init__(self, program: Program) -> None:
        """Keeps the program, whose `bindings` it adds to.

        Args:
            program: The program.
        """
        super().__init__()
        self._program = program
        self._functions = 0
        self._guards = 0

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Looks at a node before what is in it."""
        self._functions += isinstance(node, cst.FunctionDef)
        self._guards += isinstance(node, cst.Try) and _catches_import_errors(node)
        if isinstance(node, cst.Import):
            self._import(node)
        elif isinstance(node, cst.ImportFrom):
            self._import_from(node)
        return not isinstance(node, cst.BaseExpression)

    def on_leave(self, original_node: cst.CSTNode) -> None:
        """Looks at a node after what is in it."""
        self._functions -= isinstance(original_node, cst.FunctionDef)
        self._guards -= isinstance(original_node, cst.Try) and _catches_import_errors(original_node)

    def _import(self, node: cst.Import) -> None:
        for alias in node.names:
            imported = name = _dotted(alias.name)
            if alias.asname is None:
                # `import a.b` binds a.
                name = imported.partition(".")[0]
            self._bind(node, alias, name, imported, _local(alias) or name)

    def _import_from(self, node: cst.ImportFrom) -> None:
        if node.relative or node.module is None or isinstance(node.names, cst.ImportStar):
            return
        module = _dotted(node.module)
        for alias in node.names:
            last = _dotted(alias.name)
            name = f"{module}.{last}"
            self._bind(node, alias, name, name, _local(alias) or last)

    def _bind(
        self,
        node: cst.Import | cst.ImportFrom,
        alias: cst.ImportAlias,
        name: str,
        imported: str,
        local: str,
    ) -> None:
        self._program.bindings.append(
            Binding(
                name=name,
                local=local,
                imported=imported,
                place=self._program.place(alias),
                statement=node,
                statement_place=self._program.place(node),
                guarded=self._guards > 0,
                in_function=self._functions > 0,
            )
        )


class UseVisitor(cst.CSTVisitor):
    """Finds functions, calls and uses of imported names."""

    def __init__(self, program: Program) -> None:
        """Keeps the program, whose `functions`, `calls` and `uses` it adds to.

        Args:
            program: The program.
        """
        super().__init__()
        self._program = program
        self._functions: list[Function] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Looks at a node before what is in it."""
        if isinstance(node, cst.Import | cst.ImportFrom):
            return False
        if isinstance(node, cst.FunctionDef):
            self._define(node)
        elif isinstance(node, cst.Call):
            self._call(node)
        elif isinstance(node, cst.Attribute):
            if not self._use(node):
                # It hangs on a call or an index, with names inside of that.
                node.value.visit(self)
            return False
        elif isinstance(node, cst.Name) and not self._is_defined_here(node):
            self._use(node)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        """Looks at a node after what is in it."""
        if isinstance(original_node, cst.FunctionDef):
            self._functions.pop()

    def _define(self, node: cst.FunctionDef) -> None:
        parameters = node.params
        named = (*parameters.posonly_params, *parameters.params, *parameters.kwonly_params)
        names = [each.name.value for each in named]
        if parameters.star_kwarg is not None:
            names.append(f"**{parameters.star_kwarg.name.value}")
        function = Function(
            name=node.name.value,
            parameters=tuple(names),
            place=self._program.place(node.name),
            outer=self._functions[-1] if self._functions else None,
            node=node,
        )
        self._program.functions.append(function)
        self._functions.append(function)

    def _call(self, node: cst.Call) -> None:
        name = self._program.name_of(node.func) or _written_name(node.func)
        arguments: dict[str, cst.BaseExpression] = {}
        for position, argument in enumerate(node.args):
            if not argument.star:
                key = argument.keyword.value if argument.keyword else str(position)
                arguments[key] = argument.value
        self._program.calls.append(
            Call(
                name=name,
                attribute=name.rpartition(".")[2],
                arguments=arguments,
                place=self._program.place(node),
                name_place=self._program.place(node.func),
                function=self._functions[-1] if self._functions else None,
                node=node,
            )
        )

    def _is_defined_here(self, node: cst.Name) -> bool:
        """Whether a name is a keyword, or is being defined: no use of what is imported by that name."""
        parent = next(self._program.parents(node), None)
        if isinstance(parent, cst.Arg):
            return parent.keyword is node
        if isinstance(parent, cst.Param):
            return parent.name is node
        return isinstance(parent, cst.FunctionDef | cst.ClassDef | cst.AssignTarget)

    def _use(self, node: cst.Attribute | cst.Name) -> bool:
        found = self._program.full_name(node)
        if found is None:
            return False
        name, binding = found
        places: list[Place] = []
        inner: cst.BaseExpression = node
        while True:
            places.insert(0, self._program.place(inner))
            if not isinstance(inner, cst.Attribute):
                break
            inner = inner.value
        use = Use(name, binding, tuple(places), node)
        self._program.uses.append(use)
        binding.uses.append(use)
        return True


def _catches_import_errors(node: cst.Try) -> bool:
    names = ("ImportError", "ModuleNotFoundError", "AttributeError", "Exception")
    return any(
        handler.type is None
        or any(
            isinstance(each, cst.Name) and each.value in names
            for each in (
                [element.value for element in handler.type.elements]
                if isinstance(handler.type, cst.Tuple)
                else [handler.type]
            )
        )
        for handler in node.handlers
    )


def _dotted(node: cst.CSTNode) -> str:
    if isinstance(node, cst.Attribute):
        return f"{_dotted(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""


def _local(alias: cst.ImportAlias) -> str | None:
    return _dotted(alias.asname.name) if alias.asname is not None else None


def _written_name(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        before = _written_name(node.value)
        return f"{before}.{node.attr.value}" if before else node.attr.value
    return ""
