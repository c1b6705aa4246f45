"""What came out of an earlier run, read again from ML Metadata and the artifacts that it names."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from tfx_tpu_trainer._support.terminal import standard_output
from tfx_tpu_trainer.workbench.history.history import find_run, in_words, seen_from_outside
from tfx_tpu_trainer.workbench.history.report import Failure, RunReport, collect, failed_nodes
from tfx_tpu_trainer.workbench.history.run_log import LOG
from tfx_tpu_trainer.workbench.history.summary import print_summary
from tfx_tpu_trainer.workbench.history.tensorboard_runs import FOLDER
from tfx_tpu_trainer.workbench.project import metadata
from tfx_tpu_trainer.workbench.project.config import ConfigError
from tfx_tpu_trainer.workbench.project.metadata import NodeStatus, State
from tfx_tpu_trainer.workbench.project.roots import Root

_WIDTH = 140


def print_run(root: Root, name: str | None, *, serving_absent: Collection[str] = ()) -> None:
    """Shows a run as its own summary did."""
    store = root.store()
    run = find_run(metadata.run_names(store), name, root)
    found = metadata.node_statuses(store, run)
    statuses = seen_from_outside(found.values(), root.folder)
    began = min((status.started for status in statuses), default=0.0)
    folder = root.log_folder(began)
    failure = failure_of(statuses)
    report = RunReport(failure=failure)
    if failure is None:
        try:
            report = collect(store, run, serving_absent=_absent(folder, serving_absent))
        except FileNotFoundError as error:
            raise ConfigError(
                f"{error}: the results of run {run} have been removed; its log may still exist, "
                "and `tfx-tpu-trainer history` lists its components"
            ) from None
    names = root.folder / FOLDER
    if names.is_dir() and report.model_run:
        report = report.with_tensorboard(str(names))
    console = standard_output(width=_WIDTH)
    console.print(f"Run {run}: {in_words(statuses)}", style="bold", soft_wrap=True)
    print_summary(
        console,
        statuses=_with_the_rest(statuses, folder),
        report=report,
        metadata_file=str(root.metadata_file),
        log=folder / LOG if folder is not None else None,
    )


def failure_of(statuses: Sequence[NodeStatus]) -> Failure | None:
    """Returns why a run has not ended well, or not yet; `None` for one that has."""
    for status in failed_nodes({status.node: status for status in statuses}):
        return Failure(status.node, status.error or "its inputs could not be resolved; see the log")
    for status in statuses:
        if status.state is State.KILLED:
            return Failure(status.node, status.error or metadata.KILLED)
        if status.state is State.RUNNING:
            return Failure(None, f"in progress: {status.node} is running")
    return None if statuses else Failure(None, "no component has started")


def _absent(folder: Path | None, otherwise: Collection[str]) -> Collection[str]:
    config = folder / "config.json" if folder is not None else None
    if config is None or not config.exists():
        return otherwise
    return json.loads(config.read_text(encoding="utf-8")).get("serving_absent", otherwise)


def _with_the_rest(statuses: Sequence[NodeStatus], folder: Path | None) -> list[NodeStatus]:
    """The components with those that never began, where the run's plan names them."""
    plan = folder / "plan.json" if folder is not None else None
    if plan is None or not plan.exists():
        return list(statuses)
    found = {status.node: status for status in statuses}
    nodes = json.loads(plan.read_text(encoding="utf-8"))
    if not set(found) <= set(nodes):
        # Another run's plan.
        return list(statuses)
    return [found.get(node, NodeStatus(node, State.SKIPPED)) for node in nodes]
