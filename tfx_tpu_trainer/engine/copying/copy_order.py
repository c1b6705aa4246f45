"""The order of a graph's copies in a function: what changes a variable comes as late as it can."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence


def reads_before_changes(sources: Sequence[Collection[int]], changes: Sequence[bool]) -> list[int]:
    """Orders nodes as a session's graph runs them.

    A function runs the reads and writes of a variable in the order in which its nodes stand; a
    session's graph runs each node as soon as what it waits for is there. So there a value that is
    read after the train_op was made, but does not wait for it, is the one before the step. In the
    order given here it is so in a function too: nodes that change a variable come last among those
    that could come next, and else the order is the model's.

    Args:
        sources: For each node, in the order of their making, the numbers of those it waits for.
        changes: Whether each node changes a variable.

    Returns:
        The numbers of all nodes, each after what it waits for.
    """
    waiting = [len(set(before)) for before in sources]
    readers: list[list[int]] = [[] for _ in sources]
    for number, before in enumerate(sources):
        for source in set(before):
            readers[source].append(number)
    ready = [(changes[number], number) for number, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, number = heapq.heappop(ready)
        order.append(number)
        for reader in readers[number]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (changes[reader], reader))
    return order
