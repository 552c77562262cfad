"""Fused kernels and those of Linear compile for the GPUs that they are meant for and do not spill.

The rest of the cases, and tables of their resources: `python -m benchmarks.products.kernels`.
"""

import dataclasses

import e3nn_jax as e3nn
import pytest

from benchmarks.fused_cases import CASES, mixing_kernels
from tests.ops import tiers

pytest.importorskip("triton", reason="triton, which compiles the kernels, is not installed")

from eqfuse.ops.backends.triton import node
from eqfuse.ops.backends.triton.compile import compile_kernel


@pytest.mark.parametrize(("num_sets", "target"), tiers.targets([0], [3]))
def test_kernels_of_linear_compile_without_spilling(num_sets, target):
    for spec in mixing_kernels(e3nn.Irreps("64x0e+64x1o+64x2e"), num_sets, "float32"):
        assert compile_kernel(spec, target).spilled_bytes == 0


@pytest.mark.slow
def test_kernels_of_linear_load_several_elements_at_once():
    """Coalesce loads but in fused kernels, whose compile time it would double.

    Elsewhere the pass halves the number of loads.
    """
    for spec in mixing_kernels(e3nn.Irreps("64x0e+64x1o+64x2e"), 1, "float32"):
        one_at_once = compile_kernel(dataclasses.replace(spec, coalesce=False), "sm_90")
        several = compile_kernel(spec, "sm_90")
        assert several.assembly.count("ld.global") <= 0.6 * one_at_once.assembly.count("ld.global")
        assert several.registers <= one_at_once.registers


@pytest.mark.parametrize(("case", "target"), tiers.targets(["nequip-16-l1"], ["nequip-64-l2"]))
def test_kernels_of_nodes_compile_without_spilling(case, target):
    spec, _ = node.generate(CASES[case], "float32", 2)
    assert compile_kernel(spec, target).spilled_bytes == 0
