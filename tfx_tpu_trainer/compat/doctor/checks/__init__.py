"""Checks how names are used: arguments, functions passed to others, ops.

Each check takes a `Context`, which knows the roles of a program's functions and calls.
"""

import ast
import collections
import functools
import re
from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, TextEdit, Verdict
from tfx_tpu_trainer.compat.doctor._program import Call, Function, FunctionNode, Place, Program
from tfx_tpu_trainer.compat.doctor._rewriting import Spelling
from tfx_tpu_trainer.compat.doctor.rules import canonical

_INPUT_FN: Final = re.compile(r"(^|_)input_fn$")
_NOT_INPUT_FN: Final = re.compile(r"serving|receiver|export")
_ESTIMATOR_API: Final = re.compile(
    r"tensorflow(\.contrib|\.compat\.v[12])?\.(estimator|tpu)\b|tfx_tpu_trainer\.estimator\b|tensorflow_estimator\b"
    r"|tensorflow\.python\.(estimator|tpu)\b"
)


class Context:
    """A program and the roles of its parts.

    Attributes:
        program: The program.
        spelling: How it writes names.
    """

    def __init__(self, program: Program, spelling: Spelling) -> None:
        self.program = program
        self.spelling = spelling

    def api_calls(self, name: str) -> list[Call]:
        """Returns the calls of a class or function of tf.estimator, by its last name."""
        return self._api_calls.get(name, [])

    @functools.cached_property
    def _api_calls(self) -> dict[str, list[Call]]:
        calls = collections.defaultdict[str, list[Call]](list)
        for each in self.program.calls:
            calls[self.api_name(each)].append(each)
        return calls

    def api_name(self, call: Call) -> str:
        """Returns the last name of a called tf.estimator name; else ""."""
        name = canonical(call.name)
        return name.rpartition(".")[2] if _ESTIMATOR_API.match(name) else ""

    @functools.cached_property
    def tpu_estimators(self) -> list[Call]:
        """The calls that make a TPUEstimator."""
        return self.api_calls("TPUEstimator")

    @functools.cached_property
    def on_cores(self) -> list[Call]:
        """Those that may run on cores: all except the ones with use_tpu=False."""
        return [each for each in self.tpu_estimators if not is_false(each.argument("use_tpu", 4))]

    @functools.cached_property
    def has_tpu_models(self) -> bool:
        """Whether any of the program's models may run on cores."""
        return bool(self.on_cores) or (
            bool(self.api_calls("TPUEstimatorSpec")) and not self.tpu_estimators
        )

    @functools.cached_property
    def tpu_model_fns(self) -> list[Function]:
        """The functions that make a TPUEstimatorSpec, or are passed to a TPUEstimator."""
        found = [each.function for each in self.api_calls("TPUEstimatorSpec")]
        for call in self.on_cores:
            given = call.argument("model_fn", 0)
            if isinstance(given, ast.Name):
                found.append(self.program.function_named(given.id))
        return list(dict.fromkeys(each for each in found if each is not None))

    @functools.cached_property
    def input_fns(self) -> list[Function]:
        """The functions named or passed as input functions."""
        given = {
            each.id
            for call in self.program.calls
            for each in (self.given_input_fn(call),)
            if isinstance(each, ast.Name)
        }
        return [
            each
            for each in self.program.functions
            if (each.name in given or self._is_called_input_fn(each)) and not self._makes_one(each)
        ]

    def given_input_fn(self, call: Call) -> ast.expr | None:
        """Returns the input function that a call is given."""
        if self.api_name(call) in ("TrainSpec", "EvalSpec"):
            return call.argument("input_fn", 0)
        if call.attribute in ("train", "evaluate", "predict"):
            return call.argument("input_fn") or (
                first
                if isinstance(first := call.argument("input_fn", 0), ast.Name)
                and _INPUT_FN.search(first.id)
                else None
            )
        return None

    def calls_in(self, function: Function) -> list[Call]:
        """Returns the calls in a function, including nested functions."""
        return [
            each
            for each in self.program.calls
            if each.function is not None and each.function.is_within(function)
        ]

    def _is_called_input_fn(self, function: Function) -> bool:
        return bool(_INPUT_FN.search(function.name)) and not _NOT_INPUT_FN.search(function.name)

    def _makes_one(self, function: Function) -> bool:
        """Returns whether a function returns a function that it defines."""
        inner = {each.name for each in self.program.functions if each.outer is function}
        return any(
            isinstance(value, ast.Lambda) or (isinstance(value, ast.Name) and value.id in inner)
            for value in _returned(function.node)
        )


def finding(
    place: Place,
    verdict: Verdict,
    *,
    theme: str,
    name: str,
    says: str,
    edit: str | None = None,
    edits: tuple[TextEdit, ...] = (),
) -> Finding:
    """Makes a finding."""
    return Finding(
        line=place.line,
        column=place.column,
        theme=theme,
        name=name,
        verdict=verdict,
        says=says,
        edit=edit,
        fixable=bool(edits),
        edits=edits,
    )


to_edit = functools.partial(finding, verdict=Verdict.EDIT)
note = functools.partial(finding, verdict=Verdict.NOTE)
works = functools.partial(finding, verdict=Verdict.WORKS)


def is_false(node: ast.expr | None) -> bool:
    """Returns whether an argument is the literal False."""
    return isinstance(node, ast.Constant) and node.value is False


def is_none(node: ast.expr | None) -> bool:
    """Returns whether an argument is the literal None."""
    return isinstance(node, ast.Constant) and node.value is None


def text_of(node: ast.expr | None) -> str | None:
    """Returns a string literal's value; `None` for everything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def _returned(function: FunctionNode) -> Iterator[ast.expr]:
    """Yields the values of a function's own return statements."""
    ahead: list[ast.AST] = [*function.body]
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value
        if not isinstance(node, FunctionNode | ast.Lambda):
            ahead.extend(ast.iter_child_nodes(node))
