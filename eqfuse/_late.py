"""Names of a package that are imported when they are first read: commands start without JAX."""

import importlib
from collections.abc import Callable


def late(package: str, places: dict[str, str]) -> tuple[Callable, Callable]:
    """Return `__getattr__` and `__dir__` of a package whose names other modules have.

    Args:
      package: its name.
      places: the module of each name, such as {"fit": "eqfuse.train.main"}; none may be called as
        one of the names, which it would hide after its import.
    """

    def read(name: str):
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(places[name]), name)

    return read, lambda: sorted(places)
