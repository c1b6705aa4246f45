"""Checks input functions of programs for cores: params, its batch size, full batches."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, TextEdit, Verdict
from tfx_tpu_trainer.compat.doctor._program import Call, Function
from tfx_tpu_trainer.compat.doctor.checks import Context, text_of

_THEME: Final = "input"
_BATCHING: Final = {"batch", "padded_batch", "map_and_batch"}
_ENDS_ANYWHERE: Final = re.compile(r"eval|predict|test|valid|dev|infer")


def check_input_fns(context: Context) -> Iterator[Finding]:
    """Checks input functions that a TPUEstimator may call."""
    if not context.tpu_estimators:
        return
    for function in context.input_fns:
        if "params" not in function.parameters and not function.takes_anything:
            yield _no_params(context, function)
        elif "params" in function.parameters and not _reads_batch_size(function):
            yield context.finding(
                function.place,
                Verdict.EDIT,
                theme=_THEME,
                name=function.name,
                says=(
                    'The input function of a TPUEstimator does not read params["batch_size"]: '
                    "on N cores it must return batches of a host's or a core's size, not of the "
                    "constructor's."
                ),
                edit='batch_size = params["batch_size"]',
            )
        if context.on_cores:
            yield from _short_batches(context, function)
    for call in context.program.calls:
        given = context.given_input_fn(call)
        if isinstance(given, ast.Lambda) and not _takes_params(given):
            yield context.finding(
                context.program.place(given),
                Verdict.EDIT,
                theme=_THEME,
                name="input_fn",
                says="A TPUEstimator calls input_fn with params, which this lambda does not take.",
                edit='lambda params: ..., with params["batch_size"] as the number of rows',
            )


def _no_params(context: Context, function: Function) -> Finding:
    return context.finding(
        function.place,
        Verdict.EDIT,
        theme=_THEME,
        name=function.name,
        says=(
            "A TPUEstimator calls input_fn with params, which this one does not take: a "
            'ValueError. params["batch_size"] is the number of rows that a batch must have.'
        ),
        edit=f'def {function.name}(params): batch_size = params["batch_size"]',
    )


def _reads_batch_size(function: Function) -> bool:
    """Returns whether a function reads the batch size from params, or passes params on."""
    ahead: list[ast.AST] = [*function.node.body]
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.Subscript) and _is_params(node.value):
            if text_of(node.slice) == "batch_size":
                return True
        elif isinstance(node, ast.Attribute) and _is_params(node.value):
            # params.get("batch_size"), or params.batch_size of a namespace.
            if node.attr in ("get", "batch_size"):
                return True
        elif _is_params(node):
            return True
        else:
            ahead.extend(ast.iter_child_nodes(node))
    return False


def _is_params(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "params"


def _takes_params(node: ast.Lambda) -> bool:
    names = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
    return "params" in names or node.args.kwarg is not None


def _short_batches(context: Context, function: Function) -> Iterator[Finding]:
    anywhere = bool(_ENDS_ANYWHERE.search(function.name))
    for call in context.calls_in(function):
        if call.attribute not in _BATCHING or call.argument("drop_remainder") is not None:
            continue
        if call.has_spread or not call.arguments or not isinstance(call.node.func, ast.Attribute):
            continue
        if "batch" not in call.attribute or _positional_drop(call):
            continue
        name = f".{call.attribute}()"
        if anywhere:
            yield context.finding(
                call.place,
                Verdict.WORKS,
                theme=_THEME,
                name=name,
                says=(
                    "Evaluation and prediction on cores accept a short last batch: it counts, and "
                    "nothing is padded. The original refused it without drop_remainder=True."
                ),
            )
        else:
            yield context.finding(
                call.place,
                Verdict.EDIT,
                theme=_THEME,
                name=name,
                says="Training on cores needs batches of a fixed size, known before the first one "
                "is read.",
                edit=f".{call.attribute}(..., drop_remainder=True)",
                edits=(_appended(context, call, "drop_remainder=True"),),
            )


def _positional_drop(call: Call) -> bool:
    return (call.attribute == "batch" and "1" in call.arguments) or (
        call.attribute == "padded_batch" and "3" in call.arguments
    )


def _appended(context: Context, call: Call, argument: str) -> TextEdit:
    """Appends an argument to a call, after any white space and commas."""
    given = (*call.node.args, *(each.value for each in call.node.keywords))
    last = max(context.program.place(each).end for each in given)
    return TextEdit(last, last, f", {argument}")
