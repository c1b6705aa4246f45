"""docs/programs.md tells what results.json has, and no more."""

from __future__ import annotations

import dataclasses

from tests.programs import results
from tests.programs.packages import PACKAGES

ROW = results.Row("some==1.0", "some.program", "none", 0, "host", calls=("train",), passed=True)


def test_the_page_is_that_of_the_results():
    text = results.PAGE.read_text(encoding="utf-8")
    assert results.page(text, results.read()) == text


def test_each_result_is_of_a_listed_package():
    rows = results.read()
    assert {row.package for row in rows} <= set(PACKAGES)
    # Who fails has a cause; who passes was seen to do something.
    assert [row for row in rows if not row.passed and not row.cause] == []
    assert [row for row in rows if row.passed and not row.calls] == []


def test_shares_count_cases_and_edits_by_hand():
    rows = [
        ROW,
        dataclasses.replace(ROW, place="2 cores"),
        dataclasses.replace(ROW, edit="by hand", hand_edits=2),
        dataclasses.replace(
            ROW, program="other", calls=(), passed=False, cause="uses an op that is gone"
        ),
    ]
    before, after = (
        "<!-- made by `make test-programs`: begin -->",
        "<!-- made by `make test-programs`: end -->",
    )
    text = results.page(f"above\n{before}old{after}\nbelow\n", rows)
    assert text.startswith("above\n") and text.endswith("\nbelow\n") and "old" not in text
    assert "4 cases of 1 packages; 3 pass (75 %); 2 (50 %) without an edit by hand." in text
    assert "| some==1.0 | some.program | unedited | passes | passes |  | train |" in text
    assert "| some==1.0 | some.program | by hand (2) | passes |  |  | train |" in text
    assert "| some==1.0 | other | unedited | fails |  |  | uses an op that is gone |" in text
