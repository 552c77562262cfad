"""The kernels that a computation launches, found without running it."""

from __future__ import annotations

import functools

import jax
import numpy as np
from jax.extend.core import Jaxpr, Literal
from jax.interpreters import partial_eval as pe

from eqfuse.ops.backends.triton.primitive import launch_p
from eqfuse.ops.primitives.lowering import lowerings
from tests.emulator.functions import Launch, call_of

_SMALL = 1 << 24  # bytes of an integer array that is computed rather than left out


def launches_of(function, *args) -> list[Launch]:
    """Return the launches of a function of arrays, in order.

    Args:
      function: with ops on the backend "triton".
      args: jax.ShapeDtypeStructs, and the integer arrays that kernels find rows by, as numpy
        arrays; in any pytree.
    """
    jaxpr = jax.make_jaxpr(function)(*args)
    used, kept = pe.dce_jaxpr(jaxpr.jaxpr, [True] * len(jaxpr.jaxpr.outvars))
    leaves = [a for a, keep in zip(jax.tree.leaves(args), kept, strict=True) if keep]
    found: list[Launch] = []
    _walk(used, jaxpr.consts, leaves, found)
    return found


def _known(value) -> bool:
    return not isinstance(value, jax.ShapeDtypeStruct)


def _shape(aval) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _walk(jaxpr: Jaxpr, consts, args, found: list[Launch]) -> list:
    values = dict(zip(jaxpr.constvars, consts, strict=True))
    values |= dict(zip(jaxpr.invars, args, strict=True))
    for equation in jaxpr.eqns:
        operands = [v.val if isinstance(v, Literal) else values[v] for v in equation.invars]
        results = _equation(equation, operands, found)
        values |= dict(zip(equation.outvars, results, strict=True))
    return [v.val if isinstance(v, Literal) else values[v] for v in jaxpr.outvars]


def _equation(equation, operands, found: list[Launch]) -> list:
    primitive, params = equation.primitive, equation.params
    if primitive is launch_p:
        names = ("spec", "shapes", "scalars", "grid", "aliases")
        found.append(Launch(arrays=tuple(operands), **{name: params[name] for name in names}))
        return [_shape(v.aval) for v in equation.outvars]
    if primitive in lowerings:
        lowered = jax.make_jaxpr(functools.partial(lowerings[primitive], **params))(
            *(_shape(v.aval) for v in equation.invars)
        )
        return _walk(lowered.jaxpr, lowered.consts, operands, found)
    if inner := call_of(params):
        return _walk(inner.jaxpr, inner.consts, operands, found)
    avals = [v.aval for v in equation.outvars]
    integer = all(a.dtype.kind in "iub" and a.size * a.dtype.itemsize < _SMALL for a in avals)
    if integer and all(map(_known, operands)):
        results = primitive.bind(*operands, **params)
        results = results if primitive.multiple_results else [results]
        return [np.asarray(r) for r in results]
    return [_shape(a) for a in avals]
