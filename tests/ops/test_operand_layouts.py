"""An operand in another layout costs one pass over it, and memory of its own size."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.launches.hlo import HloProgram
from eqfuse import ops

NODES, EDGES = 150, 3000
X, Y = e3nn.Irreps("64x0e+64x1o+64x2e"), e3nn.Irreps("0e+1o+2e")
KEEP = tuple(ir for _, ir in Y)


def _shape(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def layouts(backend: str) -> dict:
    """Return {case: (function, arguments, bytes of the operand that has another layout)}.

    In the first case of each op all operands have the layout of the op.
    """
    rng = np.random.default_rng(0)
    edges = ops.Edges.from_arrays(*rng.integers(0, NODES, (2, EDGES)), NODES)
    options = {"filter_ir_out": KEEP, "backend": backend}
    weights = ops.graph_tensor_product(X, Y, **options).num_irreps
    x, y, w = (NODES, X.dim), (EDGES, Y.dim), (EDGES, weights)

    def graph(x, y, w):
        x, y = e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y)
        return ops.graph_tensor_product(x, y, w, edges, **options).array

    def rows(x, y):
        x, y = e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y)
        return ops.tensor_product(x, y, **options).array

    many = (EDGES, X.dim)
    cases = {
        "graph": (graph, (x, y, w), ()),
        "graph, x transposed": (lambda x, y, w: graph(x.T, y, w), (x[::-1], y, w), x),
        "graph, w transposed": (lambda x, y, w: graph(x, y, w.T), (x, y, w[::-1]), w),
        "graph, w a product, transposed": (
            lambda x, y, a, b: graph(x, y, (a @ b).T),
            (x, y, (weights, 8), (8, EDGES)),
            w,
        ),
        "graph, one row of y": (graph, (x, (1, Y.dim), w), y),
        "graph, one row of w": (graph, (x, y, (1, weights)), w),
        "graph, w repeated before": (
            lambda x, y, w: graph(x, y, jnp.broadcast_to(w, (EDGES, weights))),
            (x, y, (1, weights)),
            w,
        ),
        "rows": (rows, (many, y), ()),
        "rows, one row of y": (rows, (many, (Y.dim,)), y),
        "rows, x cut out": (lambda x, y: rows(x[:, 32:-32], y), ((EDGES, X.dim + 64), y), many),
    }
    return {
        name: (function, [_shape(*s) for s in shapes], 4 * int(np.prod(operand)) if operand else 0)
        for name, (function, shapes, operand) in cases.items()
    }


def copies(backend: str) -> list[dict]:
    """Return what each of `layouts` computes besides the op, and the scratch memory for it."""
    results, alone = [], 0
    for name, (function, args, operand) in layouts(backend).items():
        compiled = jax.jit(function).lower(*args).compile()
        scratch = compiled.memory_analysis().temp_size_in_bytes
        alone = alone if operand else scratch
        entry = HloProgram(compiled.as_text()).entry
        besides = [i.name for i in entry if not i.primitive.startswith("eqfuse")]
        result = {"case": name, "besides": besides, "operand_bytes": operand}
        results.append({**result, "scratch_bytes": scratch - (alone if operand else 0)})
    return results


def test_an_operand_in_another_layout_costs_one_pass_and_its_own_size():
    results = copies("llvm")
    assert len(results) == 10
    for result in results:
        own_layout = result["case"] in ("graph", "rows")
        read_in_place = own_layout or "one row" in result["case"]
        assert len(result["besides"]) == (not read_in_place), result
        assert bool(result["operand_bytes"]) == (not own_layout)
        # XLA may place the operand in what the op itself has left.
        most = 0 if read_in_place else result["operand_bytes"]
        assert own_layout or 0 <= result["scratch_bytes"] <= most, result
