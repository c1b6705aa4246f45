"""The graph of a pipeline's run: what the run has written down, or what ML Metadata tells of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import ml_metadata
from ml_metadata.proto import metadata_store_pb2

from tfx_tpu_trainer.workbench.history.graph import GRAPH_FILE, Edge, Graph
from tfx_tpu_trainer.workbench.history.history import in_words, seen_from_outside
from tfx_tpu_trainer.workbench.history.show import find_run
from tfx_tpu_trainer.workbench.project import metadata
from tfx_tpu_trainer.workbench.project.config import ConfigError
from tfx_tpu_trainer.workbench.project.metadata import NodeStatus
from tfx_tpu_trainer.workbench.project.roots import Root


def graph_of_run(root: Root, name: str | None) -> Graph:
    """Returns the graph of a run, with where each of its components stands."""
    store = root.store()
    try:
        run = find_run(metadata.run_names(store), name, root)
    except metadata.UnreadableError as error:
        raise ConfigError(f"{error}; give the root of a pipeline's runs with --root") from None
    found = metadata.node_statuses(store, run)
    statuses = seen_from_outside(found.values(), root.folder)
    folder = root.log_folder(min((status.started for status in statuses), default=0.0))
    declared = Graph.read(folder / GRAPH_FILE) if folder is not None else None
    if declared is None or not set(found) <= set(declared.nodes):
        # It was run by another program or an older version, or the folder is another run's.
        declared = Graph("", tuple(found), tuple(_edges(store, found.values())))
    named = dataclasses.replace(declared, name=f"Run {run}")
    return named.of_run(statuses, says=in_words(statuses))


def _edges(store: ml_metadata.MetadataStore, statuses: Collection[NodeStatus]) -> Sequence[Edge]:
    """Finds what went between the components of a run by the artifacts that they wrote and read."""
    events = store.get_events_by_execution_ids([status.execution_id for status in statuses])
    nodes = {status.execution_id: status.node for status in statuses}
    made: dict[int, tuple[str, str]] = {}
    taken: list[tuple[int, str]] = []
    for event in events:
        node = nodes[event.execution_id]
        if event.type in (
            metadata_store_pb2.Event.OUTPUT,
            metadata_store_pb2.Event.DECLARED_OUTPUT,
        ):
            made[event.artifact_id] = (node, event.path.steps[0].key)
        else:
            taken.append((event.artifact_id, node))
    edges: dict[tuple[str, str], set[str]] = {}
    for artifact, node in taken:
        source, key = made.get(artifact, (node, ""))
        # A model of an earlier run has no component here.
        if source != node:
            edges.setdefault((source, node), set()).add(key)
    return [Edge(*ends, tuple(sorted(keys))) for ends, keys in sorted(edges.items())]
