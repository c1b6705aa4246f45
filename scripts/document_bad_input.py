"""Writes docs/bad-input.md: the rows of the tests that are marked with tests.bad_input. `make docs`."""

from __future__ import annotations

import contextlib
import io
import sys

import pytest

from tests.bad_input import PAGE, page_of, rows_of


class _Collected:
    """A plugin of pytest that keeps the rows of all tests, also of those that a marker leaves out."""

    def __init__(self) -> None:
        self.page = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.page = page_of(rows_of(items))


def main() -> None:
    collected, printed = _Collected(), io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = pytest.main(
            ["--collect-only", "--quiet", "-p", "no:cacheprovider", "tests"], [collected]
        )
    if code != 0:
        sys.exit(f"the tests can't be collected:\n{printed.getvalue()[-2000:]}")
    PAGE.write_text(collected.page, encoding="utf-8")


if __name__ == "__main__":
    main()
