"""The table of what runs: native calls and launches of each op, on each backend, in each order.

The table is what_runs.md, beside this file.
"""

import pathlib

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops.primitives import choice

PAGE = pathlib.Path(__file__).with_name("what_runs.md")
X, Y, OUT, GATED = "4x0e+4x1o", "0e+1o", "5x0e+3x1o", "5x0e+3x0e+3x1o"
ROWS, NODES = choice.FEWEST_ROWS, 16
CALLS = {"llvm": "custom_call @eqfuse", "triton": "custom_call @xla_ffi_python_cpu_callback"}
ORDERS = ("value", "gradient", "gradient of a loss on forces")


def lines() -> list[list[str]]:
    """Return the cells of each line of the table, and of its head first."""
    table = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    first = next(n for n, line in enumerate(cells) if line[:2] == ["op", "over"])
    return [cells[first], *cells[first + 2 :]]


HEAD, *LINES = lines()


def problem(op: str, over: str, fused: str, backend: str):
    """Return an op of parameters and operands, and these."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    if op == "interpolate":
        intervals = ops.group_by_interval(jnp.asarray(rng.integers(0, NODES, ROWS), "int32"), NODES)

        def interpolated(params, arrays):
            powers = arrays["powers"]
            return ops.interpolate(params["tables"], intervals, powers, backend=backend)[0]

        return interpolated, {"tables": [normal(NODES, 6, 4)]}, {"powers": normal(ROWS, 6)}
    edges, rows = None, [ROWS, ROWS]
    if over == "a graph":
        ends = rng.integers(0, NODES, (2, ROWS))
        edges, rows = ops.Edges.from_arrays(*ends, NODES), [NODES, ROWS]
    arrays = {n: normal(r, e3nn.Irreps(i).dim) for n, r, i in zip("xy", rows, (X, Y), strict=True)}
    options = {"backend": backend, "fused": fused}

    def operands(arrays):
        return e3nn.IrrepsArray(X, arrays["x"]), e3nn.IrrepsArray(Y, arrays["y"])

    if op == "TensorProduct":
        if edges is None:
            return lambda _, a: ops.tensor_product(*operands(a), backend=backend).array, {}, arrays
        product = ops.graph_tensor_product
        return lambda _, a: product(*operands(a), None, edges, **options).array, {}, arrays
    if op == "Linear":
        module, x = ops.Linear(OUT, backend=backend), arrays.pop("x")
        shapes = jax.eval_shape(module.init, jax.random.key(0), e3nn.IrrepsArray(X, x))
        params = jax.tree.map(lambda s: normal(*s.shape), shapes)
        return lambda p, a: module.apply(p, e3nn.IrrepsArray(X, a["x"])).array, params, {"x": x}
    cls, out, more = ops.TensorProductLinear, OUT, {}
    if op != "TensorProductLinear":
        cls, out = ops.TensorProductLinearGate, GATED
        rows = NODES if edges is not None else ROWS
        arrays["skip"] = normal(rows, e3nn.Irreps(GATED).dim)
        more = {"force_irreps_out": True}
    module = cls(out, **more, **options)

    def apply(params, arrays):
        skip = arrays.get("skip")
        skip = None if skip is None else e3nn.IrrepsArray(GATED, skip)
        return module.apply(params, *operands(arrays), edges=edges, skip=skip).array

    shapes = jax.eval_shape(
        lambda: module.clone(fused=None).init(jax.random.key(0), *operands(arrays), edges=edges)
    )
    return apply, jax.tree.map(lambda s: normal(*s.shape), shapes), arrays


def functions(apply):
    """Return a function of parameters and operands for each of `ORDERS`."""

    def energy(params, arrays):
        return jnp.sum(apply(params, arrays) ** 3)

    def loss(params, arrays):
        forces = jax.grad(energy, 1)(params, arrays)
        return sum(jnp.sum(force**2) for force in jax.tree.leaves(forces))

    return [apply, jax.grad(energy, (0, 1)), jax.grad(loss, (0, 1))]


@pytest.mark.parametrize("line", LINES, ids=["-".join(line[:3]) for line in LINES])
def test_what_runs_is_what_the_page_says(line):
    op, over, fused, *cells = line
    for backend, cell in zip(("llvm", "triton"), cells, strict=True):
        if backend == "triton":
            pytest.importorskip("triton")
        apply, *operands = problem(op, over, fused, backend)
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
