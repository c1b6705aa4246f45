"""A pipeline as a graph: its components, what goes from one to another, and where each of them stands in a run.

Made of a declared pipeline here, of a run by `run_graph.py`; drawn by `graph_drawing.py`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.workbench.project.metadata import NodeStatus, State

GRAPH_FILE, PICTURE_FILE = "graph.json", "graph.svg"
"""In a run's folder: its graph, and the picture of it."""


@dataclasses.dataclass(frozen=True)
class Edge:
    """What goes from one component to another.

    Attributes:
        source: Id of the component that makes it.
        target: Id of the component that takes it.
        keys: Output keys of `source`, such as `examples`; none where one only waits for the other.
    """

    source: str
    target: str
    keys: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Graph:
    """A pipeline.

    Attributes:
        name: What it is called.
        nodes: The components' ids, in the order in which they may run.
        edges: What goes between them.
        statuses: Where components stand, by id; empty for a pipeline as it is declared.
        says: Where the run stands, in words; empty where there is none.
    """

    name: str
    nodes: tuple[str, ...]
    edges: tuple[Edge, ...] = ()
    statuses: Mapping[str, NodeStatus] = dataclasses.field(default_factory=dict)
    says: str = ""

    def of_run(self, statuses: Iterable[NodeStatus], *, says: str = "") -> Graph:
        """Returns the graph with where its components stand; those that never began are skipped."""
        found = {status.node: status for status in statuses}
        nodes = (*self.nodes, *(node for node in found if node not in self.nodes))
        return dataclasses.replace(
            self,
            nodes=nodes,
            statuses={node: found.get(node, NodeStatus(node, State.SKIPPED)) for node in nodes},
            says=says,
        )

    def write(self, path: Path) -> None:
        """Writes the graph, without where its components stand, whole or not at all."""
        edges = [dataclasses.asdict(edge) for edge in self.edges]
        write_whole(path, json.dumps({"name": self.name, "nodes": self.nodes, "edges": edges}))

    @classmethod
    def read(cls, path: Path) -> Graph | None:
        """Reads a graph; `None` if there is none, or none that can be understood."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            edges = [Edge(e["source"], e["target"], tuple(e["keys"])) for e in values["edges"]]
            return cls(values["name"], tuple(values["nodes"]), tuple(edges))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def graph_of_pipeline(pipeline: Any) -> Graph:
    """Returns the graph of a declared pipeline."""
    nodes = tuple(component.id for component in pipeline.components)
    edges: dict[tuple[str, str], list[str]] = {}
    for component in pipeline.components:
        for above in component.upstream_nodes:
            edges[above.id, component.id] = []
        for channel in component.inputs.values():
            # A union has several; what a Resolver finds, for one, has no key.
            for each in getattr(channel, "channels", [channel]):
                ends = getattr(each, "producer_component_id", ""), component.id
                key = getattr(each, "output_key", None)
                if key and key not in edges.get(ends, [key]):
                    edges[ends].append(key)
    return Graph(
        pipeline.pipeline_info.pipeline_name,
        nodes,
        tuple(Edge(*ends, tuple(sorted(keys))) for ends, keys in sorted(edges.items())),
    )
