"""Batches made in the background, so that the device does not wait for Python."""

import collections
import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

_END = object()


def prefetched(items: Iterable, depth: int = 2) -> Iterator:
    """Yield items in their order, made by a thread up to `depth` ahead of their use.

    What the thread raises is raised here, in its place in the order.
    """
    iterator = iter(items)
    with ThreadPoolExecutor(1) as pool:
        waiting = collections.deque(
            pool.submit(next, iterator, _END) for _ in itertools.repeat(None, depth)
        )
        while (item := waiting.popleft().result()) is not _END:
            waiting.append(pool.submit(next, iterator, _END))
            yield item
