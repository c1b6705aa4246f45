"""Checks Keras models that the program itself turns into estimators, and names that only Keras 2 has."""

import ast
import dataclasses
import re
from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, Verdict
from tfx_tpu_trainer.compat.doctor._program import Function
from tfx_tpu_trainer.compat.doctor.checks import Context, finding, to_edit
from tfx_tpu_trainer.compat.doctor.rules.estimators import PRIVATE_FUNCTIONS

_THEME: Final = "keras"
# Made the ops of a training step, in Keras 2.2.
_MADE_TRAIN_OPS: Final = "_make_train_function"
_ON_CORES: Final = (
    "from tfx_tpu_trainer.estimator import keras_to_estimator, then keras_to_estimator(model, model_dir=..., "
    "config=tpu.RunConfig(...), train_batch_size=..., eval_batch_size=...)"
)
_ON_THE_HOST: Final = "tf.keras.estimator.model_to_estimator(model, model_dir=..., config=...)"


@dataclasses.dataclass(frozen=True)
class ReplacedFunction:
    """A function to be replaced as a whole, so nothing in it needs its own edit.

    Attributes:
        finding: The finding about it.
        last_line: The line where it ends.
    """

    finding: Finding
    last_line: int

    def has(self, finding: Finding) -> bool:
        """Returns whether a finding is inside the function."""
        return self.finding.line <= finding.line <= self.last_line


def replaced_functions(context: Context) -> list[ReplacedFunction]:
    """Finds functions that turn a Keras model into an estimator with Keras's private functions."""
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
        return [_replaced(each, edit) for each in helpers]
    replaced = [_replaced(each, f"replace the whole function: {instead}") for each in whole]
    left_out = f"leave it out together with {whole[0].name} (line {whole[0].place.line})"
    replaced += [_replaced(each, left_out) for each in helpers if each not in whole]
    return replaced


def _replaced(function: Function, edit: str) -> ReplacedFunction:
    assert function.node.end_lineno is not None
    finding = to_edit(
        function.place,
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
    used: list[ast.AST] = [use.node for use in program.uses if use.name in PRIVATE_FUNCTIONS]
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
    """Returns whether a function makes an estimator and returns it."""
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


_VARIABLE: Final = "TF_USE_LEGACY_KERAS"
KERAS_2: Final = re.compile(
    r"tensorflow(\.compat\.v[12])?\."
    r"(layers\.|nn\.rnn_cell\.|keras\.experimental\.|keras\.optimizers\.legacy\b|keras\.layers\.experimental\.|"
    r"keras\.layers\.(DenseFeatures|LocallyConnected[12]D|CuDNNLSTM|CuDNNGRU)\b|"
    r"keras\.backend\.(learning_phase|set_learning_phase|placeholder|get_session|set_session)\b)"
    r"|keras\.optimizers\.legacy\b"
)
_OPTIMIZER: Final = re.compile(r"(tensorflow|tf_keras|keras)\b.*\boptimizers\.(\w+\.)?[A-Z]\w*$")
# Importing any of them imports the package, which chooses Keras 2 if that is still possible.
_OURS: Final = re.compile(r"tfx_tpu_trainer\.estimator\b")
_TF_KERAS: Final = re.compile(r"tensorflow\.(compat\.v[12]\.)?keras\b")
_SHOWN: Final = 4


def check_keras2(context: Context) -> Iterator[Finding]:
    """Reports names that need Keras 2, once per program, and arguments that Keras 3 lacks."""
    yield from _learning_rates(context)
    if _VARIABLE in context.program.text:
        return
    uses = sorted(
        (each for each in context.program.uses if KERAS_2.match(each.name)),
        key=lambda each: each.place.start,
    )
    if not uses:
        return
    ours_first = _imports_ours_first(context)
    if ours_first:
        return
    names = list(dict.fromkeys(_shown(each.name) for each in uses))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    which = f"{', '.join(names[:_SHOWN])}{more} {'are' if len(names) > 1 else 'is'}"
    lines = sorted({each.place.line for each in uses} - {uses[0].place.line})
    verdict = Verdict.NOTE
    way = "tfx_tpu_trainer.compat chooses Keras 2 by itself."
    edit = f"python -m tfx_tpu_trainer.compat PROGRAM; or {_VARIABLE}=1 python PROGRAM"
    if ours_first is False:
        verdict = Verdict.EDIT
        way = "tfx_tpu_trainer.estimator chooses Keras 2, but is imported after tensorflow.keras."
        edit = f"import tfx_tpu_trainer.estimator before tensorflow.keras; or {_VARIABLE}=1 python PROGRAM"
    reported = finding(
        uses[0].place,
        verdict,
        theme="keras",
        name="Keras 2",
        says=f"{which} Keras 2's: an AttributeError under Keras 3, TensorFlow 2.16's default. {way}",
        edit=edit,
    )
    yield dataclasses.replace(reported, also_lines=tuple(lines))


def _imports_ours_first(context: Context) -> bool | None:
    """Returns whether the program imports our estimators before tf.keras; `None` if it does not import them."""
    imports = sorted(
        (each for each in context.program.bindings if not (each.assigned or each.in_function)),
        key=lambda each: each.place.start,
    )
    ours = [each for each in imports if _OURS.match(each.imported)]
    if not ours:
        return None
    theirs = [each for each in imports if _TF_KERAS.match(each.imported)]
    return not theirs or ours[0].place.start < theirs[0].place.start


def _learning_rates(context: Context) -> Iterator[Finding]:
    """Reports `Adam(lr=0.1)`: Keras 2 accepted the name with a warning, Keras 3 rejects it."""
    for call in context.program.calls:
        if not _OPTIMIZER.match(call.name):
            continue
        for argument in call.node.keywords:
            if argument.arg == "lr":
                place = context.program.place_of_keyword(argument)
                yield to_edit(
                    place,
                    theme="keras",
                    name=f"{call.attribute}(lr=...)",
                    says="Keras 3 has no lr: a ValueError. All versions have learning_rate.",
                    edit="learning_rate",
                    edits=(place.replaced_by("learning_rate"),),
                )


def _shown(name: str) -> str:
    name = re.sub(r"^tensorflow(\.compat\.v[12])?\.", "tf.", name)
    parts = name.split(".")
    classes = [i for i, part in enumerate(parts) if part[:1].isupper()]
    return ".".join(parts[: classes[0] + 1] if classes else parts)
