"""Equivariant interatomic potentials in JAX with fused tensor products."""

from eqfuse import _startup

__version__ = "0.1.0"
__all__ = ["Calculator"]


_startup.silence_cuda_plugin()


def __getattr__(name: str):
    # JAX takes seconds to import: not for `--help`.
    if name in __all__:
        from eqfuse.inference import calculator

        return getattr(calculator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
