"""The fused op as JAX primitives, with their derivatives.

Five primitives, each a derivative of the one before: the op; its tangent, linear in the tangents;
its backward, the transpose of the tangent; the tangent of the backward; and the transpose of that.
On a CPU all but the tangents are one native kernel each. On a GPU the op and its backward are fused
kernels, the others blocks of rows (`blocks`), or all are. Everything else is composed by JAX itself
from `definitions`, so that no derivative is missing at any order.

Where `choice` decides against them, an op is its definition from the start, kernels of the product
and of the Linear: JAX keeps the product for the backward.
"""

import dataclasses

import jax
from jax.interpreters import ad

from eqfuse.ops.primitives import definitions, rules
from eqfuse.ops.primitives.definitions import (
    Call,
    backward,
    backward_tangent,
    forward,
    forward_tangent,
)
from eqfuse.ops.primitives.rules import split


def evaluate(call: Call, floats, integers):
    """Return the output of a fused op: the gated row, or the pre-activation's arrays.

    Args:
      floats, integers: its operands, as in `Fused`.
    """

    def bound(*arrays):
        arrays = rules.vary_alike(arrays)
        if not call.fuses or not call.num_rows:
            return _fused(*arrays, call=call)
        return fused_p.bind(*arrays, call=call)

    out = "nodes" if call.fused.summed else "rows"
    counted = [o.index.counted for o in call.fused.form.inputs]
    counted += [None] * len(call.fused.linear.parameters) + [out] * call.fused.skip
    names = [out] * len(call.sizes)
    outputs = rules.with_auto_axes(bound, [*floats, *integers], counted, names)
    return outputs[: len(call.fused.sizes) if call.fused.gate is None else 1]


# the definitions, of the operands in one list


def _fused(*arrays, call):
    return forward(call, *split(arrays, call.fused.num_floats))


def _tangent(*arrays, call, active):
    floats, [z], *others = split(arrays, call.fused.num_floats, 1, sum(active))
    return forward_tangent(call, active, floats, z, *others)


def _backward(*arrays, call, wanted, given):
    floats, [z], *others = split(arrays, call.fused.num_floats, 1, sum(given))
    return backward(call, wanted, given, floats, z, *others)


def _second(*arrays, call, wanted, given, active):
    parts = split(arrays, len(active), sum(active))
    return backward_tangent(call, wanted, given, active, *parts)


def _double(*arrays, call, active, reached, **params):
    """Return the transpose of a backward's tangent, from cotangents of the outputs `reached`."""
    operands, cotangents, integers = split(arrays, len(active), sum(reached))

    def tangent(*tangents):
        results = _second(*operands, *tangents, *integers, call=call, active=active, **params)
        return [t for t, is_reached in zip(results, reached, strict=True) if is_reached]

    avals = [rules.abstract(a) for a, is_active in zip(operands, active, strict=True) if is_active]
    return list(jax.linear_transpose(tangent, *avals)(list(cotangents)))


# their shapes


def _fused_abstract(*arrays, call, **params):
    return [arrays[0].update(shape=(call.num_output_rows, s), weak_type=False) for s in call.sizes]


def _like(chosen: str):
    """Return the rule of outputs that are like the operands which a parameter chooses."""

    def rule(*arrays, **params):
        pairs = zip(arrays, params[chosen], strict=False)
        return [a.update(weak_type=False) for a, is_chosen in pairs if is_chosen]

    return rule


# their derivatives


def _summed_jvp(primals, tangents, *, call):
    """Go from the tangent of the sums of nodes, which are kept, to those of what follows them."""
    fused, n = call.fused, call.fused.num_floats
    *outputs, m = fused_p.bind(*primals, call=call)
    inputs, _, _ = fused.operands(primals[:n])
    given = [None if type(t) is ad.Zero else t for t in tangents[:n]]
    t_inputs, t_parameters, t_skip = fused.operands(given)
    t_m = definitions.product_tangent(call, inputs, t_inputs, primals[n:])
    changed = [t_m, *t_parameters, *([t_skip] if fused.skip else [])]
    active = tuple(t is not None for t in changed)
    floats = [m, *primals[len(inputs) : n]]
    index = primals[n:][: fused.num_sets > 0]
    mixed = dataclasses.replace(
        call,
        fused=fused.mixed,
        num_rows=call.num_nodes,
        num_nodes=0,
        fuses=not call.forward_only,
    )
    arrays = [*floats, outputs[-1], *(t for t in changed if t is not None), *index]
    t_outputs = tangent_p.bind(*rules.vary_alike(arrays), call=mixed, active=active)
    t_m = ad.Zero(jax.typeof(m).to_tangent_aval()) if t_m is None else t_m
    return [*outputs, m], [*t_outputs, t_m]


def _fused_jvp(primals, tangents, *, call):
    if call.keeps_sums:
        return _summed_jvp(primals, tangents, call=call)
    n = call.fused.num_floats
    outputs = fused_p.bind(*primals, call=call)
    active = tuple(type(t) is not ad.Zero for t in tangents[:n])
    given = [t for t in tangents[:n] if type(t) is not ad.Zero]
    arrays = rules.vary_alike([*primals[:n], outputs[-1], *given, *primals[n:]])
    return outputs, tangent_p.bind(*arrays, call=call, active=active)


def _tangent_transpose(cotangents, *arrays, call, active):
    floats, [z], tangents, integers = split(arrays, call.fused.num_floats, 1, sum(active))
    if any(map(ad.is_undefined_primal, (*floats, z))) or not all(
        map(ad.is_undefined_primal, tangents)
    ):
        # linear in some of the tangents only
        return rules.transpose_of(_tangent, cotangents, arrays, call=call, active=active)
    if call.fused.gate is None:  # its kernels take those of all arrays of the pre-activation
        cotangents = rules.instantiated(cotangents)
    given = tuple(type(c) is not ad.Zero for c in cotangents)
    cotangents = [c for c in cotangents if type(c) is not ad.Zero]
    arrays = rules.vary_alike([*floats, z, *cotangents, *integers])
    results = backward_p.bind(*arrays, call=call, wanted=active, given=given)
    return [None] * (len(floats) + 1) + list(results) + [None] * len(integers)


def _backward_jvp(primals, tangents, *, call, wanted, given):
    params = {"call": call, "wanted": wanted, "given": given}
    if not (call.is_native or call.by_rows):
        return rules.jvp_of(_backward)(primals, tangents, **params)
    outputs = backward_p.bind(*primals, **params)
    n, m = call.fused.num_floats, call.fused.num_floats + 1 + sum(given)
    active = [type(t) is not ad.Zero for t in tangents[:m]]
    active[n] &= call.fused.gate is not None  # without a gate, the backward does not depend on z
    active = tuple(active)
    if not any(active):
        return outputs, [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outputs]
    changed = [t for t, a in zip(tangents, active, strict=False) if a]
    arrays = rules.vary_alike([*primals[:m], *changed, *primals[m:]])
    return outputs, second_p.bind(*arrays, active=active, **params)


def _second_transpose(cotangents, *arrays, call, wanted, given, active):
    params = {"call": call, "wanted": wanted, "given": given, "active": active}
    operands, tangents, integers = split(arrays, len(active), sum(active))
    if any(map(ad.is_undefined_primal, operands)) or not all(map(ad.is_undefined_primal, tangents)):
        return rules.transpose_of(_second, cotangents, arrays, **params)
    cotangents = [None if type(c) is ad.Zero else c for c in cotangents]
    reached = tuple(c is not None for c in cotangents)
    cotangents = [c for c in cotangents if c is not None]
    varied = rules.vary_alike([*operands, *cotangents, *integers])
    results = double_p.bind(*varied, reached=reached, **params)
    return [None] * len(operands) + results + [None] * len(integers)


fused_p = rules.defined_primitive("eqfuse_fused", _fused, _fused_abstract, jvp=_fused_jvp)
tangent_p = rules.defined_primitive(
    "eqfuse_fused_tangent", _tangent, _fused_abstract, transpose=_tangent_transpose
)
backward_p = rules.defined_primitive(
    "eqfuse_fused_backward", _backward, _like("wanted"), jvp=_backward_jvp
)
second_p = rules.defined_primitive(
    "eqfuse_fused_second", _second, _like("wanted"), transpose=_second_transpose
)
double_p = rules.defined_primitive("eqfuse_fused_double", _double, _like("active"))
