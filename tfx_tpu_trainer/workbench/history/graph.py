"""Draws a pipeline, declared or run, as a graph in Mermaid or DOT."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_metadata
from ml_metadata.proto import metadata_store_pb2

from tfx_tpu_trainer._support.messages import printable
from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.workbench.history.run_log import GRAPH_FILE
from tfx_tpu_trainer.workbench.history.summary import open_run
from tfx_tpu_trainer.workbench.project.metadata import NodeStatus, State
from tfx_tpu_trainer.workbench.project.roots import Root

_LONGEST_NAME = 36

# State -> mark, border and fill of the box; None for a pipeline that is only declared.
_LOOKS: Mapping[State | None, tuple[str, str, str]] = MappingProxyType(
    {
        None: ("", "#6e7781", "#f6f8fa"),
        State.WAITING: ("·", "#6e7781", "#ffffff"),
        State.RUNNING: ("▸", "#9a6700", "#fff8c5"),
        State.COMPLETE: ("✓", "#1a7f37", "#dafbe1"),
        State.CACHED: ("↺", "#0969da", "#ddf4ff"),
        State.FAILED: ("✗", "#cf222e", "#ffebe9"),
        State.SKIPPED: ("–", "#6e7781", "#ffffff"),
        State.KILLED: ("✗", "#cf222e", "#ffebe9"),
    }
)


@dataclasses.dataclass(frozen=True)
class Edge:
    """The connection of two components, given by their ids."""

    source: str
    target: str
    # Output keys of the source, such as `examples`; none if the target only waits for it.
    keys: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Graph:
    """A pipeline: its components' ids in a valid order, and their connections."""

    name: str
    nodes: tuple[str, ...]
    edges: tuple[Edge, ...] = ()
    # Component -> its status; empty for a pipeline that is only declared.
    statuses: Mapping[str, NodeStatus] = dataclasses.field(default_factory=dict)

    def of_run(self, statuses: Iterable[NodeStatus]) -> Graph:
        """Returns the graph with a run's statuses; components that never began are skipped."""
        found = {status.node: status for status in statuses}
        nodes = (*self.nodes, *(node for node in found if node not in self.nodes))
        return dataclasses.replace(
            self,
            nodes=nodes,
            statuses={node: found.get(node, NodeStatus(node, State.SKIPPED)) for node in nodes},
        )

    def write(self, path: Path) -> None:
        """Writes the graph, without its components' status, whole or not at all."""
        edges = [dataclasses.asdict(edge) for edge in self.edges]
        write_whole(path, json.dumps({"name": self.name, "nodes": self.nodes, "edges": edges}))

    @classmethod
    def read(cls, path: Path) -> Graph | None:
        """Reads a graph; `None` if there is no readable one."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            edges = [Edge(e["source"], e["target"], tuple(e["keys"])) for e in values["edges"]]
            return cls(values["name"], tuple(values["nodes"]), tuple(edges))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def graph_of_pipeline(pipeline: Any) -> Graph:
    """Returns the graph of a declared pipeline."""
    nodes = tuple(component.id for component in pipeline.components)
    edges: dict[tuple[str, str], set[str]] = {}
    for component in pipeline.components:
        for above in component.upstream_nodes:
            edges[above.id, component.id] = set()
        for channel in component.inputs.values():
            # A union has several channels; some, such as a Resolver's, have no key.
            for each in getattr(channel, "channels", [channel]):
                ends = getattr(each, "producer_component_id", ""), component.id
                key = getattr(each, "output_key", None)
                if key and ends in edges:
                    edges[ends].add(key)
    return Graph(pipeline.pipeline_info.pipeline_name, nodes, _edges(edges))


def graph_of_run(root: Root, name: str | None) -> Graph:
    """Returns the graph of a run with its components' statuses."""
    store, run, statuses = open_run(root, name)
    found = {status.node for status in statuses}
    folder = root.log_folder(min((status.started for status in statuses), default=0.0))
    declared = Graph.read(folder / GRAPH_FILE) if folder is not None else None
    if declared is None or not found <= set(declared.nodes):
        # Another program or an older version ran it, or the folder belongs to another run.
        nodes = tuple(status.node for status in statuses)
        declared = Graph("", nodes, _edges_of_run(store, statuses))
    named = dataclasses.replace(declared, name=f"Run {run}")
    return named.of_run(statuses)


def _edges_of_run(
    store: ml_metadata.MetadataStore, statuses: Collection[NodeStatus]
) -> tuple[Edge, ...]:
    """Finds the connections of a run's components by the artifacts that they wrote and read."""
    events = store.get_events_by_execution_ids([status.execution_id for status in statuses])
    nodes = {status.execution_id: status.node for status in statuses}
    written = (metadata_store_pb2.Event.OUTPUT, metadata_store_pb2.Event.DECLARED_OUTPUT)
    made = {
        event.artifact_id: (nodes[event.execution_id], event.path.steps[0].key)
        for event in events
        if event.type in written
    }
    edges: dict[tuple[str, str], set[str]] = {}
    for event in events:
        node = nodes[event.execution_id]
        source, key = made.get(event.artifact_id, (node, ""))
        # A model of an earlier run has no component here.
        if event.type not in written and source != node:
            edges.setdefault((source, node), set()).add(key)
    return _edges(edges)


def _edges(keys: Mapping[tuple[str, str], Iterable[str]]) -> tuple[Edge, ...]:
    return tuple(Edge(*ends, tuple(sorted(found))) for ends, found in sorted(keys.items()))


def to_mermaid(graph: Graph) -> str:
    """Formats a graph as a Mermaid flowchart, which GitHub and editors draw in Markdown."""
    ids = {node: f"n{number}" for number, node in enumerate(graph.nodes)}
    lines = ["flowchart TB"]
    states = {node: status.state for node, status in graph.statuses.items()}
    for node, name in ids.items():
        label = "<br/>".join(map(_mermaid_text, _lines(graph, node)))
        kind = f":::{states[node].value}" if node in states else ""
        lines.append(f'  {name}["{label}"]{kind}')
    lines += [f"  {ids[edge.source]} --> {ids[edge.target]}" for edge in graph.edges]
    for state in dict.fromkeys(states.values()):
        _, border, fill = _LOOKS[state]
        lines.append(f"  classDef {state.value} stroke:{border},fill:{fill},color:#1f2328")
    return "\n".join([*lines, ""])


def to_dot(graph: Graph) -> str:
    """Formats a graph in Graphviz's language."""
    lines = [f"digraph {_dot_text(graph.name)} {{", '  node [shape=box, style="rounded,filled"];']
    for node in graph.nodes:
        status = graph.statuses.get(node)
        _, border, fill = _LOOKS[status.state if status else None]
        # `\n` is Graphviz's own escape, so it is made after backslashes are doubled.
        label = _dot_text("\n".join(_lines(graph, node))).replace("\n", "\\n")
        lines.append(f'  {_dot_text(node)} [label={label}, color="{border}", fillcolor="{fill}"];')
    for edge in graph.edges:
        label = f" [tooltip={_dot_text(', '.join(edge.keys))}]" if edge.keys else ""
        lines.append(f"  {_dot_text(edge.source)} -> {_dot_text(edge.target)}{label};")
    return "\n".join([*lines, "}", ""])


FORMATS: Mapping[str, Callable[[Graph], str]] = MappingProxyType(
    {"mermaid": to_mermaid, "dot": to_dot}
)
"""Name of a format -> the function that writes it."""


def _lines(graph: Graph, node: str) -> Sequence[str]:
    """Returns the lines of a box: the component and its status."""
    name = printable(node)
    name = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
    status = graph.statuses.get(node)
    if status is None:
        return [name]
    seconds = f", {status.seconds:.1f} s" if status.seconds and status.state.ended else ""
    return [name, f"{_LOOKS[status.state][0]} {status.state.value}{seconds}"]


def _mermaid_text(text: str) -> str:
    """Escapes a text for a Mermaid label: its special characters become numeric codes."""
    return "".join(c if c.isalnum() or c in " .,-_" else f"#{ord(c)};" for c in text)


def _dot_text(text: str) -> str:
    # A backslash begins Graphviz's escapes.
    return '"' + printable(text).replace("\\", "\\\\").replace('"', '\\"') + '"'
