"""A pipeline's graph as a picture: SVG for people, Mermaid for Markdown, DOT for Graphviz."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from xml.etree import ElementTree

from tfx_tpu_trainer._support.printable import printable
from tfx_tpu_trainer.workbench.history.graph import Edge, Graph
from tfx_tpu_trainer.workbench.history.graph_layout import Layout, arrange
from tfx_tpu_trainer.workbench.project.metadata import NodeStatus, State

_MARKS: Mapping[State, str] = MappingProxyType(
    {
        State.WAITING: "·",
        State.RUNNING: "▸",
        State.COMPLETE: "✓",
        State.CACHED: "↺",
        State.FAILED: "✗",
        State.SKIPPED: "–",
        State.KILLED: "✗",
    }
)
# Border and filling, on light and on dark. A state is a word and a mark too: no colour says anything alone.
_COLOURS: Mapping[str, tuple[str, str, str, str]] = MappingProxyType(
    {
        "plain": ("#6e7781", "#f6f8fa", "#8b949e", "#21262d"),
        "complete": ("#1a7f37", "#dafbe1", "#3fb950", "#12321c"),
        "cached": ("#0969da", "#ddf4ff", "#58a6ff", "#10273f"),
        "failed": ("#cf222e", "#ffebe9", "#ff7b72", "#41151a"),
        "running": ("#9a6700", "#fff8c5", "#d29922", "#332a10"),
        "skipped": ("#6e7781", "#ffffff", "#8b949e", "#0d1117"),
    }
)
_KINDS: Mapping[State, str] = MappingProxyType(
    {
        State.WAITING: "skipped",
        State.RUNNING: "running",
        State.COMPLETE: "complete",
        State.CACHED: "cached",
        State.FAILED: "failed",
        State.SKIPPED: "skipped",
        State.KILLED: "failed",
    }
)

_CHARACTER, _PADDING, _LEAST_WIDTH = 8.0, 16.0, 120.0
_BOX_HEIGHT, _ROW_GAP, _COLUMN_GAP, _MARGIN = 46.0, 40.0, 28.0, 12.0
_HEADER = 46.0
_LONGEST_NAME, _LONGEST_ERROR = 36, 300


_STYLE = """\
text{font:13px system-ui,sans-serif;fill:#1f2328}.name{font-weight:600}.says{font-size:12px}.says,.of{fill:#59636e}
.edge{fill:none;stroke:#6e7781;stroke-width:1.5}.head{fill:#6e7781}.paper{fill:#ffffff}
.box{stroke-width:1.5}.skipped{stroke-dasharray:4 3}
"""
_STYLE_IN_THE_DARK = """\
text{fill:#f0f6fc}.says,.of{fill:#b1bac4}.edge{stroke:#8b949e}.head{fill:#8b949e}.paper{fill:#0d1117}
"""


def _style() -> str:
    light = [f".{k}{{stroke:{line};fill:{fill}}}" for k, (line, fill, _, _) in _COLOURS.items()]
    dark = [f".{k}{{stroke:{line};fill:{fill}}}" for k, (_, _, line, fill) in _COLOURS.items()]
    in_the_dark = f"{_STYLE_IN_THE_DARK}{''.join(dark)}"
    return f"{_STYLE}{''.join(light)}\n@media(prefers-color-scheme:dark){{{in_the_dark}}}"


def to_svg(graph: Graph) -> str:
    """Draws a graph as SVG, without scripts, for light and dark displays."""
    widths = {
        node: max(
            _LEAST_WIDTH, 2 * _PADDING + _CHARACTER * max(map(len, _lines(graph, node)), default=0)
        )
        for node in graph.nodes
    }
    layout = arrange(widths, [(e.source, e.target) for e in graph.edges], gap=_COLUMN_GAP)
    title_width = _CHARACTER * max(len(_short(graph.name)), len(graph.says))
    width = max(layout.width, title_width) + 2 * _MARGIN
    height = _HEADER + layout.height * (_BOX_HEIGHT + _ROW_GAP) - _ROW_GAP + 2 * _MARGIN
    svg = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {width:.0f} {max(height, _HEADER + _MARGIN):.0f}",
            "width": f"{width:.0f}",
            "role": "img",
            "aria-labelledby": "graph-title graph-description",
        },
    )
    _add(svg, "title", graph.name, id="graph-title")
    _add(svg, "desc", describe(graph), id="graph-description")
    _add(svg, "style", _style())
    _add(svg, "rect", "", {"class": "paper"}, width="100%", height="100%")
    _add(svg, "text", _short(graph.name), {"class": "name"}, x=_MARGIN, y=_MARGIN + 13)
    _add(svg, "text", graph.says, {"class": "says"}, x=_MARGIN, y=_MARGIN + 31)
    drawing = _add(svg, "g", transform=f"translate({_MARGIN:g} {_HEADER + _MARGIN:g})")
    shift = (width - 2 * _MARGIN - layout.width) / 2
    for edge in graph.edges:
        _draw_edge(drawing, edge, layout, shift)
    for node in graph.nodes:
        _draw_box(drawing, graph, node, layout, widths[node], shift)
    ElementTree.indent(svg)
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


def describe(graph: Graph) -> str:
    """Says in sentences what a picture of a graph shows."""
    sentences = [f"{graph.says}."] if graph.says else []
    for node in graph.nodes:
        status = graph.statuses.get(node)
        state = f" ({_state(status)})" if status else ""
        to = [
            f"{edge.target}{_joined(edge.keys, ': ')}"
            for edge in graph.edges
            if edge.source == node
        ]
        sentences.append(f"{node}{state}{' goes to ' + '; '.join(to) if to else ''}.")
    return printable(" ".join(sentences))


def to_mermaid(graph: Graph) -> str:
    """Writes a graph as a Mermaid flowchart, which Markdown on GitHub and others shows as a picture."""
    ids = {node: f"n{number}" for number, node in enumerate(graph.nodes)}
    lines = ["flowchart TB"]
    for node, name in ids.items():
        label = "<br/>".join(map(_mermaid_text, _lines(graph, node)))
        kind = f":::{_kind(graph, node)}" if graph.statuses else ""
        lines.append(f'  {name}["{label}"]{kind}')
    for edge in graph.edges:
        lines.append(f"  {ids[edge.source]} --> {ids[edge.target]}")
    if graph.statuses:
        for kind in dict.fromkeys(_kind(graph, node) for node in graph.nodes):
            border, filling, *_ = _COLOURS[kind]
            lines.append(f"  classDef {kind} stroke:{border},fill:{filling},color:#1f2328")
    return "\n".join([*lines, ""])


def to_dot(graph: Graph) -> str:
    """Writes a graph in Graphviz's language."""
    lines = [f"digraph {_dot_text(graph.name)} {{", '  node [shape=box, style="rounded,filled"];']
    for node in graph.nodes:
        border, filling, *_ = _COLOURS[_kind(graph, node)]
        # Two backslashes would be a backslash: this one ends a line.
        label = _dot_text("\n".join(_lines(graph, node))).replace("\n", "\\n")
        lines.append(
            f'  {_dot_text(node)} [label={label}, color="{border}", fillcolor="{filling}"];'
        )
    for edge in graph.edges:
        label = f" [tooltip={_dot_text(', '.join(edge.keys))}]" if edge.keys else ""
        lines.append(f"  {_dot_text(edge.source)} -> {_dot_text(edge.target)}{label};")
    return "\n".join([*lines, "}", ""])


FORMATS: Mapping[str, Callable[[Graph], str]] = MappingProxyType(
    {"svg": to_svg, "mermaid": to_mermaid, "dot": to_dot}
)
"""Name of a format -> the function that writes it."""


def _lines(graph: Graph, node: str) -> list[str]:
    status = graph.statuses.get(node)
    name = _short(printable(node))
    return [name] if status is None else [name, f"{_MARKS[status.state]} {_state(status)}"]


def _state(status: NodeStatus) -> str:
    seconds = f", {status.seconds:.1f} s" if status.seconds and status.state.ended else ""
    return f"{status.state.value}{seconds}"


def _kind(graph: Graph, node: str) -> str:
    status = graph.statuses.get(node)
    return "plain" if status is None else _KINDS[status.state]


def _short(text: str) -> str:
    text = printable(text)
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"


def _joined(keys: Sequence[str], before: str) -> str:
    return f"{before}{', '.join(keys)}" if keys else ""


def _add(
    parent: ElementTree.Element,
    tag: str,
    text: str = "",
    more: Mapping[str, str] = MappingProxyType({}),
    **attributes: str | float,
) -> ElementTree.Element:
    """Adds an element; its text is escaped when it is written."""
    values = {name: f"{v:g}" if isinstance(v, float) else v for name, v in attributes.items()}
    element = ElementTree.SubElement(parent, tag, {**more, **values})
    # XML knows no control characters, however they are written.
    element.text = printable(text) or None
    return element


def _draw_edge(drawing: ElementTree.Element, edge: Edge, layout: Layout, shift: float) -> None:
    row = layout.rows[edge.source]
    points = [
        (x + shift, (row + i) * (_BOX_HEIGHT + _ROW_GAP))
        for i, x in enumerate(layout.lines[edge.source, edge.target])
    ]
    parts = [f"M{points[0][0]:.1f} {points[0][1] + _BOX_HEIGHT:.1f}"]
    for number, ((x0, y0), (x1, y1)) in enumerate(itertools.pairwise(points)):
        if number:
            parts.append(f"L{x0:.1f} {y0 + _BOX_HEIGHT:.1f}")
        middle = (y0 + _BOX_HEIGHT + y1) / 2
        parts.append(f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}")
    group = _add(drawing, "g")
    _add(group, "title", f"{edge.source} to {edge.target}{_joined(edge.keys, ': ')}")
    _add(group, "path", "", {"class": "edge"}, d="".join(parts))
    x, y = points[-1]
    _add(group, "path", "", {"class": "head"}, d=f"M{x:.1f} {y:.1f}l-4.5 -8h9z")


def _draw_box(
    drawing: ElementTree.Element,
    graph: Graph,
    node: str,
    layout: Layout,
    width: float,
    shift: float,
) -> None:
    status = graph.statuses.get(node)
    center, top = layout.centers[node] + shift, layout.rows[node] * (_BOX_HEIGHT + _ROW_GAP)
    group = _add(drawing, "g", transform=f"translate({center - width / 2:.1f} {top:.1f})")
    told = [node, *([_state(status)] if status else [])]
    if status and status.error:
        told.append(status.error[:_LONGEST_ERROR])
    _add(group, "title", ": ".join(told))
    _add(
        group,
        "rect",
        "",
        {"class": f"box {_kind(graph, node)}"},
        width=width,
        height=_BOX_HEIGHT,
        rx=6.0,
    )
    lines = _lines(graph, node)
    for number, line in enumerate(lines):
        y = 28.0 if len(lines) == 1 else 19.0 + 18 * number
        kind = "of" if number else "name"
        _add(group, "text", line, {"class": kind, "text-anchor": "middle"}, x=width / 2, y=y)


def _mermaid_text(text: str) -> str:
    """Returns a text as Mermaid shows it in quotes: marks that mean something to it are numbers there."""
    return "".join(c if c.isalnum() or c in " .,-_" else f"#{ord(c)};" for c in text)


def _dot_text(text: str) -> str:
    # Backslashes begin Graphviz's own escapes.
    return '"' + printable(text).replace("\\", "\\\\").replace('"', '\\"') + '"'
