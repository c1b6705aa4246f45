"""The pages of a root's runs: one about the training of a run, one that compares the newest runs."""

import dataclasses
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import ml_metadata
from ml_metadata.proto import metadata_store_pb2

from tfx_tpu_trainer.components.report import (
    RunData,
    Section,
    Table,
    Verdict,
    compare,
    comparison_sections,
    gather,
    gather_folder,
    render_sections,
)
from tfx_tpu_trainer.workbench.history.report import Failure, find_artifacts, was_blessed
from tfx_tpu_trainer.workbench.history.summary import (
    failure_of,
    in_words,
    open_run,
    seen_from_outside,
)
from tfx_tpu_trainer.workbench.project import metadata
from tfx_tpu_trainer.workbench.project.config import ConfigError
from tfx_tpu_trainer.workbench.project.metadata import NodeStatus
from tfx_tpu_trainer.workbench.project.roots import CHECKPOINTS, Root, unfinished_trainings

# A run is named after the microsecond in which it began.
_TO_THE_SECOND = len("2026-11-25T15:45:35")

_EVENT = metadata_store_pb2.Event
_IN = (_EVENT.INPUT, _EVENT.DECLARED_INPUT)
_OUT = (_EVENT.OUTPUT, _EVENT.DECLARED_OUTPUT)
_EXAMPLES, _STATISTICS = "Examples", "ExampleStatistics"


def gather_run(root: Root, name: str | None) -> RunData:
    """Gathers what is known of the training of a run."""
    store, run, statuses = open_run(root, name)
    failure = failure_of(statuses)
    try:
        made = find_artifacts(store, run)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{error}: the results of run {run} have been removed, so it has no page; choose a "
            "newer run"
        ) from None
    if made.model_run is None:
        stopped = failure and _stopped_training(root, statuses, failure)
        if stopped:
            return dataclasses.replace(gather_folder(stopped), title=f"Run {run}")
        why = f": {failure.message}" if failure else ""
        raise ConfigError(f"run {run} trained no model{why}")
    verdict = None
    if made.blessing is not None:
        verdict = _verdict(store, made.blessing)
    lineage = Provenance(store)
    return gather(
        made.model_run.uri,
        title=f"Run {run}",
        model=made.model.uri if made.model else None,
        verdict=verdict,
        statistics=lineage.statistics_of(made.model_run),
        baseline_statistics=lineage.statistics_of(
            _model_at(store, verdict.baseline if verdict else None)
        ),
        stopped=": ".join(filter(None, (failure.node, failure.message))) if failure else None,
    )


def _verdict(store: ml_metadata.MetadataStore, blessing: Any) -> Verdict:
    properties = blessing.custom_properties
    baseline = properties["baseline_model"].string_value or None
    model = _model_at(store, baseline)
    return Verdict(
        blessed=was_blessed(blessing),
        says=properties["verdict"].string_value,
        baseline=baseline,
        since=blessing.create_time_since_epoch / 1000,
        baseline_run=model and Provenance(store).run_of(model),
        baseline_since=model and model.create_time_since_epoch / 1000,
    )


def _model_at(store: ml_metadata.MetadataStore, uri: str | None) -> Any:
    """Returns the newest artifact in a folder; `None` where ML Metadata knows of none."""
    found = store.get_artifacts_by_uri(uri) if uri else []
    return max(found, key=lambda artifact: artifact.id, default=None)


def _stopped_training(root: Root, statuses: Sequence[NodeStatus], failure: Failure) -> str | None:
    """Returns the folder of checkpoints of the training that a run failed in: TFX removes its artifacts."""
    began = next((each.started for each in statuses if each.node == failure.node), None)
    if began is None:
        return None
    trainings = [
        training
        for pipeline in (root.folder / CHECKPOINTS).glob("*/")
        for training in unfinished_trainings(pipeline)
        if training.node == failure.node and training.written >= began
    ]
    return str(trainings[-1].folder) if trainings else None


def history_page(root: Root, *, last: int) -> str:
    """Makes the page of a root's newest runs."""
    store = root.store()
    names = metadata.run_names(store)[-last:]
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
        rows.append((_short(name), in_words(statuses), _verdict_in_words(run), _rows(run)))
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


def _verdict_in_words(run: RunData) -> str:
    if run.stopped is not None:
        return run.stopped
    if run.verdict is None or run.verdict.blessed is None:
        return "not judged"
    return "blessed" if run.verdict.blessed else "not blessed"


def _rows(run: RunData) -> str:
    rows = run.measured and run.measured.num_examples
    return "" if rows is None else f"{rows:,}"


class Provenance:
    """Walks from artifacts to the executions that made or read them, and to those executions' artifacts."""

    def __init__(self, store: ml_metadata.MetadataStore) -> None:
        self._store = store

    def run_of(self, artifact: Any) -> str | None:
        """Returns the name of the pipeline run that has made an artifact; `None` where none has."""
        for execution in self._executions([artifact], _OUT):
            for context in self._store.get_contexts_by_execution(execution):
                if context.type == metadata.RUN_CONTEXT:
                    return context.name
        return None

    def statistics_of(self, artifact: Any) -> str | None:
        """Finds the folder of the newest statistics of the raw examples that a model was trained on, if any.

        They are what the trainer was given as `statistics`; without that, what StatisticsGen has made of its
        `raw_examples`, or of what Transform has made its `examples` of.
        """
        if artifact is None:
            return None
        makers = self._executions([artifact], _OUT)
        inputs = self._artifacts(makers, _IN)
        given = _of_type(inputs, _STATISTICS)
        if not given:
            examples = _of_type(inputs, _EXAMPLES)
            before = _of_type(
                self._artifacts(self._executions(examples, _OUT), _IN),
                _EXAMPLES,
            )
            readers = self._executions([*examples, *before], _IN)
            given = _of_type(self._artifacts(readers, _OUT), _STATISTICS)
        newest = max(given, key=lambda each: each.id, default=None)
        return newest and newest.uri

    def _executions(self, artifacts: Iterable[Any], kinds: Collection[int]) -> list[int]:
        ids = [artifact.id for artifact in artifacts]
        events = self._store.get_events_by_artifact_ids(ids) if ids else []
        return sorted({event.execution_id for event in events if event.type in kinds})

    def _artifacts(self, executions: Collection[int], kinds: Collection[int]) -> list[Any]:
        events = self._store.get_events_by_execution_ids(executions) if executions else []
        ids = sorted({event.artifact_id for event in events if event.type in kinds})
        return list(self._store.get_artifacts_by_id(ids)) if ids else []


def _of_type(artifacts: Iterable[Any], name: str) -> list[Any]:
    return [artifact for artifact in artifacts if artifact.type == name]
