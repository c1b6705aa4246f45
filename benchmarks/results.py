"""Reads the results.json of `make bench`: one, or those of several runs together."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.plan import TITLES, Measurement
from benchmarks.rounds import Machine, Round, counted

_FIELDS = [field.name for field in dataclasses.fields(Measurement)]

RESULTS = click.argument(
    "results",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    nargs=-1,
    required=True,
)
"""The argument of a command that reads one results.json or several."""


def read_rounds(
    paths: Sequence[Path],
) -> tuple[dict[str, list[Round]], list[Mapping[str, Any]]]:
    """Reads the rounds of several runs, which count together."""
    found: dict[str, list[Round]] = {}
    conditions: list[Mapping[str, Any]] = []
    for path in paths:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            of_run = rounds_of(content)
            conditions += content["conditions"].get("runs", [content["conditions"]])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise click.ClickException(
                f"{path} is not a results.json of make bench: {error!r}"
            ) from None
        for model, each in of_run.items():
            found.setdefault(model, []).extend(each)
    return {model: found[model] for model in TITLES if model in found}, conditions


def rounds_of(results: Mapping[str, Any]) -> dict[str, list[Round]]:
    """Reads the rounds of a `results.json`, by model, those on a busy machine left out."""
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
