"""Results of the cases: kept in results.json, listed in docs/programs.md and docs/how-to/prove-a-migration.md.

`python -m tests.programs.results` rewrites the pages, without a run.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from tests.programs.fetching import PACKAGES, REPOSITORY

FILE = pathlib.Path(__file__).with_name("results.json")
PAGE = REPOSITORY / "docs" / "programs.md"
_BEGIN, _END = (
    "<!-- made by `make test-programs`: begin -->",
    "<!-- made by `make test-programs`: end -->",
)
PROOFS_PAGE = REPOSITORY / "docs" / "how-to" / "prove-a-migration.md"
_PROOFS_BEGIN, _PROOFS_END = (
    '<!-- made by `make test-programs ARGS="--prove --write-table"`: begin -->',
    '<!-- made by `make test-programs ARGS="--prove --write-table"`: end -->',
)
_ORDER = ("host", "2 cores", "8 cores")
_EDITS = {
    "none": "unedited",
    "--repair": "`--repair`",
    "--fix": "`doctor --fix`",
    "by hand": "by hand",
}
_seen: list[Row] = []


@dataclasses.dataclass(frozen=True)
class Row:
    """A case and its result.

    Attributes:
        package: Name and version.
        program: The part of the package that ran.
        edit: A key of `_EDITS`.
        hand_edits: The number of places edited by hand.
        place: `"host"`, `"2 cores"` or `"8 cores"`.
        cause: Why it can't run; empty if it runs.
        calls: Its observed calls, each once.
        passed: Whether it ran to its end with right results.
        differs: Why its proof does not hold; empty if it does.
        proof: The verdict of its last proof, as `running.run_prove` returns it; empty if it had none.
    """

    package: str
    program: str
    edit: str
    hand_edits: int
    place: str
    cause: str = ""
    calls: tuple[str, ...] = ()
    passed: bool = False
    differs: str = ""
    proof: str = ""

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def key(self) -> tuple[str, str, str, int]:
        return (self.package.lower(), self.program, self.edit, _ORDER.index(self.place))


def note(report: pytest.TestReport) -> None:
    """Records a test's report on its case, once the test's body has run or its fixtures failed."""
    told = dict(report.user_properties)
    if "row" not in told or (
        report.when != "call" and not (report.when == "setup" and report.failed)
    ):
        return
    calls = tuple(dict.fromkeys(told.get("calls", ())))
    row = Row(**{**told["row"], "calls": calls, "proof": "".join(told.get("proofs", ()))})
    _seen.append(dataclasses.replace(row, passed=report.passed))


def write(*, whole: bool, proofs: bool) -> None:
    """Writes results.json and the pages.

    Args:
        whole: Whether all cases ran: rows of cases that are gone go too.
        proofs: Whether the cases were proofs, which leave alone how the programs run by themselves.
    """
    last = {row.key: row for row in read()}
    found = {row.key: _merged(last.get(row.key, row), row, proofs=proofs) for row in _seen}
    kept = {} if whole else last
    rows = sorted((kept | found).values(), key=lambda row: row.key)
    text = json.dumps([row.as_dict() for row in rows], indent=1, ensure_ascii=False)
    FILE.write_text(f"{text}\n", encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    proved = proofs_page(PROOFS_PAGE.read_text(encoding="utf-8"), rows)
    PROOFS_PAGE.write_text(proved, encoding="utf-8")


def _merged(last: Row, row: Row, *, proofs: bool) -> Row:
    """Returns a case's row with a new proof, or with a new run and the last proof."""
    if proofs:
        return dataclasses.replace(last, differs=row.differs, proof=row.proof or last.proof)
    return dataclasses.replace(row, proof=last.proof)


def read() -> list[Row]:
    """Returns the rows that the last runs wrote."""
    if not FILE.exists():
        return []
    rows = json.loads(FILE.read_text(encoding="utf-8"))
    return [Row(**{**row, "calls": tuple(row["calls"])}) for row in rows]


def page(text: str, rows: Sequence[Row]) -> str:
    """Returns the page with new tables.

    Args:
        text: The current page.
        rows: All rows.
    """
    before, rest = text.split(_BEGIN)
    _, after = rest.split(_END)
    return f"{before}{_BEGIN}\n{_summary(rows)}\n\n{_cases(rows)}\n\n{_sources()}\n{_END}{after}"


def proofs_page(text: str, rows: Sequence[Row]) -> str:
    """Returns the page of proofs with a new table; see `page`."""
    before, rest = text.split(_PROOFS_BEGIN)
    _, after = rest.split(_PROOFS_END)
    lines = [
        "| package | program | edited | host | 2 cores | 8 cores | known difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for (package, program, edit), places in _groups(row for row in rows if row.proof):
        cells = [_proof(places.get(place)) for place in _ORDER]
        why = "; ".join(dict.fromkeys(row.differs for row in places.values() if row.differs))
        lines.append(f"| {package} | {program} | {_EDITS[edit]} | {' | '.join(cells)} | {why} |")
    return f"{before}{_PROOFS_BEGIN}\n{chr(10).join(lines)}\n{_PROOFS_END}{after}"


def _proof(row: Row | None) -> str:
    """Returns a verdict without its details."""
    if row is None:
        return ""
    verdict = row.proof.partition(":")[0]
    return f"**{verdict}**" if row.differs else verdict


def _groups(rows: Iterable[Row]) -> Iterable[tuple[tuple[str, str, str], dict[str, Row]]]:
    """Returns the rows of each program by place."""
    groups: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row.package, row.program, row.edit), {})[row.place] = row
    return groups.items()


def _summary(rows: Sequence[Row]) -> str:
    passed = [row for row in rows if row.passed]
    by_us = [row for row in passed if row.edit != "by hand"]
    lines = [
        (
            f"{len(rows)} cases of {len({row.package for row in rows})} packages; "
            f"{len(passed)} pass ({_share(passed, rows)}); "
            f"{len(by_us)} ({_share(by_us, rows)}) without an edit by hand."
        ),
        "",
        "| edited | cases | pass | fail |",
        "|---|---|---|---|",
    ]
    for edit, words in _EDITS.items():
        of_edit = [row for row in rows if row.edit == edit]
        passing = sum(row.passed for row in of_edit)
        if of_edit:
            lines.append(f"| {words} | {len(of_edit)} | {passing} | {len(of_edit) - passing} |")
    return "\n".join(lines)


def _share(some: Sequence[Row], rows: Sequence[Row]) -> str:
    return f"{100 * len(some) / max(len(rows), 1):.0f} %"


def _cases(rows: Sequence[Row]) -> str:
    lines = [
        "| package | program | edited | host | 2 cores | 8 cores | seen |",
        "|---|---|---|---|---|---|---|",
    ]
    for (package, program, edit), places in _groups(rows):
        any_row = next(iter(places.values()))
        edited = _EDITS[edit] + (f" ({any_row.hand_edits})" if any_row.hand_edits else "")
        cells = [_outcome(places.get(place)) for place in _ORDER]
        lines.append(
            f"| {package} | {program} | {edited} | {' | '.join(cells)} | {_seen_in(places.values())} |"
        )
    return "\n".join(lines)


def _outcome(row: Row | None) -> str:
    if row is None:
        return ""
    return "passes" if row.passed else "fails"


def _seen_in(rows: Iterable[Row]) -> str:
    calls = list(dict.fromkeys(call for row in rows for call in row.calls))
    causes = list(dict.fromkeys(row.cause for row in rows if row.cause))
    return "; ".join([", ".join(calls), *causes] if calls else causes)


def _sources() -> str:
    lines = ["| package | licence | why it is here |", "|---|---|---|"]
    for package in sorted(PACKAGES.values(), key=lambda package: package.requirement.lower()):
        lines.append(f"| {package.requirement} | {package.licence} | {package.why} |")
    return "\n".join(lines)


if __name__ == "__main__":
    write(whole=False, proofs=False)
