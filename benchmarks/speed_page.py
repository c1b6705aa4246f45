"""`python -m benchmarks.speed_page RESULTS ...`: puts what runs of `make bench` found into docs/evidence/speed.md.

Rounds of several runs count together: a ratio is one of a round, in which the machine was the same for both.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.history import RESULTS
from benchmarks.plan import TITLES, Measurement
from benchmarks.report import targets_lines
from benchmarks.rounds import Machine, Round, counted
from benchmarks.targets import Outcome, outcomes

PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "speed.md"

_TABLE = re.compile(r"What was wanted, and what was found[^|]*\n(\|[^\n]*\n)+")
_FIELDS = [field.name for field in dataclasses.fields(Measurement)]


def rounds_of(results: Mapping[str, Any]) -> dict[str, list[Round]]:
    """Reads the rounds of a `results.json`, by model, those on a busy machine left out.

    Args:
        results: The file's content.
    """
    runs: dict[tuple[str, int], list[Mapping[str, Any]]] = collections.defaultdict(list)
    for run in results["runs"]:
        runs[run["model"], run["round"]].append(run)
    found: dict[str, list[Round]] = {}
    for (model, _), turns in sorted(runs.items()):
        found.setdefault(model, []).append(_round(turns))
    return {model: counted(rounds) for model, rounds in found.items()}


def _round(turns: Sequence[Mapping[str, Any]]) -> Round:
    return Round(
        measured={turn["contender"]: _measurement(turn) for turn in turns if "reason" not in turn},
        failures={turn["contender"]: turn["reason"] for turn in turns if "reason" in turn},
        machine={turn["contender"]: Machine(turn["others"], turn["mhz"]) for turn in turns},
    )


def _measurement(turn: Mapping[str, Any]) -> Measurement:
    fields = {name: turn[name] for name in _FIELDS}
    # In JSON a number that is missing is null; but the loss of nothing trained is None itself.
    missing = {name for name, value in fields.items() if value is None} - {"eval_loss"}
    return Measurement.from_json(json.dumps({**fields, **dict.fromkeys(missing, math.nan)}))


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
    found: dict[str, list[Round]] = {}
    for path in results:
        try:
            of_run = rounds_of(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            raise click.ClickException(
                f"{path} is not a results.json of make bench: {error!r}"
            ) from None
        for model, each in of_run.items():
            found.setdefault(model, []).extend(each)
    rounds = {model: found[model] for model in TITLES if model in found}
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
