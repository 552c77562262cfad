"""What a bad file is."""

import dataclasses
from collections.abc import Callable

FRAMES = 8
READ, REFUSED, EITHER = "read", "refused", "either"


@dataclasses.dataclass(frozen=True)
class BadFile:
    """A way to make a bad file.

    Attributes:
      make: called with random numbers and a folder that exists; gives the path of the file.
      expected: whether it has to be `READ`, all its frames, or `REFUSED`, or may be `EITHER`.
      settings: that go with it.
    """

    make: Callable
    expected: str
    settings: tuple[str, ...] = ()
