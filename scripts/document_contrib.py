"""Writes the table of docs/doctor.md: what public programs use of tf.contrib, and what becomes of it. `make docs`."""

from __future__ import annotations

import collections
import contextlib
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.count_contrib_names import CONTRIB, RECORDING
from scripts.draw_layers import with_block
from tfx_tpu_trainer import compat
from tfx_tpu_trainer.compat.doctor.rules import MODULES, canonical, look_up

PAGE = Path(__file__).parents[1] / "docs" / "doctor.md"
_OURS, _TPU = "tfx_tpu_trainer.compat.contrib", "tfx_tpu_trainer.estimator.tpu"
_SHOWN = 8
# Parts with fewer uses share a line.
_FEW = 10

Names = dict[str, int]


def counts() -> dict[str, Any]:
    """Returns what scripts/count_contrib_names.py counted."""
    return json.loads(RECORDING.read_text(encoding="utf-8"))


def is_there(name: str) -> bool:
    """Whether a program finds a name where `compat` is installed: by its import, or as an attribute."""
    parts = name.split(".")
    for length in range(len(parts), -1, -1):
        with contextlib.suppress(ImportError, AttributeError):
            found = importlib.import_module(".".join([CONTRIB, *parts[:length]]))
            for part in parts[length:]:
                found = getattr(found, part)
            return True
    return False


def covered(names: Names) -> set[str]:
    """Returns the names that `--fix` writes, and that are there at run time."""
    with compat.install():
        return {name for name in names if _is_fixed(name) and is_there(name)}


def _is_fixed(name: str) -> bool:
    spelled = canonical(f"{CONTRIB}.{name}")
    found = look_up(spelled)
    return (
        "." not in name
        or spelled in MODULES
        or (found is not None and found[1].becomes is not None)
    )


def _parts(names: Names) -> Iterator[tuple[str, Names]]:
    parts: dict[str, Names] = collections.defaultdict(dict)
    for name, uses in names.items():
        part, _, rest = canonical(f"{CONTRIB}.{name}")[len(CONTRIB) + 1 :].partition(".")
        short = rest or part
        parts[part][short] = parts[part].get(short, 0) + uses
    yield from sorted(parts.items(), key=lambda each: (-sum(each[1].values()), each[0]))


def _listed(part: str, names: Names) -> str:
    ordered = sorted(names, key=lambda name: (-names[name], name))
    told = ", ".join(f"`{name}` {names[name]}" for name in ordered[:_SHOWN])
    more = len(ordered) - _SHOWN
    return told + (f" and {more} more" if more > 0 else "")


def _homes(part: str, names: Names) -> str:
    homes: collections.Counter[str] = collections.Counter()
    for name, uses in names.items():
        found = look_up(f"{CONTRIB}.{part}.{name}")
        becomes = found[1].becomes if found else None
        if becomes is None:
            continue
        home = f"`{_OURS}`" if becomes.startswith(_OURS) else "TensorFlow"
        homes["`estimator.tpu`" if becomes.startswith(_TPU) else home] += uses
    return ", ".join(home for home, _ in homes.most_common())


def table() -> str:
    """Returns the table, with what is covered in a sentence above it."""
    recorded = counts()
    names: Names = recorded["names"]
    there = covered(names)
    total, kept = sum(names.values()), sum(names[name] for name in there)
    packages = sum(bool(uses) for uses in recorded["packages"].values())
    lines = [
        (
            f"{packages} public packages use {len(names)} names of `tf.contrib` {total:,} times; {kept:,} of these, "
            f"{kept / total:.0%}, are there."
        ),
        "",
        "| part | uses | there | in | most used | not there |",
        "|---|---|---|---|---|---|",
    ]
    few, few_uses, few_there = [], 0, 0
    with_there = {name: uses for name, uses in names.items() if name in there}
    there_by_part = dict(_parts(with_there))
    for part, found in _parts(names):
        uses, here = sum(found.values()), there_by_part.get(part, {})
        missing = {name: each - here.get(name, 0) for name, each in found.items()}
        missing = {name: each for name, each in missing.items() if each}
        if uses < _FEW:
            few.append(f"`{part}`")
            few_uses, few_there = few_uses + uses, few_there + sum(here.values())
            continue
        lines.append(
            f"| `{part}` | {uses} | {sum(here.values())} | {_homes(part, here)} | {_listed(part, here)} | "
            f"{_listed(part, missing)} |"
        )
    lines.append(f"| {', '.join(few)} | {few_uses} | {few_there} | | | |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """Returns the page with today's table in it."""
    return with_block(text, table())


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
