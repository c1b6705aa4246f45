"""Compares exported models: our metagraph for CPU hosts, and Keras's SavedModel of the same model.

`python -m benchmarks.serving MODEL SEGMENTS OUTPUT` is one process of it.
"""

import dataclasses
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.plan import TITLES
from benchmarks.processes import Failed, environment_of, result_of

BATCH_SIZES = (1, 32, 1024)

_WARM_UP_CALLS = 20
_SEGMENT_SECONDS = 0.25


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
    """The speed of one model in batches of one size."""

    model: str
    # Of `benchmarks.served_models.WAYS`.
    way: str
    batch_size: int
    # Both models' examples per second, measured in turns, one per segment.
    ours: tuple[float, ...]
    keras: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Our median divided by Keras's."""
        return statistics.median(self.ours) / statistics.median(self.keras)


def measure_all(
    models: Iterable[str],
    *,
    segments: int,
    threads: int,
    timeout: float,
    console: Console,
) -> list[Served]:
    """Measures each model in its own process."""
    results = []
    for model in models:
        found = _run(model, segments=segments, threads=threads, timeout=timeout)
        if isinstance(found, Failed):
            console.print(f"serving {model} failed: {found.reason}", style="red", markup=False)
        else:
            results += found
    return results


def table(results: Sequence[Served]) -> Table:
    """Returns the table for the terminal."""
    shown = Table(title="Exported models on this CPU", title_justify="left")
    for heading in _HEADINGS:
        shown.add_column(heading, justify="left" if heading == _HEADINGS[0] else "right")
    for row in _rows(results):
        shown.add_row(*row)
    return shown


def markdown(results: Sequence[Served]) -> str:
    """Returns the table as a section of the report."""
    lines = ["## Exported models on this CPU", "", f"| {' | '.join(_HEADINGS)} |"]
    lines += ["|---" + "|---:" * (len(_HEADINGS) - 1) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in _rows(results)]
    return "\n".join(lines) + "\n"


def as_json(results: Sequence[Served]) -> str:
    return json.dumps([dataclasses.asdict(each) | {"ratio": each.ratio} for each in results])


_HEADINGS = ("", "called in", "batch", "ours, examples/s", "Keras 3, examples/s", "ratio")


def _rows(results: Sequence[Served]) -> list[tuple[str, ...]]:
    return [
        (
            TITLES[each.model].partition(",")[0],
            each.way,
            str(each.batch_size),
            f"{statistics.median(each.ours):,.0f}",
            f"{statistics.median(each.keras):,.0f}",
            f"{each.ratio:.2f}x",
        )
        for each in results
    ]


def _run(model: str, *, segments: int, threads: int, timeout: float) -> list[Served] | Failed:
    found = result_of(
        ["benchmarks.serving", model, str(segments)],
        environment=environment_of(threads=threads, legacy_keras=False),
        timeout=timeout,
    )
    if isinstance(found, Failed):
        return found
    return [
        Served(**{**each, "ours": tuple(each["ours"]), "keras": tuple(each["keras"])})
        for each in json.loads(found)
    ]


def measure(model: str, *, segments: int, batch_sizes: Sequence[int] = BATCH_SIZES) -> list[Served]:
    """Exports a model in both ways, checks that the predictions are the same, and times them in turns."""
    # Imported here: only the measuring processes need TensorFlow.
    from benchmarks import served_models

    with tempfile.TemporaryDirectory(prefix="bench-exports-") as folder:
        paths = served_models.export_both(model, folder)
        results = []
        for (way, call_of), batch_size in itertools.product(
            served_models.WAYS.items(), batch_sizes
        ):
            batch = served_models.batch(model, batch_size)
            calls = [call_of(path, batch) for path in paths]
            served_models.check_same(*(call() for call in calls))
            rates = _rates_in_turns(calls, segments)
            ours, keras = (tuple(rate * batch_size for rate in found) for found in rates)
            results.append(
                Served(model=model, way=way, batch_size=batch_size, ours=ours, keras=keras)
            )
    return results


def _rates_in_turns(calls: Sequence[Callable[[], Any]], segments: int) -> list[list[float]]:
    """Returns each model's calls per second, in alternating segments."""
    counts = []
    for call in calls:
        _seconds(call, _WARM_UP_CALLS)
        counts.append(
            max(5, int(_SEGMENT_SECONDS * _WARM_UP_CALLS / _seconds(call, _WARM_UP_CALLS)))
        )
    rates: list[list[float]] = [[] for _ in calls]
    for _ in range(segments):
        for call, count, found in zip(calls, counts, rates, strict=True):
            found.append(count / _seconds(call, count))
    return rates


def _seconds(call: Callable[[], Any], count: int) -> float:
    started = time.monotonic()
    for _ in range(count):
        call()
    return time.monotonic() - started


def main() -> None:
    model, segments, output = sys.argv[1:]
    found = measure(model, segments=int(segments))
    text = json.dumps([dataclasses.asdict(each) for each in found])
    Path(output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
