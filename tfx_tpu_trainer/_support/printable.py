"""Names and messages of others, without what a terminal would take for commands.

A file's name, a feature's, or a message in a report may hold escape sequences, which recolour, overwrite or
retitle, and marks that turn the reading direction. They are printed as Python would write them: in hexadecimal.
"""

from __future__ import annotations

import unicodedata
from typing import Final

# Control characters, marks of direction and others without a shape, halves of a character, breaks of lines.
_UNSEEN: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")
_KEPT: Final = "\n\t"


def printable(text: str) -> str:
    """Returns a text with what can't be seen escaped, except for tabs and ends of lines."""
    if text.isprintable():
        return text
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character in _KEPT or unicodedata.category(character) not in _UNSEEN:
        return character
    return character.encode("unicode_escape").decode("ascii")
