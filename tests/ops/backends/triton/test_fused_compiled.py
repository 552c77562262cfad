"""Fused kernels and those of Linear compile for the GPUs that they are meant for and do not spill.

The rest of the cases, and tables of their resources: `python -m benchmarks.products.kernels`.
"""

import dataclasses

import e3nn_jax as e3nn
import numpy as np
import pytest

from benchmarks.fused_cases import CASES, SPECS, fused, kernels, mixing_kernels
from eqfuse.ops.primitives.choice import Kernels, choose
from tests.ops import tiers

pytest.importorskip("triton", reason="triton, which compiles the kernels, is not installed")

from eqfuse.ops.backends.triton import node
from eqfuse.ops.backends.triton.compile import compile_kernel


def fused_kernels(name, dtype):
    found = kernels(CASES[name], dtype)
    return [*found["forward"], *found["backward"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "target"),
    tiers.targets(["rows-gate-16-l1", "rows-16-l1", "rows-64-l1"]),
)
def test_fused_kernels_compile_without_spilling(case, target):
    for spec in fused_kernels(case, "float32"):
        compiled = compile_kernel(spec, target)
        assert compiled.entry == spec.name
        assert compiled.spilled_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("allegro-64-l2", "sm_90"),
        pytest.param(
            "allegro-64-l2",
            "sm_80",
            marks=pytest.mark.xfail(strict=True, reason="its backward spills 72 bytes"),
        ),
        ("rows-64-l1", "sm_90"),
        ("rows-64-l1", "sm_80"),
    ],
)
def test_matmuls_of_tf32_leave_registers_for_the_product(name, target):
    """In the precision of training; the backward sums 26 components, in 4 elements of a thread."""
    specs = kernels(fused(**SPECS[name], input_precision="tf32x3"), "float32")
    for spec in (*specs["forward"], *specs["backward"]):
        compiled = compile_kernel(spec, target)
        assert "mma.sync" in compiled.assembly
        assert compiled.spilled_bytes == 0


def test_the_widest_case_is_refused_where_matmuls_hold_their_factors():
    """In float32 its forward kernel would spill 16 kB of each thread."""
    message = "fused='always' cannot be done here: in float32, .* 224 factors of matmuls"
    rows = 1000, 10, "triton"
    with pytest.raises(ValueError, match=message):
        choose("always", CASES["allegro-128-l3"], *rows, np.dtype("float32"))
    tf32 = fused(**SPECS["allegro-128-l3"], input_precision="tf32x3")
    assert choose("always", tf32, *rows, np.dtype("float32")).kernels is Kernels.ROWS
    assert choose("auto", tf32, *rows, np.dtype("float32")).kernels is Kernels.APART


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_dtypes_compile_without_spilling(dtype):
    for spec in fused_kernels("rows-gate-16-l1", dtype):
        assert compile_kernel(spec, "sm_90").spilled_bytes == 0


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
    assert not any(spec.coalesce for spec in fused_kernels("rows-gate-16-l1", "float32"))


@pytest.mark.parametrize(("case", "target"), tiers.targets(["nequip-16-l1"], ["nequip-64-l2"]))
def test_kernels_of_nodes_compile_without_spilling(case, target):
    fused = CASES[case]
    given = (True,) + (False,) * (len(fused.sizes) - 1)
    specs = [
        node.forward(fused, "float32", 2),
        node.backward(fused.epilogue, given, "float32", 2),
    ]
    for kernel in specs:
        assert compile_kernel(kernel.spec, target).spilled_bytes == 0
