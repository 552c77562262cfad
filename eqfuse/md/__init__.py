"""Molecular dynamics and relaxation with a trained network, on the device."""

import importlib

_MODULES = {"relax": ("Outcome", "relax"), "settings": ("RelaxSettings", "Settings")}
_MODULES |= {"simulation": ("resume", "run")}
__all__ = sorted(name for names in _MODULES.values() for name in names)


def __getattr__(name: str):
    # The command line checks settings before it imports JAX, which takes seconds.
    for module, names in _MODULES.items():
        if name in names:
            value = getattr(importlib.import_module(f"eqfuse.md.{module}"), name)
            globals()[name] = value  # `relax` is also a module
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
