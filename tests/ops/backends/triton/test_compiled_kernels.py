"""Generated kernels compile for the GPUs that they are meant for, without one, and do not spill.

The rest of the cases, and tables of their resources: `python -m benchmarks.products.kernels`.
"""

import dataclasses

import e3nn_jax as e3nn
import pytest

from benchmarks import fused_cases
from benchmarks.gpu.cases import CASES, SH2, Case
from eqfuse.ops.backends.triton import form as plan
from tests.ops import tiers

pytest.importorskip("triton", reason="triton, which compiles the kernels, is not installed")

from eqfuse.ops.backends.triton import node
from eqfuse.ops.backends.triton.compile import compile_kernel

REGISTERS = 65536  # of a processor, for all threads of a program; a thread has 255 at most
LINEAR = e3nn.Irreps("64x0e+64x1o+64x2e")


def of_form(form, dtype="float32", lanes=1):
    return [kernel.spec for kernel in plan.kernels(form, dtype, lanes)]


def product(name, order, dtype="float32", lanes=1):
    return of_form(CASES[name].forms()[order], dtype, lanes)


def wide(mul, dtype):
    """Return kernels of so many channels, whose threads must find their registers."""
    case = Case(f"{mul}x0e+{mul}x1o+{mul}x2e", SH2, "0e+1o+2e")
    return of_form(case.forms()["backward"], dtype)


def rows(name, dtype="float32", **precision):
    """Return the kernels of a fused op over rows."""
    found = fused_cases.kernels(fused_cases.fused(**fused_cases.SPECS[name], **precision), dtype)
    return [*found["forward"], *found["backward"]]


def nodes(name):
    """Return the kernel of the value of a fused op on a graph."""
    return [node.forward(fused_cases.CASES[name], "float32", 2).spec]


def check(specs, target):
    """Compile kernels and return them; those for NVIDIA do not spill."""
    found = [compile_kernel(spec, target) for spec in specs]
    for spec, kernel in zip(specs, found, strict=True):
        assert kernel.entry == spec.name
        assert len(kernel.binary) > 1000
        if target.startswith("sm_"):
            assert kernel.spilled_bytes == 0
            assert 0 < kernel.registers <= 255
            assert kernel.registers * 32 * kernel.num_warps <= REGISTERS
    return found


BY_TARGET = {
    "forward": lambda: product("nequip-32-l2", "forward"),
    "backward": lambda: product("nequip-32-l2", "backward"),
    "Linear": lambda: fused_cases.mixing_kernels(LINEAR[:2], 0, "float32"),
    "nodes": lambda: nodes("nequip-16-l1"),
    "second derivative": lambda: product("nequip-32-l2", "double"),
    "edges side by side": lambda: product("nequip-32-l2", "backward", lanes=8),
    "sets of a Linear": lambda: fused_cases.mixing_kernels(LINEAR, 3, "float32"),
    "many channels of nodes": lambda: nodes("nequip-64-l2"),
    **{
        f"fused {name}": lambda name=name: rows(name)
        for name in ("rows-gate-16-l1", "rows-16-l1", "rows-64-l1")
    },
}


@pytest.mark.parametrize(("name", "target"), tiers.targets([*BY_TARGET][:4], [*BY_TARGET][4:]))
def test_kernels_compile_without_spilling(name, target):
    check(BY_TARGET[name](), target)


ON_H100 = {
    "256 channels": lambda: wide(256, "float32"),
    "512 channels in float64": lambda: wide(512, "float64"),
    "contraction": lambda: product("mace-contraction-l1", "forward"),
    # the first layer of the Tetris network, which has no channels, weights or scalars of y
    **{
        f"{order} in {dtype}": lambda order=order, dtype=dtype: product("tetris-1", order, dtype)
        for dtype in ("float64", "bfloat16", "float16")
        for order in ("forward", "backward", "double")
    },
}
SLOWLY = {
    "contraction backward": lambda: product("mace-contraction-l1", "backward"),
    "contraction double": lambda: product("mace-contraction-l1", "double"),
    # its 2,118 terms spilled in one kernel, which is why it is cut (`plan.TERMS_OF_A_WALK`)
    "largest walk": lambda: product("mixed", "double")[:1],
    "rows in float64": lambda: rows("rows-gate-16-l1", "float64"),
    "rows in bfloat16": lambda: rows("rows-gate-16-l1", "bfloat16"),
}


@pytest.mark.parametrize("name", tiers.slow_unless(ON_H100, *ON_H100, *SLOWLY))
def test_kernels_for_an_h100_do_not_spill(name):
    check((ON_H100 | SLOWLY)[name](), "sm_90")


def test_kernels_of_an_order_are_few():
    counts = [len(product("nequip-32-l2", order)) for order in ("forward", "backward", "double")]
    assert counts == [1, 1, 2]
    counts = [len(product("mace-contraction-l1", o)) for o in ("forward", "backward", "double")]
    assert counts == [1, 1, 4]
    assert [spec.num_warps for spec in product("nequip-32-l2", "backward", lanes=8)] == [8]


def test_all_sums_over_channels_are_one_reduction():
    """The gradient of y has 16 components; each sum of its own would have two barriers."""
    [compiled] = check(product("mace-large", "backward"), "sm_90")
    assert compiled.assembly.count("bar.sync") <= 17


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_kernel_has_more_terms_than_one_may(dtype):
    """The largest contraction has groups of paths that are each too large for one kernel."""
    form = CASES["mace-contraction-l2"].forms()["double"]
    tasks = plan.tasks(form, dtype)
    parts = [[path for group in task.groups for path in group] for task in tasks]
    assert max(sum(len(p.terms) for p in part) for part in parts) <= plan.TERMS[dtype]
    found = [repr(path) for part in parts for path in part]
    assert sorted(found) == sorted(map(repr, form.paths))


def test_kernels_that_share_half_precision_outputs_compile(monkeypatch):
    """Cut finely, they hand sums in float32 to one another."""
    monkeypatch.setitem(plan.TERMS, "bfloat16", 8)
    monkeypatch.setattr(plan, "tasks", plan.tasks.__wrapped__)  # of other limits, if kept
    kernels = plan.kernels.__wrapped__(CASES["tetris-1"].forms()["backward"], "bfloat16")
    assert len(kernels) > 1
    assert {t for k in kernels for t in k.spec.output_types} == {"*fp32"}
    check([kernel.spec for kernel in kernels], "sm_90")


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
    for compiled in check(rows(name, input_precision="tf32x3"), target):
        assert "mma.sync" in compiled.assembly


@pytest.mark.slow
def test_kernels_of_linear_load_several_elements_at_once():
    """Coalesce loads but in fused kernels, whose compile time it would double.

    Elsewhere the pass halves the number of loads.
    """
    for spec in fused_cases.mixing_kernels(LINEAR, 1, "float32"):
        one_at_once = compile_kernel(dataclasses.replace(spec, coalesce=False), "sm_90")
        several = compile_kernel(spec, "sm_90")
        assert several.assembly.count("ld.global") <= 0.6 * one_at_once.assembly.count("ld.global")
        assert several.registers <= one_at_once.registers
    assert not any(spec.coalesce for spec in rows("rows-gate-16-l1"))
