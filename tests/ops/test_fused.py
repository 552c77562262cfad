"""Fused ops beside what test_products.py asks of all: launches, bits, and what is in no array."""

import math
import pathlib
import re
import runpy

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops.primitives import choice
from tests import interpreter
from tests.ops.layers import EDGES, LAYERS, NODES, Layer, rows
from tests.ops.parity import NEEDS_TRITON, along_random_directions, assert_close
from tests.ops.test_what_runs import functions


def in_dtype(case: Layer, dtype=None) -> tuple[jax.Array, ...]:
    """Return the operands of a case; of the dtype of now, if none is given."""
    return tuple(jnp.asarray(a, dtype or jnp.zeros(()).dtype) for a in case.operands())


def value_and_vjp(case: Layer, backend: str, fused: str | None = None, dtype=None):
    function, orders = case.function(backend, fused), ("value", "vjp")
    return along_random_directions(function, *in_dtype(case, dtype), orders=orders)


@pytest.mark.slow
@NEEDS_TRITON
@pytest.mark.parametrize(("wanted", "launches"), [("arrays", 1), ("params", 2)])
def test_gradients_of_some_operands(wanted, launches, x64):
    """Those of operands are one kernel; parameters have one more, of the product computed again.

    The first kernel stops at the cotangent of the pre-activation where no operand is wanted.
    """
    case = LAYERS["rows-gate-skip"]
    operands = in_dtype(case)
    chosen = {"params": range(case.num_parameters), "arrays": range(-len(case.arrays), 0)}[wanted]

    def pullback(backend, fused=None):
        def value(*some):
            given = list(operands)
            for n, operand in zip(chosen, some, strict=True):
                given[n] = operand
            return case.function(backend, fused)(*given)

        out, pull = jax.vjp(value, *(operands[n] for n in chosen))
        return lambda: pull(jnp.cos(out))

    pull = pullback("triton", "always")
    before = interpreter.interpret_count()
    found = jax.block_until_ready(pull())
    assert interpreter.interpret_count() - before == launches
    assert_close(found, pullback("e3nn")(), 1e-12)


@NEEDS_TRITON
@pytest.mark.parametrize("name", ["rows-linear", "graph-gate-skip"])
def test_kernels_are_bitwise_repeatable(name):
    """Twice the same bits, the gradients of the parameters included, which are sums of parts."""
    runs = [value_and_vjp(LAYERS[name], "triton", dtype="float32") for _ in range(2)]
    first, second = ([np.asarray(a).tobytes() for a in jax.tree.leaves(run)] for run in runs)
    assert first == second != []


@NEEDS_TRITON
def test_operands_of_many_components_are_shared_among_programs(x64):
    """The cotangents of 50 components are those of four programs in float64, each of 14 at most."""
    wide = "5x0e+5x1o+5x2e+5x3o+5x4e"
    case = rows(wide, wide, "3x0e", channelwise=True)
    assert_close(value_and_vjp(case, "triton", "always"), value_and_vjp(case, "e3nn"), 1e-12)


def lowered(case: Layer, fused: str, order: int) -> str:
    """Return the text of the value of a case, its gradients, or those of a loss on its forces."""

    def apply(params, arrays):
        return case.function("triton", fused)(*jax.tree.leaves(params), *arrays)

    operands = case.split(in_dtype(case, "float32"))
    return jax.jit(functions(apply)[order]).lower(*operands).as_text()


def size_of_product(case: Layer) -> int:
    keep = sorted({ir for _, ir in e3nn.Irreps(case.out)})
    product = ops.channelwise_tensor_product if case.channelwise else ops.tensor_product
    return product(case.x, case.y, filter_ir_out=keep).dim


@NEEDS_TRITON
@pytest.mark.usefixtures("any_product_is_large")
@pytest.mark.parametrize("order", range(3), ids=["value", "gradient", "loss"])
@pytest.mark.parametrize(
    "name", ["graph-channelwise-small", pytest.param("rows-gate", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("fused", ["auto", "always", "never"])
def test_the_product_of_all_rows_is_in_no_array(fused, name, order):
    case = LAYERS[name]
    text = lowered(case, fused, order)
    rows = EDGES if case.graph else NODES
    assert f"tensor<{rows}x{e3nn.Irreps(case.x).dim}xf32>" in text
    leading = re.findall(rf"tensor<([\dx]+)x{size_of_product(case)}xf32>", text)
    is_there = any(math.prod(map(int, shape.split("x"))) >= rows - rows % 3 for shape in leading)
    # second derivatives of a kernel over rows are those of the parts
    assert is_there == (fused == "never" or (fused, order) == ("always", 2))


@NEEDS_TRITON
def test_blocks_begin(monkeypatch):
    """At the bytes of the product of all rows."""
    case = LAYERS["rows-linear"]
    bytes_of_product = 4 * NODES * size_of_product(case)
    for large, expected in ((bytes_of_product, "in blocks: "), (bytes_of_product + 1, "apart: ")):
        monkeypatch.setattr(choice, "LARGE", large)
        with ops.recorded() as calls:
            case.function("triton")(*in_dtype(case))
        assert calls[-1].fused.startswith(expected)


@pytest.mark.slow
def test_the_example_of_a_fused_layer_runs(capsys):
    """With e3nn's parameters; its largest difference from e3nn is of float32."""
    example = pathlib.Path(__file__).parents[2] / "examples" / "fuse_a_layer.py"
    runpy.run_path(str(example))["main"]()
    said = capsys.readouterr().out
    found = re.search(r"32x0e\+16x1o, largest difference (\S+)", said)
    assert float(found[1]) < 1e-4, said
