"""Fused ops over rows on a CPU: one native kernel for the op, its backward, and that one's.

One primitive more than `primitives.fused` has: `double_p`, the transpose of the tangent of the
backward: from cotangents of what the backward computes to those of what it reads. Like the others,
it is defined by JAX's derivatives of the rung below, and its operands are those of that rung, then
cotangents, then the index arrays. All arrays of whole products stay in the cache of a thread, in
the backward of the backward as well.
"""

import jax
from jax._src.dispatch import prim_requires_devices_during_lowering
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from eqfuse.ops.algebra.sequence import traced
from eqfuse.ops.primitives import forms, rules
from eqfuse.ops.primitives import fused as _fused

double_p = Primitive("eqfuse_fused_double")


def is_native(call) -> bool:
    """Whether kernels of chains may run a call: rows that are mixed one by one, without a gate."""
    fused = call.fused
    plain = not fused.summed and fused.gate is None and not fused.num_sets
    return call.backend == "numba" and plain


def run(function, arrays, call) -> list:
    """What `function` computes of the arrays, by one kernel where it is a chain that has one.

    Args:
      function: of floating point arrays and, for a form on a graph, the index arrays.
    """
    n = _num_floats(arrays, call)
    found = traced(function, arrays, len(arrays) - n) if is_native(call) else None
    if found is None or not found[0].is_runnable:
        return function(*arrays)
    from eqfuse.ops.primitives import native

    chain, read = found
    indices = dict(zip(forms.INDEX_ARRAYS, arrays[n:], strict=False))
    results = native.chain(chain, [arrays[k] for k in read], indices, call.num_rows, call.num_nodes)
    return function(*arrays) if results is None else results


def double(operands, cotangents, integers, **params) -> list:
    """The transpose of the tangent of a backward, from the cotangents that are not None."""
    reached = tuple(c is not None for c in cotangents)
    given = [c for c in cotangents if c is not None]
    arrays = rules.vary_alike([*operands, *given, *integers])
    return double_p.bind(*arrays, reached=reached, **params)


def _num_floats(arrays, call) -> int:
    """How many arrays there are before the index arrays."""
    return len(arrays) - len(forms.INDEX_ARRAYS) * call.fused.form.on_graph


def _split(arrays, call, active):
    """(operands of the backward that are no index arrays, tangents or cotangents, index arrays)"""
    n, m = len(active), _num_floats(arrays, call)
    return arrays[:n], arrays[n:m], arrays[m:]


def _double(*arrays, call, active, reached, **params):
    """The transpose of the tangent, from the cotangents of the outputs that are `reached`."""
    primals, cotangents, integers = _split(arrays, call, active)

    def tangent(*tangents):
        arrays = (*primals, *tangents, *integers)
        found = _fused._second_function(*arrays, call=call, active=active, **params)
        return [t for t, is_reached in zip(found, reached, strict=True) if is_reached]

    avals = [rules.abstract(a) for a, is_active in zip(primals, active, strict=True) if is_active]
    return list(jax.linear_transpose(tangent, *avals)(list(cotangents)))


def _double_transpose(cotangents, *arrays, **params):
    return rules.transpose_of(_double, rules.instantiated(cotangents), arrays, **params)


@double_p.def_abstract_eval
def _double_abstract(*arrays, active, **params):
    wanted = (a for a, is_active in zip(arrays, active, strict=False) if is_active)
    return [a.update(weak_type=False) for a in wanted]


def _lower_double(*arrays, **params):
    return run(lambda *a: _double(*a, **params), arrays, params["call"])


double_p.multiple_results = True
double_p.def_impl(rules.compiled(double_p))
prim_requires_devices_during_lowering.add(double_p)  # as the forms that it is lowered to
ad.primitive_jvps[double_p] = rules.jvp_of(_double)
ad.primitive_transposes[double_p] = _double_transpose
batching.primitive_batchers[double_p] = rules.batch_of(_double)
mlir.register_lowering(double_p, mlir.lower_fun(_lower_double, multiple_results=True))
