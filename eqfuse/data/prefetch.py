"""Batches made in the background, so that the device does not wait for Python."""

import collections
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

_END = object()
_DEPTH = 2


def prefetched(items: Iterable) -> Iterator:
    """Yield items in their order, made by a thread up to two ahead of their use.

    What the thread raises is raised here, in its place in the order.
    """
    iterator = iter(items)
    with ThreadPoolExecutor(1) as pool:
        waiting = collections.deque(pool.submit(next, iterator, _END) for _ in range(_DEPTH))
        while (item := waiting.popleft().result()) is not _END:
            waiting.append(pool.submit(next, iterator, _END))
            yield item
