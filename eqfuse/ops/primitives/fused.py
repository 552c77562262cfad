"""The fused op as JAX primitives, with their derivatives.

Four primitives: the op; its tangent, linear in the tangents; its backward, the transpose of the
tangent; and the tangent of the backward. On a GPU the op and its backward are fused kernels, and so
are, over rows and without a gate, the derivatives of the backward. Everything else (the tangents,
other derivatives of the backward, `vmap`) is composed by JAX itself from the definitions in
`primitives.definitions`, so that no derivative is missing at any order.
"""

import dataclasses
import functools

import jax
from jax._src.dispatch import prim_requires_devices_during_lowering
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from eqfuse.ops.algebra.form import Index
from eqfuse.ops.primitives import rules
from eqfuse.ops.primitives.definitions import (
    Call,
    Fused,
    define,
    define_backward,
    define_second,
    define_tangent,
    is_plain,
)

fused_p = Primitive("eqfuse_fused")
tangent_p = Primitive("eqfuse_fused_tangent")
backward_p = Primitive("eqfuse_fused_backward")
second_p = Primitive("eqfuse_fused_second")


def evaluate(call: Call, floats, integers):
    """The output of a fused op: the gated row, or the arrays of the mixed row without a gate.

    Args:
      floats, integers: its operands, as in `Fused`.
    """

    def bound(*arrays):
        return fused_p.bind(*rules.vary_alike(arrays), call=call)

    out = "nodes" if call.fused.summed else "rows"
    counted = [o.index.counted for o in call.fused.form.inputs]
    counted += [None] * len(call.fused.linear.parameters) + [out] * call.fused.skip
    names = [out] * len(call.fused.sizes)
    outputs = rules.with_auto_axes(bound, [*floats, *integers], counted, names)
    return outputs if call.fused.gate is None else outputs[:1]


def _fused_function(*arrays, call):
    return define(call, arrays[: call.fused.num_floats], arrays[call.fused.num_floats :])


def _tangent_arguments(arrays, call, active):
    n = call.fused.num_floats
    m = n + 1 + sum(active)
    return arrays[:n], arrays[n], arrays[n + 1 : m], arrays[m:]


def _tangent_function(*arrays, call, active):
    return define_tangent(call, active, *_tangent_arguments(arrays, call, active))


def _backward_arguments(arrays, call, given):
    n = call.fused.num_floats
    m = n + 1 + sum(given)
    return arrays[:n], arrays[n], arrays[n + 1 : m], arrays[m:]


def _backward_function(*arrays, call, wanted, given):
    return define_backward(call, wanted, given, *_backward_arguments(arrays, call, given))


def _second_arguments(arrays, call, given, active):
    n = call.fused.num_floats + 1 + sum(given)
    m = n + sum(active)
    return arrays[:n], arrays[n:m], arrays[m:]


def _second_function(*arrays, call, wanted, given, active):
    parts = _second_arguments(arrays, call, given, active)
    return define_second(call, wanted, given, active, *parts)


FUNCTIONS = {
    fused_p: _fused_function,
    tangent_p: _tangent_function,
    backward_p: _backward_function,
    second_p: _second_function,
}
for _p in FUNCTIONS:
    _p.multiple_results = True


@fused_p.def_abstract_eval
def _fused_abstract(*arrays, call):
    return [arrays[0].update(shape=(call.rows, s), weak_type=False) for s in call.fused.sizes]


@tangent_p.def_abstract_eval
def _tangent_abstract(*arrays, call, active):
    return _fused_abstract(*arrays, call=call)


@backward_p.def_abstract_eval
def _backward_abstract(*arrays, call, wanted, given):
    floats = arrays[: call.fused.num_floats]
    return [a.update(weak_type=False) for a, w in zip(floats, wanted, strict=True) if w]


@second_p.def_abstract_eval
def _second_abstract(*arrays, call, wanted, given, active):
    return _backward_abstract(*arrays, call=call, wanted=wanted, given=given)


def second_op(fused: Fused, given):
    """The op of `second_transposed`, for cotangents of the product's inputs that are given.

    Returns:
      (the op; which of the inputs and cotangents it reads; of which operands its backward is
      wanted).
    """
    form = fused.form.jvp(tuple(given))
    used = form.used_inputs()
    num_inputs = len(fused.form.inputs)
    of_inputs, of_tangents = used[:num_inputs], used[num_inputs:]
    asked = (True,) * sum(of_inputs) + (False,) * sum(of_tangents)
    asked += (True,) * len(fused.linear.parameters)
    return Fused.build(form.drop_inputs(used), fused.linear, None, False), used, asked


def second_transposed(call: Call, wanted, operands, integers, cotangents):
    """Gradients of sum_i <c_i, backward_i> by the operands of a backward, None where it is zero.

    For cotangents c of the gradients of x and y this is <ct, Linear(c_x (x) y + x (x) c_y)>, the
    fused op of another product with the same Linear, whose own value and backward are wanted.
    """
    fused, n = call.fused, call.fused.num_floats
    inputs, parameters, _ = fused.operands(operands[:n])
    z, *cts = operands[n:]
    c = iter(cotangents)
    c = [next(c) if w else None for w in wanted[: len(inputs)]]
    other, used, asked = second_op(fused, [a is not None for a in c])
    arrays = [*inputs, *(a for a in c if a is not None)]
    arrays = [a for a, keep in zip(arrays, used, strict=True) if keep]
    call = dataclasses.replace(call, fused=other)
    floats = [*arrays, *parameters]
    of_inputs = used[: len(inputs)]
    arrays = rules.vary_alike([*floats, *integers])
    dcts = fused_p.bind(*arrays, call=call)
    arrays = rules.vary_alike([*floats, z, *cts, *integers])
    found = iter(backward_p.bind(*arrays, call=call, wanted=asked, given=(True,) * len(cts)))
    dinputs = [next(found) if keep else None for keep in of_inputs]
    return [*dinputs, *found, *([None] if fused.skip else []), None, *dcts]


def _fused_jvp(primals, tangents, *, call):
    n = call.fused.num_floats
    outputs = fused_p.bind(*primals, call=call)
    active = tuple(type(t) is not ad.Zero for t in tangents[:n])
    given = [t for t in tangents[:n] if type(t) is not ad.Zero]
    arrays = rules.vary_alike([*primals[:n], outputs[-1], *given, *primals[n:]])
    return outputs, tangent_p.bind(*arrays, call=call, active=active)


def _tangent_transpose(cotangents, *arrays, call, active):
    floats, z, tangents, integers = _tangent_arguments(arrays, call, active)
    if any(map(ad.is_undefined_primal, (*floats, z))) or not all(
        map(ad.is_undefined_primal, tangents)
    ):
        # linear in some of the tangents only
        cotangents = rules.instantiated(cotangents)
        return rules.transpose_of(_tangent_function, cotangents, arrays, call=call, active=active)
    if call.fused.gate is None:  # its kernels take those of all arrays of the mixed row
        cotangents = rules.instantiated(cotangents)
    given = tuple(type(c) is not ad.Zero for c in cotangents)
    cotangents = [c for c in cotangents if type(c) is not ad.Zero]
    arrays = rules.vary_alike([*floats, z, *cotangents, *integers])
    results = backward_p.bind(*arrays, call=call, wanted=active, given=given)
    return [None] * (len(floats) + 1) + list(results) + [None] * len(integers)


def _backward_transpose(cotangents, *arrays, **params):
    return rules.transpose_of(_backward_function, rules.instantiated(cotangents), arrays, **params)


def _backward_jvp(primals, tangents, *, call, wanted, given):
    from eqfuse.ops.primitives import fused_native

    if not is_plain(call, wanted) and not fused_native.is_native(call):
        rule = rules.jvp_of(_backward_function)
        return rule(primals, tangents, call=call, wanted=wanted, given=given)
    outputs = backward_p.bind(*primals, call=call, wanted=wanted, given=given)
    n, m = call.fused.num_floats, call.fused.num_floats + 1 + sum(given)
    # without a gate, the backward does not depend on z
    active = tuple(k != n and type(t) is not ad.Zero for k, t in enumerate(tangents[:m]))
    if not any(active):
        return outputs, [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outputs]
    changed = [t for t, a in zip(tangents, active, strict=False) if a]
    arrays = rules.vary_alike([*primals[:m], *changed, *primals[m:]])
    params = {"call": call, "wanted": wanted, "given": given, "active": active}
    return outputs, second_p.bind(*arrays, **params)


def _second_transpose(cotangents, *arrays, call, wanted, given, active):
    operands, tangents, integers = _second_arguments(arrays, call, given, active)
    if any(map(ad.is_undefined_primal, operands)) or not all(map(ad.is_undefined_primal, tangents)):
        params = {"call": call, "wanted": wanted, "given": given, "active": active}
        return rules.transpose_of(
            _second_function, rules.instantiated(cotangents), arrays, **params
        )
    from eqfuse.ops.primitives import fused_native

    cotangents = [None if type(c) is ad.Zero else c for c in cotangents]
    if fused_native.is_native(call):
        params = {"call": call, "wanted": wanted, "given": given, "active": active}
        found = fused_native.double(operands, cotangents, integers, **params)
        return [None] * len(operands) + found + [None] * len(integers)
    found = second_transposed(call, wanted, operands, integers, cotangents)
    found = [g for g, a in zip(found, active, strict=True) if a]
    zeros = [ad.Zero(t.aval) if g is None else g for g, t in zip(found, tangents, strict=True)]
    return [None] * len(operands) + zeros + [None] * len(integers)


ad.primitive_jvps[fused_p] = _fused_jvp
ad.primitive_jvps[tangent_p] = rules.jvp_of(_tangent_function)
ad.primitive_jvps[backward_p] = _backward_jvp
ad.primitive_jvps[second_p] = rules.jvp_of(_second_function)
ad.primitive_transposes[tangent_p] = _tangent_transpose
ad.primitive_transposes[backward_p] = _backward_transpose
ad.primitive_transposes[second_p] = _second_transpose
for _p, _function in FUNCTIONS.items():
    _p.def_impl(rules.compiled(_p))
    prim_requires_devices_during_lowering.add(_p)  # as the forms that they are lowered to
    batching.primitive_batchers[_p] = rules.batch_of(_function)


def _lower_fused(*arrays, call):
    n = call.fused.num_floats
    if not call.backend.startswith("triton") or not _has_kernels(call):
        return _composed(_fused_function, arrays, call=call)
    from eqfuse.ops.primitives import fused_kernels

    return fused_kernels.forward(call, arrays[:n], arrays[n:])


def _lower_backward(*arrays, call, wanted, given):
    if not call.backend.startswith("triton") or not _has_kernels(call):
        return _composed(_backward_function, arrays, call=call, wanted=wanted, given=given)
    from eqfuse.ops.primitives import fused_kernels

    return fused_kernels.backward(call, wanted, given, *_backward_arguments(arrays, call, given))


def _composed(function, arrays, call, **params):
    """A definition as it is, or as one native kernel."""
    from eqfuse.ops.primitives import fused_native

    return fused_native.run(functools.partial(function, call=call, **params), arrays, call)


def _has_kernels(call: Call) -> bool:
    """Whether there is work for a kernel: rows, and something to mix, that it owns."""
    fused = call.fused
    if not fused.summed and any(o.index is Index.SENDER for o in fused.form.inputs):
        return False
    matrices = any(term.x is not None for term in fused.linear.mixing.terms)
    return bool(call.rows and call.num_rows and fused.form.paths and matrices)


mlir.register_lowering(fused_p, mlir.lower_fun(_lower_fused, multiple_results=True))
for _p in (tangent_p, second_p):
    mlir.register_lowering(_p, mlir.lower_fun(FUNCTIONS[_p], multiple_results=True))
mlir.register_lowering(backward_p, mlir.lower_fun(_lower_backward, multiple_results=True))
