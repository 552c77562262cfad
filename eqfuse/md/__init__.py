"""Molecular dynamics and relaxation with a trained network."""

import importlib

_MODULES = {"relaxation": ("Outcome", "relax"), "settings": ("RelaxSettings", "Settings")}
_MODULES |= {"simulation": ("resume", "run")}
__all__ = sorted(name for names in _MODULES.values() for name in names)


def __getattr__(name: str):
    # The command line checks settings before it imports JAX, which takes seconds.
    for module, names in _MODULES.items():
        if name in names:
            imported = importlib.import_module(f"eqfuse.md.{module}")
            globals().update({n: getattr(imported, n) for n in names})
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
