"""The kernels of a case, run in Triton's interpreter on a tiny graph, compared with e3nn-jax.

No GPU is needed. The kernels are those that are compiled; only the numbers of rows, nodes and
edges, which they take at run time, are small.
"""

import dataclasses
import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.fused_cases import SPECS
from benchmarks.gpu.cases import CASES, Case, Channelwise, Contraction
from benchmarks.record import parity
from eqfuse import ops
from tests import interpreter  # noqa: F401  (runs the kernels on a CPU)

NODES, EDGES = 3, 4
SENDERS, RECEIVERS = (0, 1, 2, 0), (0, 0, 1, 1)
TOLERANCE = 1e-5
"""Tolerance of float32: roundings of sums of up to a few thousand numbers of one size."""


def check(name: str) -> float:
    """Return the largest difference of a case's passes, relative in each array.

    Args:
      name: of `cases.CASES`, or "fused " and one of `fused_cases.SPECS`.
    Raises:
      record.ParityError: it is more than `TOLERANCE`.
    """
    if name not in CASES:
        return check_fused(SPECS[name.removeprefix("fused ")])
    return _compare(functools.partial(_function, CASES[name]), second_order=True)


def check_fused(spec: dict) -> float:
    """Do as `check`, for the arguments of `fused_cases.fused`."""
    return _compare(functools.partial(_fused, **spec), second_order=False)


def _compare(make, second_order: bool) -> float:
    """Compare the backends for `make(backend, rng)`, which gives a function and its arguments."""
    with jax.default_matmul_precision("highest"):
        sides = (_passes(make, name, second_order) for name in ("e3nn", "triton"))
        return parity(*sides, TOLERANCE)


def _passes(make, backend: str, second_order: bool) -> dict:
    """Return the results of a function, of its backward pass, and of the backward pass of that."""
    rng = np.random.default_rng(0)
    function, args = make(backend=backend, rng=rng)

    def backward(cotangent, *args):
        return jax.vjp(function, *args)[1](cotangent)

    def double(cotangents, cotangent, *args):
        return jax.vjp(backward, cotangent, *args)[1](cotangents)

    cotangent = _normal(rng, *jax.eval_shape(function, *args).shape)
    found = {"forward": jax.jit(function)(*args), "backward": jax.jit(backward)(cotangent, *args)}
    if second_order:
        cotangents = jax.tree.map(lambda a: _normal(rng, *a.shape), found["backward"])
        found["double"] = jax.jit(double)(cotangents, cotangent, *args)
    return found


def _normal(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def _edges() -> ops.Edges:
    return ops.Edges.from_arrays(np.array(SENDERS), np.array(RECEIVERS), NODES)


@functools.singledispatch
def _function(case, backend: str, rng):
    """Return a function of arrays, and random arrays, of a case without a Linear."""
    raise TypeError(f"{type(case).__name__} is no case of benchmarks.gpu.cases")


@_function.register
def _(case: Contraction, backend: str, rng):
    def channels(irreps):
        return e3nn.Irreps([(128, ir) for _, ir in e3nn.Irreps(irreps)])

    irreps, irreps_out = channels(case.irreps), channels(case.irreps_out)
    num_paths = sum(count for *_, count in ops.symmetric_contraction_paths(irreps, irreps_out, 3))

    def contraction(x, w):
        x = e3nn.IrrepsArray(irreps, x)
        return ops.symmetric_contraction(x, w, irreps_out=irreps_out, backend=backend).array

    return contraction, (_normal(rng, NODES, irreps.dim), _normal(rng, NODES, num_paths, 128))


@_function.register
def _(case: Channelwise, backend: str, rng):
    x, y, options = _operands(case, backend)

    def product(a, b):
        return ops.channelwise_tensor_product(x(a), y(b), _edges(), **options).array

    return product, (_normal(rng, EDGES, x.irreps.dim), _normal(rng, NODES, y.irreps.dim))


@_function.register
def _(case: Case, backend: str, rng):
    x, y, options = _operands(case, backend)
    args = [_normal(rng, NODES, x.irreps.dim), _normal(rng, EDGES, y.irreps.dim)]
    if case.weighted:
        width = ops.graph_tensor_product(x.irreps, y.irreps, **options).num_irreps
        args.append(_normal(rng, EDGES, width))

    def product(a, b, w=None):
        return ops.graph_tensor_product(x(a), y(b), w, _edges(), **options).array

    return product, args


@dataclasses.dataclass
class _Typed:
    """Gives arrays their irreps."""

    irreps: e3nn.Irreps

    def __call__(self, array):
        return e3nn.IrrepsArray(self.irreps, array)


def _operands(case, backend: str):
    """Return what gives the operands their irreps, and the options of the op."""
    keep = tuple(ir for _, ir in e3nn.Irreps(case.keep))
    x, y = (_Typed(e3nn.Irreps(i)) for i in (case.irreps_x, case.irreps_y))
    return x, y, {"filter_ir_out": keep, "backend": backend}


def _fused(x, y, out, on_graph, weighted=True, gated=False, channelwise=False, *, backend, rng):
    """Do as `_function`, of a product and a Linear, and a gate with a skip before it."""
    x, y, z = (_Typed(e3nn.Irreps(i)) for i in (x, y, out))
    rows = NODES if on_graph and not channelwise else EDGES
    of_y = NODES if channelwise else EDGES
    keep = sorted({ir for _, ir in z.irreps})
    kind = ops.TensorProductLinearGate if gated else ops.TensorProductLinear
    options = {"channelwise": channelwise, "force_irreps_out": True}
    module = kind(out, backend=backend, **options)
    # the parameters are those of every backend, and their making runs the module
    initial = kind(out, backend="e3nn", **options)
    args = {"x": _normal(rng, rows, x.irreps.dim), "y": _normal(rng, of_y, y.irreps.dim)}
    if on_graph and weighted and not channelwise:
        width = ops.graph_tensor_product(x.irreps, y.irreps, filter_ir_out=keep).num_irreps
        args["weights"] = _normal(rng, EDGES, width)
    if gated:
        args["skip"] = _normal(rng, rows, z.irreps.dim)

    def call(method, first, args):
        typed = {"x": x, "y": y, "weights": lambda w: w, "skip": z}
        given = {name: typed[name](array) for name, array in args.items()}
        return method(first, edges=_edges() if on_graph else None, **given)

    def function(params, args):
        return call(module.apply, params, args).array

    return function, (call(initial.init, jax.random.key(0), args), args)
