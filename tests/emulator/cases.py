"""The kernels of a case, emulated on a tiny graph, compared with e3nn-jax in float64."""

from __future__ import annotations

import functools
import os
from unittest import mock

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import fused_cases, interpreted
from benchmarks.gpu.cases import CASES
from eqfuse import ops
from tests.emulator.functions import emulate

LINEARS = {"linear 64-l2": "64x0e+64x1o+64x2e", "linear 16-l1": "16x0e+16x1o"}
DENSE = {"radial 64": (3, 8, (64, 40, 16)), "radial 8": (2, 16, (8, 24))}
"""Layers side by side, as those of radial networks: how many, n_in and n_out of each."""
SMALL_GRAPH = {"x": "3x0e+3x1o", "y": "0e+1o", "out": "4x0e+2x0e+2x1o", "gated": True}
ODD = {"x": "33x0e+5x1o", "y": "0e+1o", "out": "33x0e+5x0e+5x1o", "on_graph": False, "gated": True}
"""Channels that fill no tile; of rows too, see `ROWS`."""
SPECS = fused_cases.SPECS | {"small graph": {**SMALL_GRAPH, "on_graph": True}, "odd rows": ODD}
ROWS = {"odd rows": 63}
NAMES = (*CASES, *(f"fused {name}" for name in SPECS), *LINEARS, *DENSE)
ORDERS = ("forward", "backward", "double")

TF32X3 = "tf32x3"
PRECISIONS = ("float32", TF32X3, "float64", "bfloat16")
"""Dtypes, and `TF32X3`: float32 whose matmuls are three products of TF32, as in training."""
MATRIX_UNIT = {TF32X3: "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"}
MATRIX_UNIT |= {"bfloat16": "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"}
"""The instruction by which a Linear multiplies in a precision."""
ROUNDINGS = {"float32": 16, TF32X3: 16, "float64": 16, "bfloat16": 2}
"""By how many units (eps) of its dtype a result may differ, by its largest element.

In float32 and float64 a result is a sum of up to some thousand products, whose roundings, of half a
unit each, are a random walk: 32 halves are those of a sum of 1,000 numbers of the size of the
largest result. Three products of TF32 leave out that of both remainders, at most two units of a
product; a single one is off by thousands. In bfloat16, which sums in float32, a number is rounded
when it is stored: at most four times between an operand and a result, half a unit each. A case that
magnifies roundings may differ by more, see `_condition`.
"""


def check(name: str, order: str, dtype: str, target: str, mend=None) -> float:
    """Return the largest difference of an order of a case, in eps of each result's largest element.

    More than `ROUNDINGS` allow is an AssertionError. `mend` changes the PTX of a kernel.
    """
    precision, dtype = dtype, "float32" if dtype == TF32X3 else dtype
    matmuls = ops.TF32X3 if precision == TF32X3 else "highest"
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        rng = np.random.default_rng(0)
        function, args = function_of(name, "triton", rng)
        reference, _ = function_of(name, "e3nn", np.random.default_rng(0))
        args = [jax.tree.map(lambda a: jnp.asarray(a, dtype), a) for a in args]
        for _ in range(ORDERS.index(order)):
            shapes = jax.eval_shape(reference, *args)
            cotangents = jax.tree.map(
                lambda s: jnp.asarray(rng.normal(size=s.shape), dtype), shapes
            )
            function, reference = backward(function), backward(reference)
            args = [cotangents, *args]
        with mock.patch.dict(os.environ, {"EQFUSE_FUSED": _mode(name)}):
            found = emulate(function, *args, target=target, mend=mend, precision=matmuls)
        wide = jax.tree.map(lambda a: a.astype("float64"), args)
        expected = jax.jit(reference)(*wide)
        difference = _worst(found, expected)
        units, bound = difference / float(jnp.finfo(dtype).eps), ROUNDINGS[precision]
        if not units <= bound:
            bound *= _condition(reference, wide, expected)
    if not units <= bound:
        case = f"{name}, {order}, {precision}, {target}"
        raise AssertionError(f"{case}: {units:.3g} eps from e3nn-jax, over {bound:.3g}")
    return units


def recorded(texts: list):
    """Return what `mend` may be, to keep the texts of the kernels that run as they are."""
    return lambda text: texts.append(text) or text


def _condition(reference, args, expected) -> float:
    """Return by what to multiply a bound, at least 1: where e3nn-jax itself exceeds it in float32.

    A case magnifies the roundings of its operands alike in all precisions and orders of summation,
    of which one may be twice as lucky as another.
    """
    found = jax.jit(reference)(*jax.tree.map(lambda a: a.astype("float32"), args))
    units = _worst(found, expected) / float(jnp.finfo("float32").eps)
    return max(1, 2 * units / ROUNDINGS["float32"])


def _mode(name: str) -> str:
    """Return what `fused` is: "always" for ops over rows, whose kernels are of the whole op."""
    spec = SPECS.get(name.removeprefix("fused "), {"on_graph": True})
    over_rows = not spec["on_graph"] or spec.get("channelwise", False)
    return "always" if over_rows else "auto"


def _worst(found, expected) -> float:
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(_difference(np.asarray(a), np.asarray(b)) for a, b in pairs)


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    size = np.abs(expected).max(initial=0)
    return float(np.abs(found.astype(np.float64) - expected).max(initial=0) / (size or 1))


def backward(function):
    """Return the backward pass of a function, of a cotangent and its arguments."""
    return lambda cotangent, *args: jax.vjp(function, *args)[1](cotangent)


def function_of(name: str, backend: str, rng):
    """Return the function of a case on a backend, and random arguments in float32."""
    if name in CASES:
        return interpreted._function(CASES[name], backend=backend, rng=rng)
    if name in LINEARS:
        return _linear(LINEARS[name], backend, rng)
    if name in DENSE:
        return _dense(*DENSE[name], backend, rng)
    name = name.removeprefix("fused ")
    with mock.patch.object(interpreted, "EDGES", ROWS.get(name, interpreted.EDGES)):
        return interpreted._fused(**SPECS[name], backend=backend, rng=rng)


def _linear(irreps: str, backend: str, rng, rows: int = 5):
    irreps = e3nn.Irreps(irreps)
    x = jnp.asarray(rng.normal(size=(rows, irreps.dim)), jnp.float32)
    make = functools.partial(ops.Linear, irreps, force_irreps_out=True)
    params = make(backend="e3nn").init(jax.random.key(0), e3nn.IrrepsArray(irreps, x))
    module = make(backend=backend)
    return lambda params, x: module.apply(params, e3nn.IrrepsArray(irreps, x)).array, (params, x)


def _dense(groups: int, n_in: int, widths, backend: str, rng, rows: int = 37):
    shapes = [(rows, groups * n_in), *((n_in, width) for width in widths)]
    x, *kernels = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes)

    def function(x, *kernels):
        return ops.grouped_dense(x, kernels, scale=n_in**-0.5, backend=backend)

    return function, (x, *kernels)
