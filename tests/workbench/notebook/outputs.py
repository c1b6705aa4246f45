"""What a notebook keeps of its outputs, compared with what it shows when it runs."""

from __future__ import annotations

import math
import re

import nbformat

from scripts.run_notebooks import NOTEBOOKS

_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")
# The frames of tables are as wide as their numbers.
_FRAME = re.compile(r"[\u2500-\u259f]+")
_TAGS = re.compile(r"<svg.*?</svg>|<[^>]*>", re.DOTALL)


def kept(name: str) -> nbformat.NotebookNode:
    """A notebook as it stands in the repository."""
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def words_of(text: str) -> list[str]:
    """The words of a text, or of a page of HTML, with `#` for each number."""
    return _FRAME.sub(" ", _NUMBER.sub("#", _TAGS.sub(" ", text))).split()


def says_the_same(text: str, other: str) -> bool:
    """Whether two texts have the same words, and numbers that agree to 0.5 %."""
    numbers, others = (
        [float(number.replace(",", "")) for number in _NUMBER.findall(each)]
        for each in (text, other)
    )
    return words_of(text) == words_of(other) and all(
        math.isclose(number, another, rel_tol=0.005, abs_tol=0.001)
        for number, another in zip(numbers, others)
    )
