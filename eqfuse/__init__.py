"""Equivariant interatomic potentials in JAX with fused tensor products."""

import importlib

from eqfuse import _startup

__version__ = "0.2.0"
__all__ = ["Calculator", "Committee", "descriptors", "hessian", "predict"]
_MODULES = {
    "Calculator": "calculator",
    "Committee": "calculator",
    "descriptors": "descriptors",
    "hessian": "calculator",
    "predict": "predict",
}


_startup.silence_cuda_plugin()


def __getattr__(name: str):
    # JAX takes seconds to import: not for `--help`.
    if name in _MODULES:
        module = importlib.import_module(f"eqfuse.inference.{_MODULES[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
