"""Lines that report how far a long reading is."""

import sys
import time
from collections.abc import Iterable, Iterator

SECONDS = 5.0
"""Until the first line, and between two."""


def reported(items: Iterable, what: str) -> Iterator:
    """Yield the items; every few seconds, print to stderr how many there were.

    Args:
      items: that take long to come.
      what: has become of them, such as "frames read".
    """
    start = last = time.monotonic()
    count = 0
    for count, item in enumerate(items, start=1):
        now = time.monotonic()
        if now - last >= SECONDS:
            print(f"{count} {what}, {now - start:.0f} s", file=sys.stderr, flush=True)
            last = now
        yield item
    if last > start:
        seconds = time.monotonic() - start
        print(f"{count} {what}, {seconds:.0f} s", file=sys.stderr, flush=True)
