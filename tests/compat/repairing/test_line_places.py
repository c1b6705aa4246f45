"""Repaired programs keep the lines of the original."""

from __future__ import annotations

import ast

import pytest

from tests.compat.doctor.corpus_files import PROGRAMS, text_of
from tfx_tpu_trainer.compat.doctor import repair
from tfx_tpu_trainer.compat.repairing.line_places import keep_lines


@pytest.mark.parametrize(
    ("original", "repaired", "laid"),
    [
        # An import that is added below, above, and below one with a comment.
        (
            "import a\n\nx = a.y\n",
            "import a\nimport b\n\nx = b.y\n",
            "import a; import b\n\nx = b.y\n",
        ),
        ("import os\nx = y\n", "from b import y\nimport os\nx = y\n", None),
        ("import a  # why\nx = 1\n", "import a  # why\nimport b\nx = 1\n", None),
        # A statement that went, and a call that got shorter, within brackets.
        ("import a\nimport b\nx = 1\n", "import b\nx = 1\n", "\nimport b\nx = 1\n"),
        (
            "x = f(\n    a(1,\n      2),\n    3)\ny = 1\n",
            "x = f(\n    b(1),\n    3)\ny = 1\n",
            None,
        ),
        # In a block.
        (
            "if x:\n    import a\n    y = 1\n",
            "if x:\n    import a\n    from b import c\n    y = 1\n",
            "if x:\n    import a; from b import c\n    y = 1\n",
        ),
        ("x = 1\n", "x = 1\n", "x = 1\n"),
    ],
)
def test_lines_stay_where_they_are(original, repaired, laid):
    result = keep_lines(original, repaired)
    assert ast.dump(ast.parse(result)) == ast.dump(ast.parse(repaired))
    assert result.count("\n") == original.count("\n")
    if laid is not None:
        assert result == laid


def test_a_text_that_can_not_be_laid_out_is_as_it_was_repaired():
    original, repaired = "x = 1\n", "x = 1\nwhile x:\n    x = 0\n"
    assert keep_lines(original, repaired) == repaired


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_doctors_programs_keep_theirs(program):
    original = text_of(program)
    repaired = repair(original).text
    laid = keep_lines(original, repaired)
    assert ast.dump(ast.parse(laid)) == ast.dump(ast.parse(repaired))
    assert laid.count("\n") == original.count("\n")
