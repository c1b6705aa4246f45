"""Makes pages of a root's runs: on one training, or comparing the newest ones."""

import dataclasses
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import ml_metadata
from ml_metadata.proto import metadata_store_pb2

from tfx_tpu_trainer._support.progress import duration

# Its names are imported on first use, since some need TensorFlow.
from tfx_tpu_trainer.components import report
from tfx_tpu_trainer.components.report import RunData, Section, Table, Verdict
from tfx_tpu_trainer.workbench.history.listing import (
    RunRow,
    changes_text,
    metric_names,
    metric_text,
    read_rows,
    settings_of,
)
from tfx_tpu_trainer.workbench.history.report import Failure, find_artifacts, was_blessed
from tfx_tpu_trainer.workbench.history.summary import failure_of, open_run
from tfx_tpu_trainer.workbench.project import metadata
from tfx_tpu_trainer.workbench.project.config import ConfigError
from tfx_tpu_trainer.workbench.project.metadata import NodeStatus
from tfx_tpu_trainer.workbench.project.roots import (
    CHECKPOINTS,
    Root,
    short_name,
    unfinished_trainings,
)

_EVENT = metadata_store_pb2.Event
_IN = (_EVENT.INPUT, _EVENT.DECLARED_INPUT)
_OUT = (_EVENT.OUTPUT, _EVENT.DECLARED_OUTPUT)
_EXAMPLES, _STATISTICS = "Examples", "ExampleStatistics"


def gather_run(root: Root, name: str | None) -> RunData:
    """Gathers the facts about a run's training."""
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
            return dataclasses.replace(report.gather_folder(stopped), title=f"Run {run}")
        why = f": {failure.message}" if failure else ""
        raise ConfigError(f"run {run} trained no model{why}")
    verdict = None
    if made.blessing is not None:
        verdict = _verdict(store, made.blessing)
    lineage = Provenance(store)
    return report.gather(
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
    """Returns the newest artifact in a folder; `None` if ML Metadata has none."""
    found = store.get_artifacts_by_uri(uri) if uri else []
    return max(found, key=lambda artifact: artifact.id, default=None)


def _stopped_training(root: Root, statuses: Sequence[NodeStatus], failure: Failure) -> str | None:
    """Returns the checkpoint folder of the training that failed a run: TFX removes its artifacts."""
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


def write_report(root: Root, run: str) -> str:
    """Writes a run's page below the root; returns its path."""
    return report.write_page(gather_run(root, run), str(root.report_folder(run)))


def read_report(root: Root, run: str) -> RunData:
    """Returns the content of a run's page: as written at the run's end, or gathered again."""
    try:
        known = report.read_run_data(str(root.report_folder(run)))
    except ValueError:
        known = None
    return known or gather_run(root, run)


def read_runs(root: Root, names: Sequence[str]) -> list[RunData]:
    """Reads trainings' records, without TensorFlow if the runs wrote them."""
    runs, settings = [], []
    for name in names:
        store, run, statuses = open_run(root, name)
        runs.append(dataclasses.replace(_read_run(root, store, run), title=short_name(run)))
        if (found := settings_of(root, run, statuses)) is not None:
            settings.append(found)
    if len(settings) < len(runs):
        return runs
    # By their `run --set` names, with the gate's included.
    return [
        dataclasses.replace(run, lineage=dataclasses.replace(run.lineage, settings=of_run))
        for run, of_run in zip(runs, settings, strict=True)
    ]


def _read_run(root: Root, store: ml_metadata.MetadataStore, run: str) -> RunData:
    try:
        made = find_artifacts(store, run)
        known = made.model_run and report.read_run_data(made.model_run.uri)
    except (FileNotFoundError, ValueError):
        # `gather_run` reports what is missing, or gathers what can't be read.
        known = None
    return known or gather_run(root, run)


def last_trained(root: Root, count: int) -> list[str]:
    """Returns the newest runs with a trained model, the newest last."""
    store = root.store()
    found: list[str] = []
    for name in reversed(metadata.run_names(store)):
        if len(found) < count and _has_model(store, name):
            found.append(name)
    if len(found) < count:
        raise ConfigError(
            f"{str(root.folder)!r} has {len(found)} run{'s' * (len(found) != 1)} that trained a model, and a "
            f"comparison needs {count}; run the pipeline again"
        )
    return found[::-1]


def _has_model(store: ml_metadata.MetadataStore, run: str) -> bool:
    try:
        return find_artifacts(store, run).model_run is not None
    except FileNotFoundError:
        return False


def history_page(root: Root, *, last: int) -> str:
    """Makes the page of a root's newest runs."""
    store = root.store()
    rows = read_rows(root, store, last=last)
    if not rows:
        raise ConfigError(f"{str(root.folder)!r} has no runs; run the pipeline first")
    runs = read_runs(root, [row.name for row in rows if _has_model(store, row.name)])
    names = metric_names(rows)
    sections = [
        Section(
            title="Runs",
            says=f"{len(rows)} run{'s' * (len(rows) != 1)} of {root.folder}, the newest last.",
            tables={
                "Runs": Table(
                    head=("run", "model", *names, "took", "changed"),
                    rows=tuple(_cells(row, names) for row in rows),
                )
            },
        )
    ]
    # Runs that took the same model from the cache do not differ.
    if len(runs) > 1:
        sections += report.comparison_sections(report.compare(runs))
    return report.render_sections(
        sections,
        title=f"Runs of {_project_name(root)}",
        written=time.time(),
        unread=[line for run in runs for line in run.unread],
    )


def _project_name(root: Root) -> str:
    """Returns a root's name: the root of a project is `<project>/runs`."""
    folder = root.folder
    return folder.parent.name if folder.name == "runs" and folder.parent.name else folder.name


def _cells(row: RunRow, names: Sequence[str]) -> tuple[str, ...]:
    return (
        short_name(row.name),
        row.failure or row.verdict,
        *(metric_text(row, name) for name in names),
        duration(row.seconds),
        changes_text(row, "; "),
    )


class Provenance:
    """Walks from artifacts to the executions that made or read them, and to those executions' artifacts."""

    def __init__(self, store: ml_metadata.MetadataStore) -> None:
        self._store = store

    def run_of(self, artifact: Any) -> str | None:
        """Returns the name of the pipeline run that made an artifact; `None` if there is none."""
        for execution in self._executions([artifact], _OUT):
            for context in self._store.get_contexts_by_execution(execution):
                if context.type == metadata.RUN_CONTEXT:
                    return context.name
        return None

    def statistics_of(self, artifact: Any) -> str | None:
        """Finds the folder of the newest statistics of the raw examples that a model was trained on, if any.

        They are the trainer's input `statistics`; without that, StatisticsGen's output for its `raw_examples`, or for
        the examples from which Transform made its `examples`.
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
