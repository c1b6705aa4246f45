"""A program's own way from a Keras model to an estimator, which one function of ours replaces as a whole."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, Verdict
from tfx_tpu_trainer.compat.doctor._parts import Function
from tfx_tpu_trainer.compat.doctor.checks.context import Context
from tfx_tpu_trainer.compat.doctor.rules import keras

_THEME: Final = "keras"
# Keras 2.2's, which made the ops of a training step.
_MADE_TRAIN_OPS: Final = "_make_train_function"
_ON_CORES: Final = (
    "from tfx_tpu_trainer.estimator import keras_to_estimator, then keras_to_estimator(model, model_dir=..., "
    "config=tpu.RunConfig(...), train_batch_size=..., eval_batch_size=...)"
)
_ON_THE_HOST: Final = "tf.keras.estimator.model_to_estimator(model, model_dir=..., config=...)"


@dataclasses.dataclass(frozen=True)
class ReplacedFunction:
    """A function that goes as a whole, so that nothing in it needs an edit of its own.

    Attributes:
        finding: What is said of it.
        last_line: The line where it ends.
    """

    finding: Finding
    last_line: int

    def has(self, finding: Finding) -> bool:
        """Whether a finding is about something in the function."""
        return self.finding.line <= finding.line <= self.last_line


def replaced_functions(context: Context) -> list[ReplacedFunction]:
    """Finds functions that make an estimator of a Keras model by Keras's private functions."""
    helpers = dict.fromkeys(map(_factory, _users(context)))
    makers = [each for each in context.program.functions if _makes_estimator(context, each)]
    names = {each.name for each in helpers}
    whole = [
        each
        for each in makers
        if each in helpers
        or any(call.name in names for call in context.program.calls if _is_in(call.node, each))
    ]
    on_cores = bool(context.tpu_estimators or context.api_calls("TPUEstimatorSpec"))
    instead = _ON_CORES if on_cores else _ON_THE_HOST
    if not whole:
        edit = f"replace it and the estimator that is made of it: {instead}"
        return [_replaced(context, each, edit) for each in helpers]
    replaced = [
        _replaced(context, each, f"replace the whole function: {instead}") for each in whole
    ]
    left_out = f"leave it out together with {whole[0].name} (line {whole[0].place.line})"
    replaced += [_replaced(context, each, left_out) for each in helpers if each not in whole]
    return replaced


def _replaced(context: Context, function: Function, edit: str) -> ReplacedFunction:
    assert function.node.end_lineno is not None
    finding = context.finding(
        function.place,
        Verdict.EDIT,
        theme=_THEME,
        name=f"def {function.name}",
        says=(
            "The program's own model_to_estimator, made of private functions of Keras that are gone. Ours clones the "
            "model in each mode, combines its gradients over cores, measures its metrics, and starts from its weights."
        ),
        edit=edit,
    )
    return ReplacedFunction(finding, function.node.end_lineno)


def _users(context: Context) -> Iterator[Function]:
    """Yields the innermost functions that use a private function of Keras."""
    program = context.program
    used: list[ast.AST] = [use.node for use in program.uses if use.name in keras.PRIVATE_FUNCTIONS]
    if context.api_calls("EstimatorSpec") or context.api_calls("TPUEstimatorSpec"):
        used += [
            each
            for each in ast.walk(program.tree)
            if isinstance(each, ast.Attribute) and each.attr == _MADE_TRAIN_OPS
        ]
    for node in used:
        around = [each for each in program.functions if _is_in(node, each)]
        if around:
            yield max(around, key=lambda each: each.place.start)


def _factory(function: Function) -> Function:
    """Returns the outermost function that returns this one, or itself."""
    outer = function.outer
    if outer is None:
        return function
    is_returned = any(
        isinstance(each.value, ast.Name) and each.value.id == function.name
        for each in _returns(outer)
    )
    return _factory(outer) if is_returned else function


def _makes_estimator(context: Context, function: Function) -> bool:
    """Whether a function makes an estimator and returns it."""
    made = [
        call.node
        for name in ("Estimator", "TPUEstimator")
        for call in context.api_calls(name)
        if call.function is function
    ]
    names = {
        target.id
        for each in ast.walk(function.node)
        if isinstance(each, ast.Assign) and each.value in made
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    return any(
        each.value in made or (isinstance(each.value, ast.Name) and each.value.id in names)
        for each in _returns(function)
    )


def _returns(function: Function) -> Iterator[ast.Return]:
    yield from (each for each in ast.walk(function.node) if isinstance(each, ast.Return))


def _is_in(node: ast.AST, function: Function) -> bool:
    first, last = function.node.lineno, function.node.end_lineno
    line = getattr(node, "lineno", 0)
    return last is not None and first <= line <= last
