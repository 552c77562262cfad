"""Names of a package that are imported when they are first read: commands start without JAX."""

import importlib
from collections.abc import Callable


def late(package: str, places: dict[str, str]) -> tuple[list[str], Callable, Callable]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package whose names other modules have.

    Args:
      package: its name.
      places: the names in each module, such as {"eqfuse.train.main": "fit"}; none may be called as
        a module of the package, which its import would put in place of the name.
    """
    module_of = {name: module for module, names in places.items() for name in names.split()}

    def read(name: str):
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module_of[name]), name)

    return [*module_of], read, lambda: sorted(module_of)
