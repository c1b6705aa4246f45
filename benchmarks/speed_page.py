"""`python -m benchmarks.speed_page RESULTS ...`: writes results of `make bench` into docs/evidence/speed.md.

Rounds of several runs count together: a ratio belongs to a round, in which the machine was the same for both. The
page's entries on models that these runs did not measure stay.
"""

import collections
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from benchmarks.plan import TITLES
from benchmarks.report import RESULTS, read_rounds, targets_lines
from benchmarks.rounds import Round
from benchmarks.targets import Outcome, outcomes

PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "speed.md"

_TABLE = re.compile(r"Targets and results[^|]*\n(\|[^\n]*\n)+")


def section(found: Sequence[Outcome], rounds: Mapping[str, Sequence[Round]], former: str) -> str:
    """Returns the page's section on the targets."""
    titles = list(TITLES.values())
    measured = {TITLES[model]: len(each) for model, each in rounds.items()}
    head, line, *rows = targets_lines(found)
    rows += [
        row
        for row in former.splitlines()
        if (title := _title(row)) in titles and title not in measured
    ]
    rows.sort(key=lambda row: titles.index(_title(row)))
    numbers = _numbers_of_rounds(former) | measured
    told = "; ".join(f"{title}: {numbers[title]}" for title in titles if title in numbers)
    counts = collections.Counter(row.split("|")[-2].strip() for row in rows)
    verdicts = f"{counts['reached']} of {len(rows)} reached, {counts['open']} open, {counts['missed']} missed"
    lines = [
        f"Targets and results ({verdicts}).",
        "",
        textwrap.fill(f"Rounds: {told}.", width=100),
        "",
        head,
        line,
        *rows,
    ]
    return "\n".join(lines) + "\n"


def _title(row: str) -> str:
    """Returns the model in a table row; for another line, some text that is not a model's title."""
    return row.removeprefix("|").split("|")[0].strip()


def _numbers_of_rounds(part: str) -> dict[str, int]:
    """Returns each model's number of rounds in a section of the page."""
    text = " ".join(part.split())
    told = {title: re.search(rf"{re.escape(title)}: (\d+)", text) for title in TITLES.values()}
    return {title: int(number[1]) for title, number in told.items() if number}


@click.command()
@RESULTS
@click.option(
    "--page",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=PAGE,
    help="The page to write. Defaults to docs/evidence/speed.md.",
)
def main(results: tuple[Path, ...], page: Path) -> None:
    """Writes the targets on which the RESULTS, each a results.json of `make bench`, have measurements."""
    rounds, _ = read_rounds(results)
    text = page.read_text(encoding="utf-8")
    former = _TABLE.search(text)
    if former is None:
        raise click.ClickException(f"{page} has no part that begins with 'Targets and results'")
    new = section(outcomes(rounds), rounds, former[0])
    page.write_text(_TABLE.sub(lambda _: new, text), encoding="utf-8")
    click.echo(f"written: {page}")


if __name__ == "__main__":
    main()
