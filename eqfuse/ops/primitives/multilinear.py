"""Primitives of multilinear functions, whose derivatives of every order are of the same kind.

A `Form` and a `LinearForm` are such functions, as data: both can give their derivative and their
transpose as one more of themselves. The rules for JAX follow from that, and stand here
once. What is neither derivative nor transpose (`vmap`, the lowering) stands with each primitive.
"""

import functools
from typing import Protocol, Self

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad
from jax.interpreters import partial_eval as pe

from eqfuse.ops.primitives.rules import compiled, vary_alike


class Multilinear(Protocol):
    """The interface that the rules need of a function, a hashable parameter of its primitive.

    Attributes:
      inputs, outputs: an operand each.
      needs_integers: whether arrays of integers follow those of the inputs.
    """

    inputs: tuple
    outputs: tuple
    needs_integers: bool

    def jvp(self, active: tuple[bool, ...]) -> Self:
        """Return the JVP, whose inputs are these inputs, then tangents of the active ones."""

    def transpose(self, linear: tuple[bool, ...], cotangents: tuple[bool, ...]) -> Self:
        """Return the map from other inputs and cotangents to cotangents of the linear inputs."""

    def reached(self) -> tuple[bool, ...]:
        """Return which outputs anything adds to; the others are zero."""

    def restrict(self, wanted: tuple[bool, ...]) -> Self:
        """Return the same with the wanted outputs only."""

    def used_inputs(self) -> tuple[bool, ...]:
        """Return which inputs are read."""

    def drop_inputs(self, keep: tuple[bool, ...]) -> Self:
        """Return the same with only the inputs that `keep` marks; no other may be read."""


def multilinear_primitive(name: str, key: str, params: tuple[str, ...]) -> Primitive:
    """Return a primitive with rules for eager calls, JVP, transpose and dead code.

    Args:
      name: of the primitive.
      key: the name of its parameter that is a `Multilinear`.
      params: the names of its other parameters.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True

    primitive.def_impl(compiled(primitive, (key, *params)))
    ad.primitive_jvps[primitive] = functools.partial(_jvp, primitive, key)
    ad.primitive_transposes[primitive] = functools.partial(_transpose, primitive, key)
    pe.dce_rules[primitive] = functools.partial(_dce, key)
    return primitive


def bind_reached(primitive, key: str, function: Multilinear, arrays, integers, params) -> list:
    """Return the outputs that anything adds to, from the inputs that something reads.

    Args:
      primitive, key: see `multilinear_primitive`.
      function: what to compute.
      arrays: one for each of its inputs; None where nothing reads it.
      integers: what follows them, if the function needs it.
      params: the other parameters of the primitive.
    Returns:
      An array for each output, None for one that is zero.
    """
    reached = function.reached()
    if not any(reached):
        return [None] * len(reached)
    function = function.restrict(reached)
    used = function.used_inputs()
    function = function.drop_inputs(used)
    arrays = [a for a, keep in zip(arrays, used, strict=True) if keep]
    arrays += integers if function.needs_integers else ()
    results = iter(primitive.bind(*vary_alike(arrays), **{key: function}, **params))
    return [next(results) if is_reached else None for is_reached in reached]


def _jvp(primitive, key, primals, tangents, **params):
    outputs = primitive.bind(*primals, **params)
    function = params.pop(key)
    n = len(function.inputs)
    inputs, integers, tangents = list(primals[:n]), primals[n:], tangents[:n]
    derivative = function.jvp(tuple(type(t) is not ad.Zero for t in tangents))
    inputs += [t for t in tangents if type(t) is not ad.Zero]
    results = bind_reached(primitive, key, derivative, inputs, integers, params)
    return outputs, [
        ad.Zero(jax.typeof(out).to_tangent_aval()) if t is None else t
        for out, t in zip(outputs, results, strict=True)
    ]


def _transpose(primitive, key, cotangents, *arrays, **params):
    function = params.pop(key)
    n = len(function.inputs)
    inputs, integers = arrays[:n], arrays[n:]
    linear = tuple(ad.is_undefined_primal(a) for a in inputs)
    given = tuple(type(c) is not ad.Zero for c in cotangents)
    values = [a for a in inputs if not ad.is_undefined_primal(a)]
    values += [c for c in cotangents if type(c) is not ad.Zero]
    transposed = function.transpose(linear, given)
    values = iter(bind_reached(primitive, key, transposed, values, integers, params))
    results = []
    for a, is_linear in zip(inputs, linear, strict=True):
        value = next(values) if is_linear else None
        results.append(ad.Zero(a.aval) if is_linear and value is None else value)
    return results + [None] * len(integers)


def _dce(key, used_outputs, *rest):
    """Leave out outputs that nobody wants, and inputs that only they need.

    JAX 0.12 passes (used outputs, live inputs, equation), earlier versions no live inputs.
    """
    eqn = rest[-1]
    if not any(used_outputs):
        return [False] * len(eqn.invars), None
    n = len(eqn.params[key].inputs)
    function = eqn.params[key].restrict(tuple(used_outputs))
    used = function.used_inputs() if any(function.used_inputs()) else (True,) * n
    function = function.drop_inputs(used)
    keep = [*used, *[function.needs_integers] * (len(eqn.invars) - n)]
    new = eqn.replace(
        invars=[v for v, k in zip(eqn.invars, keep, strict=True) if k],
        outvars=[v for v, k in zip(eqn.outvars, used_outputs, strict=True) if k],
        params={**eqn.params, key: function},
    )
    return keep, new
