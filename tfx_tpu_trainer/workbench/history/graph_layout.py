"""Where the boxes and lines of a graph stand: in rows, from what comes first to what comes last.

Graphviz is a program that pip does not install, the wheels that carry it are a few months old, and Mermaid needs a
browser. A pipeline has a dozen components and no cycle, so the usual method for such graphs (Sugiyama, Tagawa and
Toda, "Methods for Visual Understanding of Hierarchical System Structures", 1981) is short here: rows by the longest
way from the start, an order within a row by the means of its neighbours, and places as near to these means as the
boxes let.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

_SWEEPS = 12
_LINE_WIDTH = 16.0


@dataclasses.dataclass(frozen=True)
class Layout:
    """Places of a graph's nodes and lines.

    Attributes:
        centers: Node -> how far the middle of its box is from the left.
        rows: Node -> its row, 0 at the top.
        lines: Source and target -> what the line passes in each row from the source's to the target's: how far
            that is from the left.
        width: Of the whole.
    """

    centers: Mapping[str, float]
    rows: Mapping[str, int]
    lines: Mapping[tuple[str, str], tuple[float, ...]]
    width: float

    @property
    def height(self) -> int:
        """How many rows there are."""
        return max(self.rows.values(), default=-1) + 1


def arrange(widths: Mapping[str, float], edges: Sequence[tuple[str, str]], *, gap: float) -> Layout:
    """Arranges a graph."""
    rows = _rows(widths, edges)
    # A line that passes a row has a place there, as boxes have.
    ways: dict[tuple[str, str], list[object]] = {}
    size: dict[object, float] = dict(widths.items())
    members: list[list[object]] = [[] for _ in range(max(rows.values(), default=-1) + 1)]
    for node in widths:
        members[rows[node]].append(node)
    for source, target in edges:
        between = [(source, target, row) for row in range(rows[source] + 1, rows[target])]
        for place in between:
            size[place] = _LINE_WIDTH
            members[place[2]].append(place)
        ways[source, target] = [source, *between, target]
    links = [pair for way in ways.values() for pair in itertools.pairwise(way)]
    above: dict[object, list[object]] = {place: [] for place in size}
    below: dict[object, list[object]] = {place: [] for place in size}
    for upper, lower in links:
        above[lower].append(upper)
        below[upper].append(lower)
    members = _ordered(members, above, below, links)
    centers = _placed(members, above, below, size, gap)
    left = min((centers[place] - size[place] / 2 for place in size), default=0.0)
    centers = {place: center - left for place, center in centers.items()}
    return Layout(
        centers={node: centers[node] for node in widths},
        rows=rows,
        lines={ends: tuple(centers[place] for place in way) for ends, way in ways.items()},
        width=max((centers[place] + size[place] / 2 for place in size), default=0.0),
    )


def _rows(nodes: Mapping[str, float], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Returns the longest way to each node; one that takes nothing stands right above the first that takes from it."""
    rows = dict.fromkeys(nodes, 0)
    for _ in nodes:
        changed = False
        for source, target in edges:
            if rows[target] <= rows[source]:
                rows[target] = rows[source] + 1
                changed = True
        if not changed:
            break
    if any(rows[target] <= rows[source] for source, target in edges):
        raise ValueError(f"the graph of {list(nodes)} has a cycle")
    targets = {target for _, target in edges}
    for node in rows:
        of_node = [rows[target] for source, target in edges if source == node]
        if node not in targets and of_node:
            rows[node] = min(of_node) - 1
    return rows


def _ordered(
    members: list[list[object]],
    above: Mapping[object, Sequence[object]],
    below: Mapping[object, Sequence[object]],
    links: Sequence[tuple[object, object]],
) -> list[list[object]]:
    """Returns the rows in an order in which few lines cross."""
    best, fewest = members, _crossings(members, links)
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        members = [list(row) for row in members]
        neighbours = above if downwards else below
        for row in members[1:] if downwards else reversed(members[:-1]):
            places = {place: i for each in members for i, place in enumerate(each)}
            means = {
                place: sum(places[n] for n in neighbours[place]) / len(neighbours[place])
                if neighbours[place]
                else places[place]
                for place in row
            }
            row.sort(key=means.__getitem__)
        crossings = _crossings(members, links)
        if crossings < fewest:
            best, fewest = members, crossings
    return best


def _crossings(members: Sequence[Sequence[object]], links: Sequence[tuple[object, object]]) -> int:
    row_of = {place: number for number, row in enumerate(members) for place in row}
    place_of = {place: i for row in members for i, place in enumerate(row)}
    count = 0
    for (a, b), (c, d) in itertools.combinations(links, 2):
        if row_of[a] == row_of[c]:
            count += (place_of[a] - place_of[c]) * (place_of[b] - place_of[d]) < 0
    return count


def _placed(
    members: Sequence[Sequence[object]],
    above: Mapping[object, Sequence[object]],
    below: Mapping[object, Sequence[object]],
    size: Mapping[object, float],
    gap: float,
) -> dict[object, float]:
    """Returns places near the means of the neighbours', in the rows' order and apart from each other."""
    centers: dict[object, float] = {}
    for row in members:
        end = 0.0
        for place in row:
            centers[place] = end + size[place] / 2
            end += size[place] + gap
    for sweep in range(_SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for row in members if sweep % 2 == 0 else reversed(members):
            wanted = [
                sum(centers[n] for n in neighbours[place]) / len(neighbours[place])
                if neighbours[place]
                else centers[place]
                for place in row
            ]
            for place, center in zip(row, _apart(wanted, [size[place] for place in row], gap)):
                centers[place] = center
    return centers


def _apart(wanted: Sequence[float], widths: Sequence[float], gap: float) -> list[float]:
    """Returns centers in the same order that do not overlap, with the least squares from those wanted.

    Boxes that would overlap form a block, which stands where its boxes on average want to (the pool adjacent
    violators algorithm of isotonic regression).
    """
    offsets = [0.0]
    for before, after in itertools.pairwise(widths):
        offsets.append(offsets[-1] + (before + after) / 2 + gap)
    blocks: list[tuple[float, int]] = []
    for center, offset in zip(wanted, offsets):
        mean, count = center - offset, 1
        while blocks and blocks[-1][0] > mean:
            last, of_last = blocks.pop()
            mean, count = (mean * count + last * of_last) / (count + of_last), count + of_last
        blocks.append((mean, count))
    starts = [mean for mean, count in blocks for _ in range(count)]
    return [start + offset for start, offset in zip(starts, offsets)]
