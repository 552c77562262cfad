"""Equivariant interatomic potentials in JAX with fused tensor products."""

__version__ = "0.1.0"
