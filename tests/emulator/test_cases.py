"""The PTX that ships, emulated, gives what e3nn-jax gives, and breaks no rule of memory."""

import itertools
import re

import pytest

from benchmarks.gpu.cases import CASES, Case
from eqfuse.ops import _linear
from eqfuse.ops.backends.triton import form, linear
from eqfuse.ops.primitives import forms, gpu_layer
from tests.emulator import cases
from tests.ops import tiers

pytest.importorskip("triton", reason="triton, which compiles the kernels, is not installed")

SMALL = (
    ("tetris-1", "forward", "float32"),
    ("tetris-1", "backward", "float32"),
    ("tetris-1", "double", "float32"),
    ("linear 16-l1", "backward", "float32"),
)
"""Run by default; kernels of whole ops over rows, which nobody gets unasked, by `--run-slow`."""


def _parameters():
    for name, order, dtype, target in itertools.product(
        cases.NAMES, cases.ORDERS, cases.PRECISIONS, ("sm_80", "sm_90")
    ):
        if dtype == cases.TF32X3 and name in CASES:  # products, which have no matmuls
            continue
        if (name, dtype) == ("fused allegro-128-l3", "float32"):  # spills 16 kB
            continue
        small = (name, order, dtype) in SMALL and target == "sm_90"
        marks = [] if small else [pytest.mark.slow]
        label = f"{name}-{order}-{dtype}-{target}"
        yield pytest.param(name, order, dtype, target, marks=marks, id=label)


@pytest.mark.filterwarnings(r"ignore:kernel fused\w* for sm_\d+ spills:RuntimeWarning")
@pytest.mark.parametrize(("name", "order", "dtype", "target"), list(_parameters()))
def test_emulated_kernels_give_what_e3nn_gives(name, order, dtype, target):
    cases.check(name, order, dtype, target)


@pytest.mark.parametrize("order", cases.ORDERS)
def test_edges_side_by_side_do_not_race(order, monkeypatch):
    """On graphs that do not fill a GPU, the sums of edges meet in shared memory."""
    monkeypatch.setattr(form, "edge_lanes", lambda *_: 2)
    cases.check("tetris-1", order, "float32", "sm_90")


@pytest.mark.parametrize("plan", [(1, 32), (-1, 32, 1), (1, 0, 0, 2)])
@pytest.mark.parametrize("order", tiers.slow_unless(["backward"], *cases.ORDERS))
def test_plans_that_are_measured(plan, order, monkeypatch):
    """Programs of one warp, of 40 channels or 32 of them, and a receiver that owns its edges."""
    used = []

    def chosen(form, *_):
        if form.has_matrices:
            return None
        used.append(form)
        return plan

    monkeypatch.setattr(forms, "measured_plan", chosen)
    monkeypatch.setitem(CASES, "odd", Case("40x0e+33x1o", "0e+1o", "0e+1o"))
    cases.check("odd", order, "float32", "sm_90")
    assert used


@pytest.mark.parametrize("target", tiers.slow_unless(["sm_90"], "sm_80", "sm_90"))
@pytest.mark.parametrize("lanes", tiers.slow_unless([2], 1, 2, 4))
def test_the_kernel_of_nodes_does_not_race(target, lanes, monkeypatch):
    """What a thread writes and another reads has a barrier between."""
    monkeypatch.setattr(form, "edge_lanes", lambda *_: lanes)
    monkeypatch.setattr(cases, "_mode", lambda name: "always")
    texts = []
    cases.check("fused small graph", "forward", "float32", target, cases.recorded(texts))
    assert {re.search(r"\.entry (\w+?)_[0-9a-f]{16}", text)[1] for text in texts} == {"fused_node"}


FEW = ("linear 16-l1", "forward", 32), ("radial 8", "backward", 64), ("radial 8", "backward", -64)
"""Run by default in every precision that the matrix unit has."""


def _on_the_matrix_unit():
    for name, order, dtype, tile in itertools.product(
        (*cases.LINEARS, *cases.DENSE), cases.ORDERS, cases.MATRIX_UNIT, (32, 64, -32, -64)
    ):
        if tile > 0 or dtype == cases.TF32X3:
            marks = [] if (name, order, tile) in FEW else [pytest.mark.slow]
            label = f"{name}-{order}-{dtype}-{tile}"
            yield pytest.param(name, order, dtype, tile, marks=marks, id=label)


@pytest.mark.parametrize(("name", "order", "dtype", "tile"), list(_on_the_matrix_unit()))
def test_linears_multiply_on_the_matrix_unit(name, order, dtype, tile, monkeypatch):
    """In TF32x3, by Triton or by bits, and in bfloat16; tiles of few rows are made wide here."""
    monkeypatch.setattr(linear, "tile", lambda *_: tile)
    texts = []
    cases.check(name, order, dtype, "sm_90", cases.recorded(texts))
    assert texts
    assert all(cases.MATRIX_UNIT[dtype] in text for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", cases.MATRIX_UNIT)
@pytest.mark.parametrize("order", ["forward", "backward"])
def test_fused_kernels_over_rows_multiply_on_the_matrix_unit(order, dtype, monkeypatch):
    """Compute 63 rows of 33 and 5 channels, and the gradients of parameters in three parts."""
    monkeypatch.setattr(gpu_layer, "ROWS_OF_A_PART", 21)
    texts = []
    cases.check("fused odd rows", order, dtype, "sm_90", cases.recorded(texts))
    fused = [text for text in texts if re.search(r"\.entry fused", text)]
    assert len(fused) == (1 if order == "forward" else 3)
    assert all(cases.MATRIX_UNIT[dtype] in text for text in fused)


def test_one_product_of_tf32_is_not_enough(monkeypatch):
    """The bound on three of them tells a thousandth from a ten millionth."""
    monkeypatch.setattr(cases.ops, "TF32X3", "highest")
    monkeypatch.setattr(_linear, "matmul_precision", lambda name=None: "tf32")
    with pytest.raises(AssertionError, match="eps from e3nn-jax, over 16"):
        cases.check("linear 16-l1", "forward", cases.TF32X3, "sm_90")
