"""Import e3nn-jax without modules that it names at once and seldom reads: a third of the time.

Each of them is loaded when one of its names is read for the first time.
"""

import importlib
import sys
import types

_LATE = ("e3nn_jax.equinox", "e3nn_jax.haiku", "scipy.signal", "sympy")
_IN_ANNOTATIONS = ("Array", "Expr")  # names of sympy, which are read and not used


class _Late(types.ModuleType):
    """A stand-in that reads the names of a module, which it then imports."""

    def __getattr__(self, name: str):
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)

    def __dir__(self):
        return dir(importlib.import_module(self.__name__))


if "e3nn_jax" not in sys.modules:
    late = {name: _Late(name) for name in _LATE if name not in sys.modules}
    for module in late.values():
        module.__dict__.update(dict.fromkeys(_IN_ANNOTATIONS))
    sys.modules.update(late)
    try:
        import e3nn_jax  # noqa: F401
    finally:
        for name, module in late.items():
            for unread in _IN_ANNOTATIONS:
                delattr(module, unread)
            if sys.modules.get(name) is module:
                del sys.modules[name]
