"""`python -m benchmarks.speed_page RESULTS ...`: puts what runs of `make bench` found into docs/evidence/speed.md.

Rounds of several runs count together: a ratio is one of a round, in which the machine was the same for both.
"""

from __future__ import annotations

import collections
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from benchmarks.plan import TITLES
from benchmarks.report import targets_lines
from benchmarks.results import RESULTS, read_rounds
from benchmarks.rounds import Round
from benchmarks.targets import Outcome, outcomes

PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "speed.md"

_TABLE = re.compile(r"What was wanted, and what was found[^|]*\n(\|[^\n]*\n)+")


def section(found: Sequence[Outcome], rounds: Mapping[str, Sequence[Round]]) -> str:
    """Returns the page's part about the targets.

    Args:
        found: The targets and what was found; the page has them by model.
        rounds: The rounds of each model.
    """
    counts = collections.Counter(outcome.verdict for outcome in found)
    told = "; ".join(f"{TITLES[model]}: {len(each)}" for model, each in rounds.items())
    verdicts = f"{counts['reached']} of {len(found)} reached, {counts['open']} open, {counts['missed']} missed"
    models = list(TITLES)
    by_model = sorted(found, key=lambda outcome: models.index(outcome.target.model))
    lines = [
        f"What was wanted, and what was found ({verdicts}).",
        "",
        textwrap.fill(f"Rounds: {told}.", width=100),
        "",
        *targets_lines(by_model),
    ]
    return "\n".join(lines) + "\n"


@click.command()
@RESULTS
@click.option(
    "--page",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=PAGE,
    help="The page to write. Defaults to docs/evidence/speed.md.",
)
def main(results: tuple[Path, ...], page: Path) -> None:
    """Writes the targets that the RESULTS, each a results.json of `make bench`, say something of."""
    rounds, _ = read_rounds(results)
    text = page.read_text(encoding="utf-8")
    if not _TABLE.search(text):
        raise click.ClickException(
            f"{page} has no part that begins with 'What was wanted, and what was found'"
        )
    new = section(outcomes(rounds), rounds)
    page.write_text(_TABLE.sub(lambda _: new, text), encoding="utf-8")
    click.echo(f"written: {page}")


if __name__ == "__main__":
    main()
