"""Which recorded steps an exported file keeps, the most telling first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence


def in_order_of_use(steps: Sequence[tuple[int, str]], eventful: Iterable[int] = ()) -> list[int]:
    """Recorded steps with their kinds, as they are given up last: every beginning is well spread.

    The ends come first, then steps at which something happened, the last one of each kind, and
    then all, halving the gaps.

    >>> in_order_of_use([(step, "train") for step in range(9)], eventful=[3])
    [8, 0, 3, 4, 2, 6, 1, 5, 7]
    """
    if not steps:
        return []
    known = {step for step, _ in steps}
    of_kinds = {kind: step for step, kind in steps}.values()
    first = [steps[-1][0], steps[0][0], *(step for step in eventful if step in known)]
    return list(dict.fromkeys([*first, *of_kinds, *halved([step for step, _ in steps])]))


def halved(steps: Sequence[int]) -> list[int]:
    """The last, the first, the middle, the middles of the halves, and so on.

    >>> halved([0, 1, 2, 3, 4])
    [4, 0, 2, 1, 3]
    """
    found = [steps[-1], steps[0]]
    gaps = deque([(0, len(steps) - 1)])
    while gaps:
        low, high = gaps.popleft()
        middle = (low + high) // 2
        if middle in (low, high):
            continue
        found.append(steps[middle])
        gaps += [(low, middle), (middle, high)]
    return list(dict.fromkeys(found))
