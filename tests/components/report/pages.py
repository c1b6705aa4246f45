"""Reads the content of a page with an independent HTML parser."""

from __future__ import annotations

import html.parser
import re


class Page(html.parser.HTMLParser):
    """The contents of a page.

    Attributes:
        text: All text.
        rows: The cells of each row of each table.
        tags: All tags.
        links: Values of all attributes that would load something.
        unclosed: Tags that were opened and not closed.
    """

    _VOID = frozenset({"meta", "link", "br", "img", "hr", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.text, self.rows, self.tags, self.links = "", [], [], []
        self.unclosed: list[str] = []
        self._cell: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in self._VOID:
            self.unclosed.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.links += re.findall(r"url\(([^)]*)\)", dict(attrs).get("style") or "")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self._cell = ""

    def handle_endtag(self, tag):
        assert self.unclosed.pop() == tag
        if tag in ("td", "th") and self._cell is not None:
            self.rows[-1].append(self._cell)
            self._cell = None

    def handle_data(self, data):
        self.text += data
        if self._cell is not None:
            self._cell += data

    def row(self, name: str) -> list[str]:
        """Returns the cells after the first one of the only row that begins with a name."""
        (found,) = {tuple(row[1:]) for row in self.rows if row and row[0] == name}
        return list(found)
