"""The listing of docs/compat.md runs."""

from __future__ import annotations

import re

from tests.programs.fetching import REPOSITORY


def test_the_listing_runs():
    page = (REPOSITORY / "docs" / "compat.md").read_text(encoding="utf-8")
    (listing,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(listing, {})
