"""Fused ops over rows on a CPU: one native kernel for the op, its backward, and that one's.

Two primitives more than `_fused` has: `double_tangent_p`, the tangent of the backward, linear in
its tangents, and `double_p`, the transpose of that: from cotangents of what the backward computes
to those of what it reads. Like the others, they are defined by JAX's derivatives of the rung below,
and their operands are those of that rung, then tangents or cotangents, then the index arrays. All
arrays of whole products stay in the cache of a thread, in the backward of the backward as well.
"""

import jax
from jax._src.dispatch import prim_requires_devices_during_lowering
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from eqfuse.ops import _fused, _primitive
from eqfuse.ops._chain import traced
from eqfuse.ops._form import Index

double_tangent_p = Primitive("eqfuse_fused_double_tangent")
double_p = Primitive("eqfuse_fused_double")


def is_native(call) -> bool:
    """Whether kernels of chains may run a call: rows that are mixed one by one, without a gate."""
    fused = call.fused
    by_row = fused.form.outputs[0].index is Index.ROW
    return call.backend == "numba" and by_row and fused.gate is None and not fused.num_sets


def run(function, arrays, call) -> list:
    """What `function` computes of the arrays, by one kernel where it is a chain that has one.

    Args:
      function: of floating point arrays and, for a form on a graph, the index arrays.
    """
    n = _num_floats(arrays, call)
    found = traced(function, arrays, len(arrays) - n) if is_native(call) else None
    if found is None or not found[0].is_runnable:
        return function(*arrays)
    from eqfuse.ops._numba import run as native

    chain, read = found
    indices = dict(zip(_primitive.INDEX_ARRAYS, arrays[n:], strict=False))
    results = native.chain(chain, [arrays[k] for k in read], indices, call.num_rows, call.num_nodes)
    return function(*arrays) if results is None else results


def backward_jvp(primals, tangents, *, call, **params):
    """The rule of `_fused.backward_p` for such calls."""
    outputs = _fused.backward_p.bind(*primals, call=call, **params)
    n = _num_floats(primals, call)
    active = [type(t) is not ad.Zero for t in tangents[:n]]
    active[call.fused.num_floats] = False  # z, which only the derivative of a gate reads
    given = [t for t, is_active in zip(tangents, active, strict=False) if is_active]
    arrays = _primitive._vary_alike([*primals[:n], *given, *primals[n:]])
    return outputs, double_tangent_p.bind(*arrays, call=call, active=tuple(active), **params)


def _num_floats(arrays, call) -> int:
    """How many arrays there are before the index arrays."""
    return len(arrays) - len(_primitive.INDEX_ARRAYS) * call.fused.form.on_graph


def _split(arrays, call, active):
    """(operands of the backward that are no index arrays, tangents or cotangents, index arrays)"""
    n, m = len(active), _num_floats(arrays, call)
    return arrays[:n], arrays[n:m], arrays[m:]


def _tangent(*arrays, call, active, **params):
    """Tangents of what the backward computes, along those of its active operands."""
    primals, tangents, integers = _split(arrays, call, active)
    places = [n for n, is_active in enumerate(active) if is_active]

    def restricted(*given):
        full = list(primals)
        for n, a in zip(places, given, strict=True):
            full[n] = a
        return _fused._backward_function(*full, *integers, call=call, **params)

    return jax.jvp(restricted, [primals[n] for n in places], list(tangents))[1]


def _double(*arrays, call, active, reached, **params):
    """The transpose of `_tangent`, from the cotangents of the outputs that are `reached`."""
    primals, cotangents, integers = _split(arrays, call, active)

    def tangent(*tangents):
        found = _tangent(*primals, *tangents, *integers, call=call, active=active, **params)
        return [t for t, is_reached in zip(found, reached, strict=True) if is_reached]

    wanted = [a for a, is_active in zip(primals, active, strict=True) if is_active]
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in wanted]
    return list(jax.linear_transpose(tangent, *shapes)(list(cotangents)))


def _tangent_transpose(cotangents, *arrays, call, active, **params):
    params |= {"call": call, "active": active}
    primals, tangents, integers = _split(arrays, call, active)
    unknown = [ad.is_undefined_primal(a) for a in arrays]
    if any(unknown[: len(primals)]) or not all(map(ad.is_undefined_primal, tangents)):
        return _fused._transpose_of(_tangent, _fused._instantiated(cotangents), arrays, **params)
    reached = tuple(type(c) is not ad.Zero for c in cotangents)
    given = [c for c in cotangents if type(c) is not ad.Zero]
    known = _primitive._vary_alike([*primals, *given, *integers])
    found = double_p.bind(*known, reached=reached, **params)
    return [None] * len(primals) + found + [None] * len(integers)


def _double_transpose(cotangents, *arrays, **params):
    return _fused._transpose_of(_double, _fused._instantiated(cotangents), arrays, **params)


@double_tangent_p.def_abstract_eval
def _tangent_abstract(*arrays, active, **params):
    return _fused._backward_abstract(*arrays, **params)


@double_p.def_abstract_eval
def _double_abstract(*arrays, active, **params):
    wanted = (a for a, is_active in zip(arrays, active, strict=False) if is_active)
    return [a.update(weak_type=False) for a in wanted]


def _lower_double(*arrays, **params):
    return run(lambda *a: _double(*a, **params), arrays, params["call"])


ad.primitive_jvps[double_tangent_p] = _fused._jvp_of(_tangent)
ad.primitive_jvps[double_p] = _fused._jvp_of(_double)
ad.primitive_transposes[double_tangent_p] = _tangent_transpose
ad.primitive_transposes[double_p] = _double_transpose
for _p, _function, _lowered in (
    (double_tangent_p, _tangent, _tangent),
    (double_p, _double, _lower_double),
):
    _p.multiple_results = True
    _p.def_impl(_fused._compiled(_p))
    prim_requires_devices_during_lowering.add(_p)  # as the forms that they are lowered to
    batching.primitive_batchers[_p] = _fused._batch_of(_function)
    mlir.register_lowering(_p, mlir.lower_fun(_lowered, multiple_results=True))
