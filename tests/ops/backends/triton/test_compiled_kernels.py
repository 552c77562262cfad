"""Generated kernels compile for the GPUs that they are meant for, without one, and do not spill.

The rest of the cases, and tables of their resources: `python -m benchmarks.products.kernels`.
"""

import pytest

from eqfuse.bench.cases import CASES, SH2, Case
from eqfuse.ops.backends.triton import form as plan
from tests.ops import tiers

pytest.importorskip("triton", reason="triton, which compiles the kernels, is not installed")

from eqfuse.ops.backends.triton.compile import compile_kernel

REGISTERS = 255  # of a thread, on every NVIDIA GPU since 2012


@pytest.mark.parametrize(("order", "target"), tiers.targets(["forward", "backward"], ["double"]))
def test_nequip_compiles_without_spilling(order, target):
    """NequIP with l up to 2 and both parities: one launch, one, and two."""
    kernels = plan.kernels(CASES["nequip-32-l2"].forms()[order], "float32")
    assert len(kernels) == (2 if order == "double" else 1)
    for kernel in kernels:
        compiled = compile_kernel(kernel.spec, target)
        assert compiled.entry == kernel.spec.name
        assert 0 < compiled.registers <= REGISTERS or target == "gfx942"
        assert len(compiled.binary or compiled.assembly) > 1000
        if target.startswith("sm_"):
            assert compiled.spilled_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize(("order", "target"), tiers.targets(["backward"]))
def test_edges_side_by_side_do_not_spill(order, target):
    """Eight warps have an edge each, of 32 channels."""
    [kernel] = plan.kernels(CASES["nequip-32-l2"].forms()[order], "float32", 8)
    assert kernel.spec.num_warps == 8
    assert compile_kernel(kernel.spec, target).spilled_bytes == 0 or target == "gfx942"


def test_all_sums_over_channels_are_one_reduction():
    """The gradient of y has 16 components; each sum of its own would have two barriers."""
    [kernel] = plan.kernels(CASES["mace-large"].forms()["backward"], "float32")
    compiled = compile_kernel(kernel.spec, "sm_90")
    assert compiled.spilled_bytes == 0
    assert compiled.assembly.count("bar.sync") <= 17


@pytest.mark.slow
def test_the_largest_walk_does_not_spill():
    """Its 2,118 terms did in one kernel, which is why it is cut (`plan.TERMS_OF_A_WALK`)."""
    first, *_ = plan.kernels(CASES["mixed"].forms()["double"], "float32")
    assert compile_kernel(first.spec, "sm_90").spilled_bytes == 0


@pytest.mark.parametrize(("mul", "dtype"), [(256, "float32"), (512, "float64")])
def test_threads_of_many_channels_find_their_registers(mul, dtype):
    """All threads of a program run on one processor, which has 65,536 registers."""
    irreps = f"{mul}x0e+{mul}x1o+{mul}x2e"
    for kernel in plan.kernels(Case(irreps, SH2, "0e+1o+2e").forms()["backward"], dtype):
        compiled = compile_kernel(kernel.spec, "sm_90")
        assert compiled.registers * 32 * kernel.spec.num_warps <= 65536
        assert compiled.spilled_bytes == 0


@pytest.mark.parametrize(
    ("order", "terms", "count"),
    [
        ("forward", 500, 1),
        pytest.param("backward", 1712, 1, marks=pytest.mark.slow),
        pytest.param("double", 6261, 4, marks=pytest.mark.slow),
    ],
)
def test_a_contraction_compiles_without_spilling(order, terms, count):
    """Three factors up to l = 3 in MACE with vector features."""
    form = CASES["mace-contraction-l1"].forms()[order]
    kernels = plan.kernels(form, "float32")
    assert (form.num_terms, len(kernels)) == (terms, count)
    for kernel in kernels:
        assert compile_kernel(kernel.spec, "sm_90").spilled_bytes == 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_kernel_has_more_terms_than_one_may(dtype):
    """The largest contraction has groups of paths that are each too large for one kernel."""
    form = CASES["mace-contraction-l2"].forms()["double"]
    tasks = plan.tasks(form, dtype)
    parts = [[path for group in task.groups for path in group] for task in tasks]
    assert max(sum(len(p.terms) for p in part) for part in parts) <= plan.TERMS[dtype]
    found = [repr(path) for part in parts for path in part]
    assert sorted(found) == sorted(map(repr, form.paths))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("order", ["forward", "backward", "double"])
def test_other_dtypes_compile_without_spilling(order, dtype):
    """The first layer of the Tetris network, which has no channels, weights or scalars of y."""
    for kernel in plan.kernels(CASES["tetris-1"].forms()[order], dtype):
        assert compile_kernel(kernel.spec, "sm_90").spilled_bytes == 0


def test_kernels_that_share_half_precision_outputs_compile(monkeypatch):
    """Cut finely, they hand sums in float32 to one another."""
    monkeypatch.setitem(plan.TERMS, "bfloat16", 8)
    monkeypatch.setattr(plan, "tasks", plan.tasks.__wrapped__)  # of other limits, if kept
    form = CASES["tetris-1"].forms()["backward"]
    kernels = plan.kernels.__wrapped__(form, "bfloat16")
    assert len(kernels) > 1
    assert {t for k in kernels for t in k.spec.output_types} == {"*fp32"}
    for kernel in kernels:
        assert compile_kernel(kernel.spec, "sm_90").spilled_bytes == 0
