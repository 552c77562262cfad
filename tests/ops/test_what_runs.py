"""The table of what runs: native calls and launches of each op, on each backend, in each order.

The table is what_runs.md, beside this file.
"""

import dataclasses
import functools
import pathlib

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import pytest

from eqfuse import ops
from eqfuse.ops.primitives import choice
from tests.ops import layers
from tests.ops.cases import Case, Graph, Interpolation

PAGE = pathlib.Path(__file__).with_name("what_runs.md")
X, Y, OUT, GATED = "4x0e+4x1o", "0e+1o", "5x0e+3x1o", "5x0e+3x0e+3x1o"
ROWS, NODES = choice.FEWEST_ROWS, 16
GRAPH = Graph(NODES, tuple((n % NODES, n % 7) for n in range(ROWS)))
CALLS = {"llvm": "custom_call @eqfuse", "triton": "custom_call @xla_ffi_python_cpu_callback"}


TABLE = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
LINES = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE[2:]]


def problem(op: str, over: str, fused: str, backend: str):
    """Return an op of parameters and operands, and these."""
    on_graph = over == "a graph"
    if op == "interpolate":
        case = Interpolation((4,), intervals=(0, 1) * (ROWS // 2))
        return (lambda p, a: case.function(backend)(a, p)), *case.operands()[::-1]
    if op == "TensorProduct":
        kind, shape = "graph_tensor_product" if on_graph else "tensor_product", (ROWS,)
        case = Case(kind, X, Y, shape_x=shape, shape_y=shape, weighted=False, graph=GRAPH)
        return (lambda _, a: case.function(backend)(*a)), (), case.operands()
    if op == "Linear":
        x, module = e3nn.normal(X, jax.random.key(0), (ROWS,)), ops.Linear(OUT, backend=backend)
        params = module.init(jax.random.key(1), x)
        return (lambda p, a: module.apply(p, e3nn.IrrepsArray(X, a)).array), params, x.array
    case = functools.partial(layers.rows, X, Y, graph=on_graph, weighted=False)
    if op == "TensorProductLinear":
        case = case(OUT)
    else:
        case = case(GATED, gate=True, skip=True, force_irreps_out=True)
    nodes = NODES if on_graph else ROWS
    case = dataclasses.replace(case, num_edges=ROWS, num_nodes=nodes)
    apply = case.function(backend, fused)
    return (lambda p, a: apply(*jax.tree.leaves(p), *a)), *case.split(case.operands())


def functions(apply):
    """Return the function, its gradient, and the gradient of a loss on forces."""

    def energy(params, arrays):
        return jnp.sum(apply(params, arrays) ** 3)

    def loss(params, arrays):
        forces = jax.grad(energy, 1)(params, arrays)
        return sum(jnp.sum(force**2) for force in jax.tree.leaves(forces))

    return [apply, jax.grad(energy, (0, 1)), jax.grad(loss, (0, 1))]


@pytest.mark.parametrize("line", LINES, ids=["-".join(line[:3]) for line in LINES])
def test_page_names_what_runs(line, monkeypatch):
    op, over, fused, *cells = line
    for backend, cell in zip(("llvm", "triton"), cells, strict=True):
        if backend == "triton":
            pytest.importorskip("triton")
        apply, *operands = problem(op, over, fused, backend)
        operands = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), operands)
        with monkeypatch.context() as patch:
            if op == "TensorProduct":
                patch.setenv("EQFUSE_FUSED", fused)
            if cell == "refused":
                with pytest.raises(ValueError, match="fused='always' cannot be done here"):
                    jax.jit(apply).lower(*operands)
                continue
            texts = [jax.jit(f).lower(*operands).as_text() for f in functions(apply)]
        assert ", ".join(str(t.count(CALLS[backend])) for t in texts) == cell, backend


def test_the_table_has_every_case():
    expected = {
        (op, over, fused)
        for op in ("TensorProduct", "TensorProductLinear", "TensorProductLinearGate, with a skip")
        for over in ("rows", "a graph")
        for fused in choice.MODES
        if (op, over) != ("TensorProduct", "rows") or fused == "auto"
    } | {("interpolate", "rows, by interval", "auto"), ("Linear", "rows", "auto")}
    assert {tuple(line[:3]) for line in LINES} == expected


def test_bounds_of_auto_are_on_the_page():
    page = PAGE.parents[2] / "docs" / "reference" / "fused.md"
    text = page.read_text(encoding="utf-8")
    assert f"| llvm | rows | from {choice.FEWEST_ROWS} rows on, one kernel each way |" in text
    assert f"{choice.LARGE >> 30} GiB, {choice.BLOCK} rows at a time" in text
    assert f"up to {choice.FEW_NODES} nodes and {choice.LIGHT >> 20} MiB of weights" in text
