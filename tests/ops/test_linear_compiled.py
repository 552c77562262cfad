"""Kernels of Linear compile for the GPUs that they are meant for and do not spill.

Other cases, and tables of their resources: `python -m benchmarks.kernels`.
"""

import dataclasses

import e3nn_jax as e3nn
import pytest

from benchmarks.fused_cases import mixing_kernels

pytest.importorskip("triton", reason="triton, which compiles the kernels, is not installed")


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("num_sets", [0, 3])
def test_kernels_of_linear_compile_without_spilling(num_sets, target):
    from eqfuse.ops.triton.runtime.compile import compile_kernel

    for spec in mixing_kernels(e3nn.Irreps("64x0e+64x1o+64x2e"), num_sets, "float32"):
        assert compile_kernel(spec, target).spilled_bytes == 0


def test_kernels_of_linear_load_several_elements_at_once():
    """Triton's coalescing halves their loads."""
    from eqfuse.ops.triton.runtime.compile import compile_kernel

    for spec in mixing_kernels(e3nn.Irreps("64x0e+64x1o+64x2e"), 1, "float32"):
        one_at_once = compile_kernel(dataclasses.replace(spec, coalesce=False), "sm_90")
        several = compile_kernel(spec, "sm_90")
        assert several.assembly.count("ld.global") <= 0.6 * one_at_once.assembly.count("ld.global")
        assert several.registers <= one_at_once.registers
