"""Generated kernels of every plan, interpreted: they write all of their outputs, which are XLA's.

A plan is how many edges of its node a program has at a time; below zero, receivers add to the rows
of senders atomically, or with a third number write a row for each edge, which are then summed
(test_atomic_kernels.py). The second number are the channels of programs that are one warp: of 300,
ten programs, whose sums are added.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.gpu.cases import CASES as BENCHMARKS
from eqfuse import ops
from eqfuse.ops.backends.triton import primitive
from eqfuse.ops.ir.form import (
    INDEX_ARRAYS,
    Form,
    Index,
    Operand,
    Path,
    Segment,
    SegmentRef,
    derivatives,
)
from eqfuse.ops.primitives import forms, measured
from tests.ops.backends.test_work import forms as forms_in
from tests.ops.cases import ELEMENTWISE, GRAPH, SMALL, TENSOR_PRODUCT, Case

pytest.importorskip("triton", reason="the interpreter is part of triton")
import tests.interpreter  # noqa: F401  (runs backend "triton" on this CPU)
from eqfuse.ops.backends.triton import form as plan

CASES = {
    "graph": GRAPH["mul-33"],
    "graph, filtered": Case("graph_tensor_product", "4x0e+3x2e+2x1o", "0e+1o+3e", keep="0e+1o"),
    "graph, channels in blocks": Case("graph_tensor_product", "600x0e+130x1o", "0e+1o", keep="0e"),
    "graph, zero blocks": GRAPH["zero-blocks"],
    "graph, unweighted": GRAPH["unweighted"],
    "graph, odd": Case("graph_tensor_product", "5x0e+3x1o", "0e+1o"),
    "graph, one sum in blocks": Case("graph_tensor_product", "300x0e", "0e", weighted=False),
    "rows": TENSOR_PRODUCT["uvuv-unrolled"],
    "rows, zero blocks": TENSOR_PRODUCT["zero-blocks"],
    "rows, channels of y": TENSOR_PRODUCT["one-by-many"],
    "elementwise": ELEMENTWISE["cut-blocks"],
}
WARPS = ((1, 32), (2, 32), (-1, 32), (-1, 32, 1), (1, 32, 2))
PLANS = {"graph, odd": ((-1,), (-4,)), "graph, one sum in blocks": ((-1,), (-4,), *WARPS)}
PLANS = {
    name: PLANS.get(name, ((1,), (4,)) if case.on_graph else ((1,),))
    for name, case in CASES.items()
}
BY_DEFAULT = {
    *("graph", "graph, channels in blocks", "graph, odd", "graph, one sum in blocks"),
    *("rows, channels of y", "elementwise"),
}
ROWS, SLOW = len(SMALL.pairs), pytest.mark.slow


def form_of(case: Case) -> Form:
    [form] = forms_in(case.function("xla"), *case.operands())
    return form


def edges(dropped: bool = False) -> ops.Edges:
    """Return edges of a graph with an isolated node; two may have an end that is out of range."""
    senders, receivers = (jnp.asarray(ends) for ends in zip(*SMALL.pairs, strict=True))
    if not dropped:
        return ops.Edges.from_arrays(senders, receivers, SMALL.num_nodes)
    senders, receivers = senders.at[1].set(SMALL.num_nodes), receivers.at[4].set(-1)
    return jax.jit(ops.Edges.from_arrays, static_argnums=2)(senders, receivers, SMALL.num_nodes)


def run(form: Form, inputs, graph: ops.Edges, chosen: tuple[int, ...]):
    indices = {name: getattr(graph, name) for name in INDEX_ARRAYS} if form.on_graph else {}
    sizes = (ROWS, SMALL.num_nodes) if form.on_graph else (ROWS, None)
    return jax.jit(lambda *a: primitive.run_form(form, a, indices, *sizes, chosen))(*inputs)


def check(form: Form, graph: ops.Edges, chosen: tuple[int, ...]):
    """Compare with XLA; edges that are dropped have rows of zeros.

    Sums of at most 33 terms; what is not written is NaN.
    """
    is_dropped = (graph.senders >= SMALL.num_nodes) | (graph.receivers < 0)
    rng = np.random.default_rng(0)
    shapes = [form.shape(o, ROWS, SMALL.num_nodes) for o in form.inputs]
    inputs = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    expected = forms.evaluate(form, inputs, graph if form.on_graph else None, backend="xla")
    found = run(form, inputs, graph, chosen)
    for operand, a, b in zip(form.outputs, found, expected, strict=True):
        assert jnp.any(b), operand
        scale = float(jnp.abs(b).max())
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * scale, err_msg=str(operand))
        if form.on_graph and operand.index is Index.ROW:
            assert not a[is_dropped].any()


@pytest.mark.parametrize(
    ("name", "order", "chosen"),
    [
        pytest.param(*(name, order, chosen), marks=[] if name in BY_DEFAULT else SLOW)
        for name, plans in PLANS.items()
        for order in ("forward", "backward", "double")
        for chosen in plans
        if order != "forward" or name not in ("graph, odd", "graph, one sum in blocks")
    ],
)
def test_every_element_is_written(name, order, chosen):
    form = derivatives(form_of(CASES[name]))[order]
    for dropped in (False, True) if chosen in WARPS or chosen[0] < 0 else (False,):
        check(form, edges(dropped), chosen)


def test_programs_of_a_warp_are_a_plan():
    form = derivatives(form_of(CASES["graph, one sum in blocks"]))["backward"]
    problem = measured.Problem.of(form, 6, 5, "triton", jnp.dtype("float32"))
    assert (1, 32) in forms.plans(problem)
    assert {k.spec.num_warps for k in plan.kernels(form, "float32", 1, 32)} == {1}


def test_a_node_that_is_not_finite_is_so_with_edges_side_by_side():
    """Lanes without an edge add nothing, where a factor of the node is infinite too."""
    x = Operand("x", 4, (Segment(0, 4, 1, 1),), True, Index.RECEIVER)
    w = Operand("w", 4, (Segment(0, 4, 1, 1),), True)
    out = Operand("out", 4, (Segment(0, 4, 1, 1),), True, Index.RECEIVER)
    path = Path((SegmentRef(0, 0), SegmentRef(1, 0)), SegmentRef(0, 0), (((0, 0, 0), 1.0),))
    form = Form((x, w), (out,), (path,))
    inputs = [np.full((SMALL.num_nodes, 4), np.inf, np.float32), np.ones((ROWS, 4), np.float32)]
    with np.errstate(invalid="ignore"):  # inf * 0 in lanes without an edge
        [one], [four] = (jax.device_get(run(form, inputs, edges(), (lanes,))) for lanes in (1, 4))
    assert np.isinf(one).any()
    assert one.tobytes() == four.tobytes()


def test_edges_are_side_by_side_on_small_graphs():
    form = form_of(Case("graph_tensor_product", "64x0e+64x1o", "0e+1o", keep="0e"))
    sizes = {(135, 2700): 2, (60, 1200): 8, (60, 300): 2, (60, 200): 1, (3000, 160000): 1}
    for (nodes, edges), lanes in sizes.items():
        assert plan.edge_lanes(form, "float32", edges, nodes) == lanes
    assert plan.edge_lanes(form, "float64", 2700, 135) == 1
    [kernel] = plan.kernels(form, "float32", 8)
    assert kernel.spec.num_warps == 8  # 4 edges of 64 channels: 256 threads at most


def test_large_kernels_have_one_edge_at_a_time():
    """With several, the first of these two, of 2,394 terms, spills; the second does not."""
    form = BENCHMARKS["nequip-benzene-64-l3"].forms()["backward"]
    assert [k.spec.num_warps for k in plan.kernels(form, "float32", 8)] == [2, 8]


@pytest.mark.parametrize(
    ("name", "terms", "number", "fewest"),
    [("graph, filtered", 1, 1, 3), ("graph, odd", 12, -1, 2)],
)
def test_a_form_in_several_kernels_is_written_too(name, terms, number, fewest, monkeypatch):
    """Cut finely: later kernels add to the outputs of earlier ones, and fill what has no path."""
    form = derivatives(form_of(CASES[name]))["backward"]
    monkeypatch.setitem(plan.TERMS, "float32", terms)
    monkeypatch.setattr(plan, "tasks", plan.tasks.__wrapped__)  # of other limits, if kept
    monkeypatch.setattr(plan, "kernels", plan.kernels.__wrapped__)
    kernels = plan.kernels(form, "float32", number)
    assert len(kernels) >= fewest
    assert any(kernel.continued for kernel in kernels)
    check(form, edges(dropped=number < 0), (number,))


def test_warps_have_read_in_place_before_one_of_them_writes():
    """A kernel that goes on with the sums of another reads them in all warps, and writes in one."""
    form = BENCHMARKS["mixed"].forms()["backward"]
    texts = [k.spec.source for k in plan.kernels(form, "float64")]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    reads = [n for n, line in enumerate(lines) if "tl.load(" in line and "_before_row +" in line]
    assert reads
    for read in reads:
        following = (line for line in lines[read:] if not line.startswith("before_"))
        assert next(following) == "tl.debug_barrier()"
