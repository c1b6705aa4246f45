"""Optimizers of model functions for cores: wrapped, or told, unless another module has done so."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, Verdict
from tfx_tpu_trainer.compat.doctor._parts import Call, Use
from tfx_tpu_trainer.compat.doctor._text_edits import TextEdit
from tfx_tpu_trainer.compat.doctor.checks.context import Context

_THEME: Final = "model_fn"
_LIBRARIES: Final = ("tensorflow.", "tf_keras.", "keras.", "tfx_tpu_trainer.")
_APPLIES: Final = {"minimize", "apply_gradients"}
_WRAPPER: Final = ".CrossShardOptimizer"
_KERAS_OPTIMIZER: Final = re.compile(r"(tensorflow|tf_keras|keras)\b.*\boptimizers\.")


def check_optimizers(context: Context) -> Iterator[Finding]:
    """Looks at what applies gradients in the model functions of programs that may run on cores."""
    if not context.has_tpu_models:
        return
    if any(
        use.name.endswith(_WRAPPER) and not _wraps_in_place(context, use)
        for use in context.program.uses
    ):
        return
    for call in context.program.calls:
        within = any(
            call.function is not None and call.function.is_within(function)
            for function in context.tpu_model_fns
        )
        if call.attribute not in _APPLIES or not within:
            continue
        if not isinstance(call.node.func, ast.Attribute):
            continue
        optimizer = call.node.func.value
        if context.program.name_of(getattr(optimizer, "func", None)).endswith(_WRAPPER):
            continue
        made_by = _makers(context, optimizer)
        if any(_KERAS_OPTIMIZER.match(context.program.name_of(each.func)) for each in made_by):
            yield _keras_optimizer(context, call)
            continue
        if any(_is_helper(context, each) for each in made_by):
            # What another module makes, it wraps: the wrapper has to know nothing of the model.
            continue
        shown = context.program.written(optimizer)
        wrapped, added = context.spelling.spell("tfx_tpu_trainer.estimator.tpu.CrossShardOptimizer")
        place = context.program.place(optimizer)
        edits: tuple[TextEdit, ...] = (place.replaced_by(f"{wrapped}({shown})"), *added)
        computes = call.attribute == "apply_gradients" and _computes_gradients(context, call)
        if computes or not (made_by or isinstance(optimizer, ast.Call)):
            # compute_gradients must be the wrapper's too: it divides the loss. And an optimizer that comes
            # from elsewhere, as an argument or attribute, may be one already.
            edits = ()
        yield context.finding(
            call.place,
            Verdict.EDIT,
            theme=_THEME,
            name=f".{call.attribute}()",
            says=(
                "Training on several cores without CrossShardOptimizer: the cores would diverge, "
                "so it is a ValueError. On one core, and with use_tpu=False, the wrapper changes "
                "nothing."
            ),
            edit=f"optimizer = {wrapped}(optimizer), right after it is made",
            edits=edits,
        )


def _keras_optimizer(context: Context, call: Call) -> Finding:
    return context.finding(
        call.place,
        Verdict.EDIT,
        theme=_THEME,
        name=f".{call.attribute}()",
        says=(
            "A Keras optimizer trains on the host and on one core. It does not sum the gradients "
            "of several cores: a ValueError. CrossShardOptimizer accepts only optimizers of "
            "tf.compat.v1.train."
        ),
        edit=(
            "tpu.CrossShardOptimizer(tf.compat.v1.train.AdamOptimizer(...)); or each gradient through "
            "tf.compat.v1.tpu.cross_replica_sum, with the loss divided by the number of cores, before apply_gradients"
        ),
    )


def _wraps_in_place(context: Context, use: Use) -> bool:
    """Whether it is `CrossShardOptimizer(optimizer).minimize(...)`, which says nothing of other calls."""
    call, attribute = list(context.program.around(use.node))[:2]
    return isinstance(call, ast.Call) and isinstance(attribute, ast.Attribute)


def _makers(context: Context, optimizer: ast.expr) -> list[ast.Call]:
    """Returns the calls whose result an expression is, as far as the program's assignments show it."""
    if isinstance(optimizer, ast.Call):
        return [optimizer]
    scope = context.program.scopes.get(optimizer) if isinstance(optimizer, ast.Name) else None
    if scope is None or not isinstance(optimizer, ast.Name):
        return []
    values = (
        each.value for each in scope.assignments(optimizer.id) if isinstance(each, ast.Assign)
    )
    return [each for each in values if isinstance(each, ast.Call)]


def _is_helper(context: Context, call: ast.Call) -> bool:
    """Whether a call is one of another module's function, in contrast to a class."""
    function, program = call.func, context.program
    name = program.name_of(function)
    if name:
        return name.rpartition(".")[2][:1].islower() and not name.startswith(_LIBRARIES)
    # Or one of a module that is imported relatively.
    owner = function.value if isinstance(function, ast.Attribute) else function
    last = function.attr if isinstance(function, ast.Attribute) else getattr(owner, "id", "")
    return isinstance(owner, ast.Name) and owner.id in program.relative and last[:1].islower()


def _computes_gradients(context: Context, call: Call) -> bool:
    return any(
        each.attribute == "compute_gradients" and each.function is call.function
        for each in context.program.calls
    )
