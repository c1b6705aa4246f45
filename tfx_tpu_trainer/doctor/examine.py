"""One program, examined."""

from __future__ import annotations

import re
from typing import Final

from tfx_tpu_trainer.doctor.checks import check
from tfx_tpu_trainer.doctor.checks.context import Context
from tfx_tpu_trainer.doctor.findings import Finding, told_once
from tfx_tpu_trainer.doctor.name_findings import NameFindings
from tfx_tpu_trainer.doctor.program_visitors import read_program
from tfx_tpu_trainer.doctor.spelling import Spelling

# Parsing is what takes long, and most files of a folder have nothing to do with estimators.
_CONCERNED: Final = re.compile(r"\b(tensorflow\w*|tfx\w*)\b")


def examine(text: str) -> list[Finding]:
    """Says what a program uses, and what becomes of it.

    Args:
        text: The program. It is parsed, and never run.

    Returns:
        The findings, in the order of their lines; none where it speaks of neither TensorFlow nor
        TFX.

    Raises:
        NotPythonError: If it is no Python 3; the message names the line.
    """
    if not _CONCERNED.search(text):
        return []
    program = read_program(text)
    spelling = Spelling(program)
    context = Context(program, spelling)
    return told_once([*NameFindings(program, spelling).all(), *check(context)])
