"""Triton kernels for GPUs: `form`, `linear`, `rows` and `node` write their source.

`compile` and `runtime` compile and launch it. They alone import Triton, and only when a kernel is
wanted, so that eqfuse works on a machine without it.
"""
