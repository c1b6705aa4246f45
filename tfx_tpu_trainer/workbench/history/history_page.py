"""The runs of a root as one page: what became of each, and what differs between their models."""

from __future__ import annotations

import dataclasses
import time

from tfx_tpu_trainer.components.report import (
    RunData,
    Section,
    Table,
    compare,
    comparison_sections,
    render_sections,
)
from tfx_tpu_trainer.workbench.history.history import in_words, seen_from_outside
from tfx_tpu_trainer.workbench.history.run_page import gather_run
from tfx_tpu_trainer.workbench.project import metadata
from tfx_tpu_trainer.workbench.project.config import ConfigError
from tfx_tpu_trainer.workbench.project.roots import Root

# A run is named after the microsecond in which it began.
_TO_THE_SECOND = len("2026-11-25T15:45:35")


def history_page(root: Root, *, last: int) -> str:
    """Makes the page of a root's newest runs."""
    store = root.store()
    try:
        names = metadata.run_names(store)[-last:]
    except metadata.UnreadableError as error:
        raise ConfigError(f"{error}; give the root of a pipeline's runs with --root") from None
    if not names:
        raise ConfigError(f"{str(root.folder)!r} has no runs; run the pipeline first")
    rows, runs = [], []
    for name in names:
        statuses = seen_from_outside(metadata.node_statuses(store, name).values(), root.folder)
        try:
            run = gather_run(root, name)
        except ConfigError as error:
            rows.append((_short(name), in_words(statuses), str(error), ""))
            continue
        runs.append(dataclasses.replace(run, title=_short(name)))
        rows.append((_short(name), in_words(statuses), _verdict(run), _rows(run)))
    sections = [
        Section(
            title="Runs",
            says=f"{len(names)} run{'s' * (len(names) != 1)} of {root.folder}, the newest last.",
            tables={
                "Runs": Table(head=("run", "state", "model", "rows evaluated"), rows=tuple(rows))
            },
        )
    ]
    # Those that have trained the same model, from the cache, differ in nothing.
    if len(runs) > 1:
        sections += comparison_sections(compare(runs))
    return render_sections(
        sections,
        title=f"Runs of {root.folder.name}",
        written=time.time(),
        unread=[line for run in runs for line in run.unread],
    )


def _short(name: str) -> str:
    return name[:_TO_THE_SECOND]


def _verdict(run: RunData) -> str:
    if run.stopped is not None:
        return run.stopped
    if run.verdict is None or run.verdict.blessed is None:
        return "not judged"
    return "blessed" if run.verdict.blessed else "not blessed"


def _rows(run: RunData) -> str:
    rows = run.measured and run.measured.num_examples
    return "" if rows is None else f"{rows:,}"
