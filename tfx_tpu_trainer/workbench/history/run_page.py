"""The page of a pipeline's run: what its training has left behind, with what the gate said."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import ml_metadata

from tfx_tpu_trainer.components.report import RunData, Verdict, gather, gather_folder
from tfx_tpu_trainer.workbench.history.checkpoints import CHECKPOINTS, unfinished_trainings
from tfx_tpu_trainer.workbench.history.history import find_run, seen_from_outside
from tfx_tpu_trainer.workbench.history.lineage import Lineage
from tfx_tpu_trainer.workbench.history.report import Failure, find_artifacts, was_blessed
from tfx_tpu_trainer.workbench.history.show import failure_of
from tfx_tpu_trainer.workbench.project import metadata
from tfx_tpu_trainer.workbench.project.config import ConfigError
from tfx_tpu_trainer.workbench.project.metadata import NodeStatus
from tfx_tpu_trainer.workbench.project.roots import Root


def gather_run(root: Root, name: str | None) -> RunData:
    """Gathers what is known of the training of a run."""
    store = root.store()
    run = find_run(metadata.run_names(store), name, root)
    statuses = metadata.node_statuses(store, run)
    failure = failure_of(seen_from_outside(statuses.values(), root.folder))
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
    lineage = Lineage(store)
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
        baseline_run=model and Lineage(store).run_of(model),
        baseline_since=model and model.create_time_since_epoch / 1000,
    )


def _model_at(store: ml_metadata.MetadataStore, uri: str | None) -> Any:
    """Returns the newest artifact in a folder; `None` where ML Metadata knows of none."""
    found = store.get_artifacts_by_uri(uri) if uri else []
    return max(found, key=lambda artifact: artifact.id, default=None)


def _stopped_training(
    root: Root, statuses: Mapping[str, NodeStatus], failure: Failure
) -> str | None:
    """Returns the folder of checkpoints of the training that a run failed in: TFX removes its artifacts."""
    if failure.node is None or failure.node not in statuses:
        return None
    began = statuses[failure.node].started
    trainings = [
        training
        for pipeline in (root.folder / CHECKPOINTS).glob("*/")
        for training in unfinished_trainings(pipeline)
        if training.node == failure.node and training.written >= began
    ]
    return str(trainings[-1].folder) if trainings else None
