"""Reads a pipeline's runs from ML Metadata, for the progress display, the report and the history."""

import dataclasses
import enum
import time
from collections.abc import Collection
from pathlib import Path

import ml_metadata
from ml_metadata.proto import metadata_store_pb2

# TFX's context types in ML Metadata.
RUN_CONTEXT = "pipeline_run"
NODE_CONTEXT = "node"

# Our custom property of a failed execution.
ERROR_PROPERTY = "error"

KILLED = (
    "the run's process ended without reporting a result: it was killed, or its machine went down"
)


class UnreadableError(RuntimeError):
    """A file that can't be opened as ML Metadata, because it is another kind of file or is locked."""


class State(enum.Enum):
    """A component's state in a run."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETE = "complete"
    CACHED = "cached"
    FAILED = "failed"
    SKIPPED = "skipped"
    KILLED = "killed"

    @property
    def ended(self) -> bool:
        """Whether the component's state is final in this run."""
        return self not in (State.WAITING, State.RUNNING)


_STATES = {
    metadata_store_pb2.Execution.NEW: State.RUNNING,
    metadata_store_pb2.Execution.RUNNING: State.RUNNING,
    metadata_store_pb2.Execution.COMPLETE: State.COMPLETE,
    metadata_store_pb2.Execution.CACHED: State.CACHED,
    metadata_store_pb2.Execution.FAILED: State.FAILED,
    # Set by us when its process is gone: TFX's local runner cancels nothing.
    metadata_store_pb2.Execution.CANCELED: State.KILLED,
}


@dataclasses.dataclass(frozen=True)
class NodeStatus:
    """The status of a component in a run."""

    node: str
    state: State = State.WAITING
    # Its duration so far; 0 if it was killed, since the time of that is unknown.
    seconds: float = 0.0
    # Its execution in ML Metadata; None while it waits.
    execution_id: int | None = None
    # Its start, in seconds since 1970; 0 while it waits.
    started: float = 0.0
    error: str | None = None


def open_store(path: str | Path, *, read_only: bool = True) -> ml_metadata.MetadataStore:
    """Opens an SQLite file of ML Metadata."""
    config = metadata_store_pb2.ConnectionConfig()
    config.sqlite.filename_uri = str(path)
    config.sqlite.connection_mode = (
        metadata_store_pb2.SqliteMetadataSourceConfig.READONLY
        if read_only
        else metadata_store_pb2.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
    )
    try:
        return ml_metadata.MetadataStore(config)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UnreadableError(f"{str(path)!r} can't be read as ML Metadata: {reason}") from None


def run_names(store: ml_metadata.MetadataStore) -> list[str]:
    """Returns all runs' names, oldest first."""
    contexts = store.get_contexts_by_type(RUN_CONTEXT)
    return [context.name for context in sorted(contexts, key=lambda context: context.id)]


def newest_run(store: ml_metadata.MetadataStore, *, known: Collection[str] = ()) -> str | None:
    """Returns the name of the newest unknown run; None if there is none."""
    fresh = [name for name in run_names(store) if name not in set(known)]
    return fresh[-1] if fresh else None


def node_statuses(store: ml_metadata.MetadataStore, run: str) -> dict[str, NodeStatus]:
    """Returns a run's components with an execution, by id, in the order of their start."""
    context = store.get_context_by_type_and_name(RUN_CONTEXT, run)
    if context is None:
        return {}
    statuses = {}
    for execution in sorted(
        store.get_executions_by_context(context.id), key=lambda execution: execution.id
    ):
        node = _node_id(store, execution.id)
        statuses[node] = NodeStatus(
            node=node,
            state=_STATES.get(execution.last_known_state, State.RUNNING),
            seconds=_seconds(execution),
            execution_id=execution.id,
            started=execution.create_time_since_epoch / 1000,
            error=execution.custom_properties[ERROR_PROPERTY].string_value or None
            if ERROR_PROPERTY in execution.custom_properties
            else None,
        )
    return statuses


def outputs(
    store: ml_metadata.MetadataStore, execution_id: int | None
) -> dict[str, metadata_store_pb2.Artifact]:
    """Returns the first output artifact of each key of an execution; for a cached one, the reused artifacts."""
    if execution_id is None:
        return {}
    events = [
        event
        for event in store.get_events_by_execution_ids([execution_id])
        if event.type in (metadata_store_pb2.Event.OUTPUT, metadata_store_pb2.Event.DECLARED_OUTPUT)
    ]
    artifacts = {
        a.id: a for a in store.get_artifacts_by_id([event.artifact_id for event in events])
    }
    found: dict[str, metadata_store_pb2.Artifact] = {}
    for event in events:
        found.setdefault(event.path.steps[0].key, artifacts[event.artifact_id])
    return found


def fail_unfinished(store: ml_metadata.MetadataStore, run: str, error: str) -> str | None:
    """Marks the component at which a run broke off as failed, with the reason.

    TFX records a failed executor, without a reason, and leaves a component whose driver failed as
    running forever.
    """
    failed = None
    for node, status in node_statuses(store, run).items():
        if status.state not in (State.RUNNING, State.FAILED):
            continue
        (execution,) = store.get_executions_by_id([status.execution_id])
        execution.last_known_state = metadata_store_pb2.Execution.FAILED
        execution.custom_properties[ERROR_PROPERTY].string_value = error
        store.put_executions([execution])
        failed = node
    return failed


def mark_killed(store: ml_metadata.MetadataStore) -> None:
    """Marks components as killed that a killed run left as running."""
    states = (metadata_store_pb2.Execution.NEW, metadata_store_pb2.Execution.RUNNING)
    names = " OR ".join(
        f"last_known_state = {metadata_store_pb2.Execution.State.Name(state)}" for state in states
    )
    left = store.get_executions(list_options=ml_metadata.ListOptions(filter_query=names))
    for execution in left:
        execution.last_known_state = metadata_store_pb2.Execution.CANCELED
        execution.custom_properties[ERROR_PROPERTY].string_value = KILLED
    if left:
        store.put_executions(left)


def killed_if_running(status: NodeStatus) -> NodeStatus:
    """Returns a component's status in a run whose process is gone."""
    if status.state is not State.RUNNING:
        return status
    return dataclasses.replace(status, state=State.KILLED, seconds=0.0, error=KILLED)


def _node_id(store: ml_metadata.MetadataStore, execution_id: int) -> str:
    """Returns the component's id; TFX names the node's context `<pipeline>.<id>`."""
    node_type = store.get_context_type(NODE_CONTEXT).id
    names = [
        c.name for c in store.get_contexts_by_execution(execution_id) if c.type_id == node_type
    ]
    return names[0].split(".", 1)[-1] if names else f"execution {execution_id}"


def _seconds(execution: metadata_store_pb2.Execution) -> float:
    state = _STATES.get(execution.last_known_state, State.RUNNING)
    if state is State.KILLED:
        return 0.0
    end = execution.last_update_time_since_epoch if state.ended else time.time() * 1000
    return max(0.0, (end - execution.create_time_since_epoch) / 1000)
