"""Triton kernels: `emit` writes their source, `runtime` compiles, interprets and launches it.

Triton is imported by `runtime` alone, and only when a kernel is wanted, so that eqfuse works on a
machine without it.
"""
