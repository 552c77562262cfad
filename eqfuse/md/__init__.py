"""Molecular dynamics and relaxation with a trained network."""

import importlib

_MODULES = {"Outcome": "relaxation", "relax": "relaxation", "run": "simulation"}
_MODULES |= {"resume": "simulation", "RelaxSettings": "settings", "Settings": "settings"}
__all__ = sorted(_MODULES)


def __getattr__(name: str):
    # The command line checks settings before it imports JAX, which takes seconds.
    if name in _MODULES:
        return getattr(importlib.import_module(f"eqfuse.md.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
