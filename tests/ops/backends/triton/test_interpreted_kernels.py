"""Generated kernels called directly in the interpreter: they write all of their outputs."""

import e3nn_jax as e3nn
import numpy as np
import pytest

from benchmarks.gpu.cases import CASES as BENCHMARKS
from eqfuse.ops.backends.triton import form as plan
from eqfuse.ops.ir import products
from eqfuse.ops.ir.form import Form, Index, Operand, Path, Segment, SegmentRef, derivatives
from tests.interpreter import interpret
from tests.ops import tiers
from tests.ops.cases import ELEMENTWISE, GRAPH, SMALL, TENSOR_PRODUCT, Case

pytest.importorskip("triton", reason="the interpreter is part of triton")

CASES = {
    "graph": GRAPH["mul-33"],
    "graph, filtered": Case("graph_tensor_product", "4x0e+3x2e+2x1o", "0e+1o+3e", keep="0e+1o"),
    "graph, channels in blocks": Case("graph_tensor_product", "600x0e+130x1o", "0e+1o", keep="0e"),
    "graph, zero blocks": GRAPH["zero-blocks"],
    "graph, unweighted": GRAPH["unweighted"],
    "rows": TENSOR_PRODUCT["uvuv-unrolled"],
    "rows, zero blocks": TENSOR_PRODUCT["zero-blocks"],
    "rows, channels of y": TENSOR_PRODUCT["one-by-many"],
    "elementwise": ELEMENTWISE["cut-blocks"],
}


def product(case: Case) -> Form:
    irreps = e3nn.Irreps(case.irreps_x), e3nn.Irreps(case.irreps_y)
    keep = None if case.keep is None else tuple(ir for _, ir in e3nn.Irreps(case.keep))
    zeros = {"zero_x": case.zero_x, "zero_y": case.zero_y}
    if case.op == "elementwise_tensor_product":
        return products.elementwise_tensor_product(*irreps, keep, "component", **zeros).form
    return products.tensor_product(
        *irreps,
        keep,
        "component",
        weighted=case.weighted and case.on_graph,
        on_graph=case.on_graph,
        **zeros,
    ).form


NUM_ROWS = len(SMALL.pairs)


def run(form: Form, inputs, edge_lanes: int = 1) -> list[np.ndarray]:
    """Return the outputs of the form's kernels, each of which finds NaN where it is to write."""
    edges = SMALL.edges()
    scalars = {"num_rows": NUM_ROWS, "num_nodes": SMALL.num_nodes}
    results = {}
    for kernel in plan.kernels(form, "float32", edge_lanes):
        outputs = []
        for o in kernel.outputs:
            operand = form.outputs[o]
            rows = NUM_ROWS if operand.index is Index.ROW else SMALL.num_nodes
            blocks = (kernel.channel_blocks,) if o in kernel.partial else ()
            output = np.full((*blocks, rows, operand.size), np.nan, np.float32)
            # on a GPU, what a later kernel adds to is its own output already
            outputs.append(results[o].copy() if o in kernel.continued else output)
        arrays = [inputs[i] for i in kernel.inputs]
        arrays += [getattr(edges, name) for name in kernel.index_arrays]
        arrays += [results[o] for o in kernel.continued]
        interpret(
            kernel.spec,
            arrays,
            outputs,
            [scalars[name] for name in kernel.spec.scalars],
            kernel.grid(NUM_ROWS, SMALL.num_nodes),
        )
        results.update(zip(kernel.outputs, outputs, strict=True))
    return [results[o] for o in range(len(form.outputs))]


@pytest.mark.parametrize("order", ["forward", "backward", "double"])
@pytest.mark.parametrize(
    "name",
    tiers.slow_unless(
        ["graph", "graph, channels in blocks", "rows, channels of y", "elementwise"], *CASES
    ),
)
def test_every_element_is_written(name, order):
    """A program that has 4 edges of its node at a time differs from one that has 1 by rounding."""
    form = derivatives(product(CASES[name]))[order]
    rng = np.random.default_rng(0)
    sizes = [(NUM_ROWS if o.index is Index.ROW else SMALL.num_nodes, o.size) for o in form.inputs]
    inputs = [rng.normal(size=size).astype(np.float32) for size in sizes]
    results = {}
    for lanes in (1, 4) if CASES[name].on_graph else (1,):
        results[lanes] = run(form, inputs, lanes)
        for operand, a in zip(form.outputs, results[lanes], strict=True):
            assert np.isfinite(a).all(), operand
            assert a.any(), operand
    for a, b in zip(results[1], results.get(4, results[1]), strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=33 * np.finfo(np.float32).eps * abs(a).max())


def test_a_node_that_is_not_finite_is_so_with_edges_side_by_side():
    """Lanes without an edge add nothing, where a factor of the node is infinite too."""
    x = Operand("x", 4, (Segment(0, 4, 1, 1),), True, Index.RECEIVER)
    w = Operand("w", 4, (Segment(0, 4, 1, 1),), True)
    out = Operand("out", 4, (Segment(0, 4, 1, 1),), True, Index.RECEIVER)
    path = Path((SegmentRef(0, 0), SegmentRef(1, 0)), SegmentRef(0, 0), (((0, 0, 0), 1.0),))
    form = Form((x, w), (out,), (path,))
    inputs = [np.full((SMALL.num_nodes, 4), np.inf, np.float32), np.ones((NUM_ROWS, 4), np.float32)]
    with np.errstate(invalid="ignore"):  # inf * 0 in lanes without an edge
        [one], [four] = run(form, inputs), run(form, inputs, 4)
    assert np.isinf(one).any()
    assert one.tobytes() == four.tobytes()


def test_edges_are_side_by_side_on_small_graphs():
    form = product(Case("graph_tensor_product", "64x0e+64x1o", "0e+1o", keep="0e"))
    for nodes, edges, lanes in (
        (135, 2700, 2),
        (60, 1200, 8),
        (60, 300, 2),
        (60, 200, 1),
        (3000, 160000, 1),
    ):
        assert plan.edge_lanes(form, "float32", edges, nodes) == lanes
    assert plan.edge_lanes(form, "float64", 2700, 135) == 1
    [kernel] = plan.kernels(form, "float32", 8)
    assert kernel.spec.num_warps == 8  # 4 edges of 64 channels: 256 threads at most


def test_large_kernels_have_one_edge_at_a_time():
    """With several, the first of these two, of 2,394 terms, spills; the second does not."""
    form = BENCHMARKS["nequip-benzene-64-l3"].forms()["backward"]
    assert [k.spec.num_warps for k in plan.kernels(form, "float32", 8)] == [2, 8]


def test_a_form_in_several_kernels_is_written_too(monkeypatch):
    """Cut finely: later kernels add to the outputs of earlier ones, and fill what has no path."""
    whole = derivatives(product(CASES["graph, filtered"]))["backward"]
    rng = np.random.default_rng(0)
    sizes = [(NUM_ROWS if o.index is Index.ROW else SMALL.num_nodes, o.size) for o in whole.inputs]
    inputs = [rng.normal(size=size).astype(np.float32) for size in sizes]
    expected = run(whole, inputs)
    monkeypatch.setitem(plan.TERMS, "float32", 1)
    monkeypatch.setattr(plan, "tasks", plan.tasks.__wrapped__)  # of other limits, if kept
    plan.kernels.cache_clear()
    try:
        kernels = plan.kernels(whole, "float32")
        found = run(whole, inputs)
    finally:
        plan.kernels.cache_clear()
    assert len(kernels) > 2
    assert any(kernel.continued for kernel in kernels)
    for a, b in zip(found, expected, strict=True):
        # the same sums of at most 33 terms, begun elsewhere
        np.testing.assert_allclose(a, b, rtol=0, atol=33 * np.finfo(np.float32).eps * abs(b).max())


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
