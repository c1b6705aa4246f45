"""Examines one program, and makes its mechanical edits."""

import dataclasses
import itertools
import re
from collections.abc import Callable
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import (
    Finding,
    apply_edits,
    compatible_edits,
    told_once,
)
from tfx_tpu_trainer.compat.doctor._name_findings import NameFindings
from tfx_tpu_trainer.compat.doctor._reading import read_program
from tfx_tpu_trainer.compat.doctor._rewriting import Spelling
from tfx_tpu_trainer.compat.doctor.checks import (
    Context,
    estimators,
    input_fns,
    keras,
    model_fns,
    python_and_numpy,
    tf1_behavior,
)

_CHECKS: Final = (
    tf1_behavior.check_dimensions,
    estimators.check_exports,
    input_fns.check_input_fns,
    keras.check_keras2,
    estimators.check_legacy_modules,
    model_fns.check_model_fns,
    python_and_numpy.check_numpy_names,
    model_fns.check_optimizers,
    python_and_numpy.check_abstract_collections,
    python_and_numpy.check_python2,
    estimators.check_resolvers,
    estimators.check_schedules,
    tf1_behavior.check_sessions,
    estimators.check_tpu_estimators,
)
# Parsing is slow, and most files have nothing to do with estimators.
_CONCERNED: Final = re.compile(
    r"\b(tensorflow\w*|tfx\w*)\b|^\s*(import|from) keras\b", re.MULTILINE
)
_NUMPY: Final = re.compile(r"\bimport numpy\b")
_OLD_NUMPY: Final = re.compile(
    r"\b(?:np|numpy)\.(" + "|".join(map(re.escape, python_and_numpy.NUMPY_NAMES)) + r")\b"
)


@dataclasses.dataclass(frozen=True)
class Examined:
    """The findings of a program.

    Attributes:
        findings: In the order of their lines.
        tensorflow: The version of TensorFlow that it was written for, 1 or 2, by the names that it
            takes from `tf`; `None` if they are in both.
    """

    findings: list[Finding]
    tensorflow: int | None


def examine(text: str) -> list[Finding]:
    r"""Reports what a program uses, and whether it still works.

    Examples:
        >>> from tfx_tpu_trainer.compat.doctor import examine
        >>> program = "from tensorflow.contrib import tpu\nestimator = tpu.TPUEstimator\n"
        >>> (finding,) = examine(program)
        >>> finding.line, finding.name, finding.fixable
        (1, 'tf.contrib.tpu', True)

    Args:
        text: The program. It is parsed, and never run.

    Returns:
        The findings, in the order of their lines; none if it mentions neither TensorFlow nor TFX.

    Raises:
        NotPythonError: If it is not Python 3; the message names the line.
    """
    return look_at(text).findings


def look_at(text: str) -> Examined:
    """Examines a program as `examine` does, and returns which TensorFlow it is for."""
    examined = found_in(text)
    return dataclasses.replace(examined, findings=told_once(examined.findings))


def found_in(text: str) -> Examined:
    """Examines a program as `look_at` does, with the place of each finding."""
    if not (_CONCERNED.search(text) or (_NUMPY.search(text) and _OLD_NUMPY.search(text))):
        return Examined([], None)
    program = read_program(text)
    copied = estimators.copied_estimator(program)
    if copied is not None:
        return Examined([copied], 1)
    spelling = Spelling(program)
    context = Context(program, spelling)
    replaced = keras.replaced_functions(context)
    checked = itertools.chain.from_iterable(check(context) for check in _CHECKS)
    findings = [
        each
        for each in (*NameFindings(program, spelling).all(), *checked)
        if not any(function.has(each) for function in replaced)
    ]
    findings += [each.finding for each in replaced]
    return Examined(findings, 1 if spelling.is_tf1 else 2 if spelling.is_tf2 else None)


# An edit may allow another one inside the new text; calls are hardly nested this deeply.
_ROUNDS: Final = 20


@dataclasses.dataclass(frozen=True)
class Repaired:
    """A program with its mechanical edits.

    Attributes:
        text: The program.
        made: The findings whose edits were made.
        left: The findings on the new text.
        found: The findings on the text as it was.
        tensorflow: The version of TensorFlow that the program was written for, 1 or 2; `None` where
            its names are in both.
    """

    text: str
    made: tuple[Finding, ...]
    left: tuple[Finding, ...]
    found: tuple[Finding, ...] = ()
    tensorflow: int | None = None


def repair(text: str) -> Repaired:
    r"""Makes the edits that need no judgement; the rest of the program is not changed.

    Examples:
        >>> from tfx_tpu_trainer.compat.doctor import repair
        >>> repaired = repair("from tensorflow.contrib import tpu\n")
        >>> print(repaired.text)
        from tfx_tpu_trainer.estimator import tpu
        <BLANKLINE>

    Args:
        text: The program.

    Returns:
        The program with the edits.

    Raises:
        NotPythonError: If it is not Python 3; the message names the line.
    """
    return repair_with(look_at, text)


def repair_with(look: Callable[[str], Examined], text: str) -> Repaired:
    """Makes the edits of the findings that a function returns."""
    # Edits may overlap. In `f(tf.contrib.x.y(tf.placeholder(...)))` the edit of the outer call contains the inner name,
    # and only the longer of two overlapping edits is made. So each round makes the edits that fit together and examines
    # the new text, until none is left. A finding counts as made in the round that made all of its edits.
    made: list[Finding] = []
    examined = first = look(text)
    for _ in range(_ROUNDS):
        fixable = [each for each in examined.findings if each.fixable]
        if not fixable:
            break
        edits = compatible_edits(edit for each in fixable for edit in each.edits)
        made += [each for each in fixable if edits.issuperset(each.edits)]
        text = apply_edits(text, edits)
        examined = look(text)
    return Repaired(
        text, tuple(made), tuple(examined.findings), tuple(first.findings), first.tensorflow
    )
